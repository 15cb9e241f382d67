"""What a configuration takes out of documents, and what a change of it does, from the file to the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.conftest import Addresses
from tests.workers.indexed import index
from tests.workers.installed import installed
from workers import embedded
from workers.control import sync
from workers.runtime import Runtime

SQL = psycopg.Connection[Any]
Start = Callable[..., Runtime]
CONFIG = """
rag:
  embedding: {{provider: hashing}}
  retrieval: {{minSimilarity: 0}}
  {more}
  sources:
    - {{name: pages, type: markdown, paths: ['*.md'], autoIndex: false{source}}}
"""


@pytest.fixture
def start(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, broker: redis.Redis
) -> Iterator[Start]:
    """Starts this installation with more keys of the file and of its source, and indexes everything."""
    with ExitStack() as stack:

        def start(source: str = "", more: str = "") -> Runtime:
            config = CONFIG.format(source=source, more=more)
            parts = stack.enter_context(installed(tmp_path, addresses, servers, config))
            sync.register(parts)
            index(parts)
            return parts

        yield start


@pytest.mark.req("001-113")
def test_nothing_of_the_database_holds_what_is_redacted_until_the_source_says_otherwise(
    start: Start, tmp_path: Path, omniscient: SQL
) -> None:
    (tmp_path / "a.md").write_text("# Contact\n\nWrite to ann@corp.com, or log in with password=hunter2.\n")

    def held(word: str) -> list[str]:
        tables = (
            "document",
            "document_body",
            "chunk",
            "chunk_stage",
            "run_item",
            "source",
            "embedding_cache",
        )
        rows = {
            t: omniscient.execute(f"select t::text from {t} t where t::text like '%{word}%'") for t in tables
        }
        return [table for table, found in rows.items() if found.fetchone()]

    def version() -> Any:
        return omniscient.execute("select desired_version from document").fetchone()

    start()
    assert held("Contact")
    assert held("corp.com") + held("hunter2") == []
    start()
    assert version() == (1,)
    start(", redact: [phone]")
    assert version() == (2,)
    assert "chunk" in held("corp.com")
    assert held("hunter2") == []
