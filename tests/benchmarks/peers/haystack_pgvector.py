"""Haystack as its pages on indexing pipelines and on PgvectorDocumentStore set it up.

Needs haystack-ai, pgvector-haystack and sentence-transformers-haystack (all Apache-2.0), markdown-it-py and mdit-plain;
run by compare.py. Haystack has no step that leaves out what is stored already: the three lines on `stored` stand for it.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import time
from pathlib import Path

from haystack import Pipeline
from haystack.components.converters import MarkdownToDocument
from haystack.components.preprocessors import DocumentSplitter
from haystack.components.writers import DocumentWriter
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import ComponentDevice, Secret
from haystack_integrations.components.embedders.sentence_transformers import (
    SentenceTransformersDocumentEmbedder,
)
from haystack_integrations.document_stores.pgvector import PgvectorDocumentStore

store = PgvectorDocumentStore(
    connection_string=Secret.from_env_var("DATABASE_URL"),
    embedding_dimension=384,
    vector_function="cosine_similarity",
    search_strategy="exact_nearest_neighbor",
)
embedder = SentenceTransformersDocumentEmbedder(
    model=os.environ["MODEL"],
    backend=os.environ["BACKEND"],
    device=ComponentDevice.from_str("cpu"),
    progress_bar=False,
)
embedder.warm_up()
print(f"start {time.process_time()}", flush=True)
cutting = Pipeline()
cutting.add_component("converter", MarkdownToDocument(progress_bar=False))
cutting.add_component("splitter", DocumentSplitter(split_by="word", split_length=200))
cutting.connect("converter", "splitter")
paths = sorted(Path(os.environ["DOCUMENTS"]).rglob("*.md"))
pieces = cutting.run({"converter": {"sources": paths}})["splitter"]["documents"]

stored = {document.id for document in store.filter_documents()}
store.delete_documents(sorted(stored - {piece.id for piece in pieces}))
pieces = [piece for piece in pieces if piece.id not in stored]

if pieces:
    indexing = Pipeline()
    indexing.add_component("embedder", embedder)
    indexing.add_component("writer", DocumentWriter(store, policy=DuplicatePolicy.OVERWRITE))
    indexing.connect("embedder", "writer")
    print(indexing.run({"embedder": {"documents": pieces}})["writer"])
