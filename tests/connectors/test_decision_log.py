"""A decision log, which the rules of decisions name, is a document for each of its records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors import open_source
from connectors.documents.options import DecisionRules, SourceContext
from connectors.files.options import MarkdownOptions
from pipeline.documents import Document, Kind, Source

LOG = """---
title: Decision log
---
# Decision log

What we decided.

## 2024-03-05: Keep tide tables in one store

Status: Accepted
Deciders: Ann Lee

We will keep them in one store.

### What follows

Nothing.

## Send pilots a mail

Status: Superseded by "Send pilots a message"

Mail is sent.

Send pilots a message
---------------------

**Status:** accepted

Messages are sent.
"""
TABLE = """# Decisions

| Date | Decision | Status | Rationale |
|---|---|---|---|
| 2024-01-02 | Keep times in UTC | accepted | Clocks of harbours differ. |
| 2024-01-09 | Take no ORM | rejected | It was too slow to write. |
"""
Opened = Callable[..., Source]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    def open_log(text: str, *paths: str) -> Source:
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs/decisions.md").write_text(text, encoding="utf-8")
        (tmp_path / "docs/zebra.md").write_text("# Zebra\n\nNo decision.", encoding="utf-8")
        options = MarkdownOptions(name="log", type="markdown", paths=("**/*.md",), root=tmp_path / "docs")
        return open_source(options.with_context(SourceContext(decisions=DecisionRules(paths=paths))))

    return open_log


def documents(source: Source, since: str = "") -> list[Document]:
    cursor = {"after": since} if since else None
    return [document for page in source.pages(cursor) for document in page.documents]


@pytest.mark.parametrize("path", ["decisions.md", "./decisions.md", "docs/decisions.md"])
def test_each_entry_below_a_heading_is_a_decision(opened: Opened, path: str) -> None:
    first, second, third, other = documents(opened(LOG, path))
    assert [d.external_id for d in (first, second, third)] == [
        "decisions.md#2024-03-05-keep-tide-tables-in-one-store",
        "decisions.md#send-pilots-a-mail",
        "decisions.md#send-pilots-a-message",
    ]
    assert {d.kind for d in (first, second, third)} == {Kind.DECISION}
    assert first.title == "2024-03-05: Keep tide tables in one store"
    facts = ("decision_status", "decided_at", "deciders", "superseded_by")
    assert [first.metadata.get(key) for key in facts] == ["accepted", "2024-03-05", "Ann Lee", None]
    assert [second.metadata.get(key) for key in facts] == ["superseded", None, None, "Send pilots a message"]
    assert "What follows" in first.text
    assert "Mail is sent" not in first.text
    assert first.url.endswith("/decisions.md#2024-03-05-keep-tide-tables-in-one-store")
    assert other.external_id == "zebra.md"


def test_each_row_of_a_table_is_a_decision(opened: Opened) -> None:
    first, second, _ = documents(opened(TABLE, "decisions.md"))
    assert (first.title, first.metadata["decision_status"]) == ("Keep times in UTC", "accepted")
    assert (second.title, second.metadata["decision_status"]) == ("Take no ORM", "rejected")
    assert "It was too slow to write." in second.text


def test_entries_of_one_name_are_kept_apart(opened: Opened) -> None:
    log = "# Log\n\n## Storage\n\nA.\n\n## Storage\n\nB.\n"
    assert [d.external_id for d in documents(opened(log, "decisions.md"))] == [
        "decisions.md#storage", "decisions.md#storage-1", "zebra.md",
    ]  # fmt: skip


def test_a_walk_that_ended_within_a_log_goes_on_there(opened: Opened) -> None:
    rest = documents(opened(LOG, "decisions.md"), since="decisions.md#send-pilots-a-mail")
    assert [d.external_id for d in rest] == ["decisions.md#send-pilots-a-message", "zebra.md"]


def test_an_entry_that_was_taken_out_is_gone(opened: Opened) -> None:
    assert "decisions.md#send-pilots-a-mail" in opened(LOG, "decisions.md").ids().ids
    shorter = opened(LOG.replace("## Send pilots a mail", ""), "decisions.md")
    assert shorter.ids().ids == {d.external_id for d in documents(shorter)}
    assert "decisions.md#send-pilots-a-mail" not in shorter.ids().ids


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "# One record\n\n## Status\n\nAccepted\n\n## Context\n\nC.\n\n## Decision\n\nWe will.",
            "decisions.md",
        ),
        ("# Notes\n\n## Only one\n\nText.", "decisions.md"),
        (LOG, "**/*.md"),
    ],
    ids=["its parts are no records", "one entry", "found by a pattern"],
)
def test_anything_else_stays_one_document(opened: Opened, text: str, path: str) -> None:
    assert [d.external_id for d in documents(opened(text, path))] == ["decisions.md", "zebra.md"]


def test_a_file_that_is_named_is_a_decision_whatever_it_is_called(opened: Opened) -> None:
    assert documents(opened("# Decisions\n\nAll in one.", "decisions.md"))[0].kind is Kind.DECISION
    assert documents(opened("# Decisions\n\nAll in one.", "**/none/**"))[0].kind is Kind.REFERENCE
