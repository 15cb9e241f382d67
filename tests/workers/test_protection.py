"""What a configuration takes out of documents, and what a change of it does, from the file to the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from pipeline.search import SearchRequest
from pipeline.search.records import Filter
from tests.conftest import Addresses
from tests.workers.indexed import index
from tests.workers.installed import installed
from workers import embedded
from workers.control import sync
from workers.runtime import Runtime
from workers.search import search
from workers.settings import SettingsError, load

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


def levels(omniscient: SQL) -> dict[str, str]:
    return dict(omniscient.execute("select external_id, security_level from document").fetchall())


@pytest.mark.req("001-114")
def test_changed_rules_hold_from_the_next_sync_and_first_for_who_sees_less(
    start: Start, tmp_path: Path, omniscient: SQL
) -> None:
    (tmp_path / "pay.md").write_text("---\ntags: [hr]\n---\n# Pay\n\nWho earns what.\n")
    (tmp_path / "plan.md").write_text("# Plan\n\nWho does what.\n")
    start()
    assert levels(omniscient) == {"pay.md": "internal", "plan.md": "internal"}
    rules = "security: {levels: [{level: restricted, labels: [hr]}, {level: public, paths: ['**']}]}"
    parts = start(more=rules)
    assert levels(omniscient) == {"pay.md": "restricted", "plan.md": "public"}
    request = SearchRequest(
        text="plan earns", mode="keyword", filter=Filter(security_levels=("public", "internal"))
    )
    assert [
        hit.document.title for hit in search(parts, parts.settings.tenant_id, request, by="ann").hits
    ] == ["Plan"]
    versions = "select desired_version from document order by external_id"
    before = omniscient.execute(versions).fetchall()
    start(more=rules)
    assert omniscient.execute(versions).fetchall() == before
    start(", securityLevel: confidential")
    assert levels(omniscient) == {"pay.md": "confidential", "plan.md": "confidential"}


def test_a_level_that_does_not_exist_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "larder.yaml"
    file.write_text(
        "rag:\n  security:\n    levels:\n      - level: secret\n      - {level: public, paths: ['../x']}\n"
    )
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    first, second = str(caught.value).splitlines()[-2:]
    assert "larder.yaml:4" in first
    assert "one of public, internal, confidential, restricted" in first
    assert "larder.yaml:5" in second
    assert "leaves the source's root" in second
