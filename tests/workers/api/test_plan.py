"""A query of the API over many chunks follows the vector index; the layers below it are its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.access import Caller
from pipeline.database.engine import Database
from pipeline.documents import Chunk
from pipeline.search import RetrievalOptions, Retriever, SearchRequest
from tests.pipeline.stores.corpus import DIMENSIONS, Corpus, Counting


@pytest.mark.req("004-014", "004-022", "004-026")
def test_a_query_with_rights_and_a_project_uses_the_vector_index(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    vectors = np.random.default_rng(1).normal(size=(3000, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stock = [
        (corpus.document(f"Page {n}"), [Chunk(ord=0, content=f"Words of page {n}.")]) for n in range(3000)
    ]
    corpus.put_all(stock, vectors)
    corpus.build()
    corpus.count()
    corpus.documents.set(chunk_count=1)  # as whoever writes them says
    database = Counting(shared_database)
    caller = Caller(tenant=corpus.tenant, tenant_name="t", subject="ann", projects=(str(corpus.project),))
    allowed = replace(caller.search_filter, projects=(corpus.project,))
    options = RetrievalOptions(exact_below=0, min_similarity=-1.0)
    search = Retriever(database, corpus.tenant, lambda _index: corpus.embedder, options)
    found = search.search(SearchRequest(text="words of page 7", filter=allowed, k=5, dedupe=False))
    scores = [hit.score for hit in found.hits]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    plans = [plan(database, corpus, *sent) for sent in database.sent if "c.content" in sent[0]]
    assert plans
    assert all('"Index Name": "chunk_1_vector"' in one or "hnsw" in one for one in plans), names(plans[0])


def plan(database: Database, corpus: Corpus, statement: str, values: Any) -> str:
    """How the server runs the statement, with its values."""
    with database.tenant(corpus.tenant) as connection:
        driver: Any = connection.connection.driver_connection
        rows = driver.execute(f"explain (format json) {statement}", values).fetchall()
        return json.dumps(rows[0][0])


def names(plan: str) -> list[str]:
    """The indexes that a plan uses."""
    return re.findall(r'Index Name": "([^"]+)', plan)
