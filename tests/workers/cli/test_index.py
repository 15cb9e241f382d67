"""What a person reads at the end of `larder index`."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.documents import Json
from pipeline.ledger import tenant_id
from tests.ledger import Ledger
from tests.workers.cli.asking import Run
from workers.cli.index import _COLUMNS, summary


def screen(*errors: Json, sources: tuple[str, ...] = ("docs", "more"), **counts: int) -> str:
    """The summary of one run in a terminal of eighty columns."""
    run = {
        **dict.fromkeys((c for counted in _COLUMNS.values() for c in counted), 0),
        "texts_cut": 0,
        "noted": 0,
        **counts,
    }
    stats = {"documents_processed": 1, "vectors_indexed": 3, "time_elapsed": 0.5, "errors": errors}
    result: Json = {"stats": stats, "runs": [{"source": name, **run} for name in sources]}
    out = StringIO()
    for part in summary(result):
        Console(file=out, width=80).print(part, markup=False)
    return out.getvalue()


def test_texts_that_the_model_had_to_cut_are_a_warning_with_their_number() -> None:
    assert "cut 4 texts are longer than the model reads" in screen(texts_embedded=3, texts_cut=2)
    assert "longer" not in screen(texts_embedded=3)


def test_what_failed_is_named_an_item_or_the_source_as_a_whole() -> None:
    whole = {"source": "docs", "item": "", "reason": "no such folder", "outcome": "failed"}
    shown = screen(whole, {**whole, "item": "a.md", "reason": "not [b]UTF-8[/]"})
    assert "failed docs: no such folder" in shown
    assert "failed docs: a.md: not [b]UTF-8[/]" in shown


def test_what_was_read_in_part_is_counted_and_named() -> None:
    one = {"source": "docs", "item": "a.md", "reason": "header not valid YAML at line 5", "outcome": "noted"}
    shown = screen(one, sources=("docs",), noted=1)
    assert "noted 1 document was read in part" in shown
    assert "noted docs: a.md: header not valid YAML at line 5" in shown
    assert "read in part" not in screen()


FILE = """
rag:
  tenant: acme
  embedding: {provider: hashing, dimensions: 32}
  sources:
    - {name: docs, type: markdown, paths: ["docs/*.md"], autoIndex: false}
"""
NEW = '    - {name: notes, type: text, paths: ["notes/*.txt"], autoIndex: false}\n'


@pytest.fixture
def working(run: Run, tmp_path: Path, ledger: Ledger) -> Run:
    """Commands beside workers that run with `FILE`."""
    (tmp_path / "larder.yaml").write_text(FILE)
    assert run("sources", "list").exit_code == 0
    ledger.add_worker("w", "control,ingest,embed")
    return run


@pytest.mark.parametrize("command", ["index", "sources list", "sources rename docs x"])
def test_a_mistyped_tenant_registers_nothing(working: Run, ledger: Ledger, command: str) -> None:
    """It would be wrong in the status for good: no worker has its sources."""
    refused = working(*command.split(), LARDER_TENANT="acne")
    if command == "index":
        assert refused.exit_code == 1
        assert "no tenant acne, only acme" in refused.stderr
        assert "LARDER_TENANT" in refused.stderr
    assert ledger.sources.values("tenant_id", "name") == [(tenant_id("acme"), "docs")]
    assert ledger.tenants.values("name") == ["acme"]


@pytest.mark.parametrize("change", ["new", "changed"])
def test_a_source_that_the_workers_do_not_know_yet_keeps_no_other_from_being_read(
    working: Run, tmp_path: Path, ledger: Ledger, change: str
) -> None:
    (tmp_path / "larder.yaml").write_text(FILE + NEW)
    if change == "changed":
        ledger.workers.clear()
        assert working("sources", "list").exit_code == 0
        ledger.add_worker("w", "control,ingest,embed")
        (tmp_path / "larder.yaml").write_text(FILE + NEW.replace("*.txt", "**/*.txt"))
    before = ledger.sources.values("name", "config_hash")
    told = working("index", "--no-wait", "--json")
    assert told.exit_code == 3
    found = json.loads(told.stdout)
    assert [one["source"] for one in found["queued"]] == ["docs"]
    ((error),) = found["errors"]
    assert error["source"] == "notes"
    assert error["reason"].startswith("the workers have ")
    assert "then larder index notes" in error["reason"]
    assert ledger.sources.values("name", "config_hash") == before
    alone = working("index", "notes")
    assert alone.exit_code == 1
    assert "larder reload where `larder up` runs them, else start each of them again" in alone.stderr
