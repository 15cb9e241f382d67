"""A page in the ledger: what is new, changed, the same, and what a run counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from pipeline.documents import Document, Page
from pipeline.errors import LeaseLost
from pipeline.ledger import Stage, admission, runs, sources, work
from tests.pipeline.source_ledger import LEASE, PIPELINE, SourceLedger, document, paragraphs, problem


def counts_add_up(notes: SourceLedger, run: int) -> bool:
    row = notes.run(run)
    return row.listed == row.unchanged + row.queued + row.skipped + row.failed


class TestVerdicts:
    def test_a_new_document_waits_in_its_first_version(self, notes: SourceLedger) -> None:
        admitted = notes.admit(document("a", "Hello."))
        row = notes.row("a")
        assert admitted == runs.Counts(queued=1)
        assert (row["desired_version"], row["state"], row["stage"]) == (1, "pending", "fetched")
        assert (row["tenant_id"], row["project_id"]) == (notes.tenant, notes.project)
        assert notes.bodies.one()["body"] == "Hello."

    def test_of_two_documents_with_one_id_in_a_page_the_last_is_kept_and_the_other_named(
        self, notes: SourceLedger
    ) -> None:
        run = notes.open_run()
        admitted = notes.admit(
            document("a", "First."), document("a", "Second."), document("a", "Second."), run=run
        )
        assert admitted == runs.Counts(queued=1, failed=1)
        assert notes.bodies.one()["body"] == "Second."
        assert [p["item"] for p in notes.run(run).problems] == ["a"]

    @pytest.mark.req("002-011")
    def test_the_same_content_again_is_unchanged_once_it_is_indexed(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        assert notes.admit(document("a")) == runs.Counts(unchanged=1)
        assert notes.row("a")["desired_version"] == 1
        assert notes.items() == []

    @pytest.mark.req("002-011")
    def test_changed_content_is_the_same_document_in_its_next_version(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        assert notes.admit(document("a", "Other words.")).queued == 1
        row = notes.row("a")
        assert (row["desired_version"], row["indexed_version"], row["state"]) == (2, 1, "pending")
        assert len(notes.documents()) == 1
        assert notes.bodies.values("version", "body") == [(2, "Other words.")]

    def test_a_document_that_was_read_in_part_is_counted_and_named_each_time(
        self, notes: SourceLedger
    ) -> None:
        noted = document(
            "a", metadata={"reading_note": "the header is not valid YAML at line 5; it was read line by line"}
        )
        assert notes.admit(noted) == runs.Counts(queued=1, noted=1)
        notes.index()
        run = notes.open_run()
        assert notes.admit(noted, document("b"), run=run).noted == 1
        row = notes.run(run)
        assert (row.listed, row.noted) == (2, 1)
        (problem,) = row.problems
        assert (problem["item"], problem["outcome"]) == ("a", "noted")
        assert problem["reason"] == "the header is not valid YAML at line 5; it was read line by line"

    def test_what_waits_already_keeps_its_version_and_joins_the_new_run(self, notes: SourceLedger) -> None:
        first, _ = notes.open_run(), notes.admit
        notes.admit(document("a"), run=first)
        second = notes.open_run()
        assert notes.admit(document("a"), run=second).queued == 1
        assert notes.row("a")["desired_version"] == 1
        outcomes = {r["run_id"]: r["outcome"] for r in notes.run_items()}
        assert outcomes == {first: "superseded", second: None}

    def test_a_dead_document_in_the_very_same_form_counts_as_failed(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.set("a", state="dead")
        assert notes.admit(document("a")) == runs.Counts(failed=1)
        assert notes.row("a")["state"] == "dead"

    @pytest.mark.parametrize("state", ["done", "dead"])
    def test_force_takes_settled_documents_again(self, notes: SourceLedger, state: str) -> None:
        notes.admit(document("a"))
        notes.set("a", state=state, stage="done", attempts=5, crash_count=2, last_error="x")
        assert notes.admit(document("a"), force=True).queued == 1
        row = notes.row("a")
        assert (row["desired_version"], row["state"], row["stage"]) == (2, "pending", "fetched")
        assert (row["attempts"], row["crash_count"], row["last_error"]) == (0, 0, None)

    def test_force_takes_a_document_once_per_run(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        run = notes.open_run(force=True)
        notes.admit(document("a"), run=run, force=True)
        notes.index()
        again = notes.admit(document("a"), run=run, force=True)
        assert again == runs.Counts()
        assert notes.row("a")["desired_version"] == 2

    @pytest.mark.parametrize("state", ["done", "dead"])
    def test_another_pipeline_makes_every_document_changed(self, notes: SourceLedger, state: str) -> None:
        notes.admit(document("a"))
        notes.set("a", state=state)
        assert notes.admit(document("a"), pipeline="test-1|other|m").queued == 1
        assert notes.row("a")["pipeline_version"] == "test-1|other|m"

    def test_a_preview_says_the_same_and_writes_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("same"), document("old"), document("dead"))
        notes.index()
        notes.set("dead", state="dead")
        notes.admit(document("waits"))
        run = notes.open_run()
        page = Page(
            cursor={},
            documents=(
                *tuple(document(i) for i in ("same", "dead", "waits", "new")),
                document("old", "edited"),
            ),
        )
        before = notes.documents()
        with notes.database.tenant(notes.tenant) as connection:
            verdicts = admission.verdicts(connection, notes.where(run), page)
        assert verdicts == {
            "same": "unchanged",
            "dead": "dead",
            "waits": "waiting",
            "new": "changed",
            "old": "changed",
        }
        assert notes.documents() == before


class TestChange:
    @pytest.mark.parametrize(
        "change",
        [
            {"title": "T"},
            {"tags": ("x",)},
            {"url": "u"},
            {"metadata": {"k": 1}},
            {"security_level": "secret"},
        ],
    )
    def test_whatever_search_shows_or_filters_by_is_a_change(
        self, notes: SourceLedger, change: dict[str, Any]
    ) -> None:
        notes.admit(document("a"))
        notes.index()
        assert notes.admit(document("a", **change)).queued == 1
        (name, value), row = next(iter(change.items())), notes.row("a")
        assert row[name] == (list(value) if isinstance(value, tuple) else value)

    def test_work_on_the_version_before_loses_its_token(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        claimed = notes.claim("a")
        assert claimed.ids == [notes.id("a")]
        notes.admit(document("a", "newer"))
        row = notes.row("a")
        assert (row["lease_token"], row["lease_until"], row["enqueued_at"]) == (None, None, None)
        with notes.database.tenant(notes.tenant) as connection:
            assert work.still_ours(connection, claimed) == []
            assert work.advance(connection, claimed, claimed.ids, Stage.CHUNKED) == []
        assert notes.row("a")["stage"] == "fetched"

    def test_what_was_staged_of_the_version_before_is_gone(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)))
        notes.indexer().chunk(notes.tenant, notes.items())
        assert len(notes.staged_chunks()) == 3
        notes.admit(document("a", "newer"))
        assert len(notes.staged_chunks()) == 0

    def test_the_old_version_stays_searchable_until_the_new_one_is_ready(self, notes: SourceLedger) -> None:
        notes.admit(document("a", "Old words."))
        notes.index()
        notes.admit(document("a", "New words."))
        assert notes.contents("a") == ["Old words."]
        notes.index()
        assert notes.contents("a") == ["New words."]


class TestReturn:
    def test_a_hidden_document_that_comes_unchanged_is_shown_without_work(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        notes.set("a", hidden=True)
        assert notes.admit(document("a")) == runs.Counts(unchanged=1, restored=1)
        assert (notes.row("a")["hidden"], notes.items()) == (False, [])

    def test_a_hidden_document_that_comes_changed_is_shown_and_queued(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.set("a", hidden=True)
        assert notes.admit(document("a", "edited")) == runs.Counts(queued=1, restored=1)
        assert notes.row("a")["hidden"] is False

    def test_a_deleted_document_that_comes_back_is_indexed_anew(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        notes.admit_page(Page(cursor={}, deleted=("a",)))
        assert notes.contents("a") == []
        assert notes.admit(document("a")) == runs.Counts(queued=1, restored=1)
        notes.index()
        row = notes.row("a")
        assert (row["deleted"], row["hidden"], row["indexed_version"]) == (False, False, 2)
        assert notes.contents("a") == ["Some words."]


class TestDeletion:
    def test_what_the_source_says_is_gone_goes_with_all_it_had(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)), document("b"))
        notes.index()
        notes.admit(document("a", "edited"))
        run = notes.open_run()
        assert notes.admit_page(Page(cursor={}, deleted=("a",)), run=run).deleted == 1
        row = notes.row("a")
        assert (row["deleted"], row["hidden"], row["state"], row["chunk_count"]) == (True, True, "done", 0)
        for table in ("chunk", "chunk_stage", "document_body"):
            assert {r["document_id"] for r in notes.sql(f"select document_id from {table}")} <= {
                notes.id("b")
            }
        assert len(notes.run_items(outcome=None)) == 0

    def test_it_takes_the_work_from_whoever_has_it(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        claimed = notes.claim("a")
        notes.admit_page(Page(cursor={}, deleted=("a",)))
        with notes.database.tenant(notes.tenant) as connection:
            assert work.still_ours(connection, claimed) == []

    def test_unknown_and_already_deleted_ones_do_not_count(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        assert notes.admit_page(Page(cursor={}, deleted=("a", "never-seen"))).deleted == 1
        assert notes.admit_page(Page(cursor={}, deleted=("a",))).deleted == 0

    def test_its_dead_letter_is_resolved(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        with notes.database.tenant(notes.tenant) as connection:
            work.write_letters(connection, [notes.id("a")], code="E003", reason="poison")
        notes.admit_page(Page(cursor={}, deleted=("a",)))
        assert notes.dead_letters() == []

    def test_an_odd_name_is_found_under_the_name_it_was_stored_by(self, notes: SourceLedger) -> None:
        odd = "bad\udc80\x00name.md"
        notes.admit(document(odd))
        assert notes.admit_page(Page(cursor={}, deleted=(odd,))).deleted == 1


class TestCounts:
    def test_every_item_is_counted_under_one_heading(self, notes: SourceLedger) -> None:
        notes.admit(document("same"), document("dead"), document("hidden"))
        notes.index()
        notes.set("dead", state="dead")
        notes.set("hidden", hidden=True)
        run = notes.open_run()
        page = Page(
            cursor={},
            documents=tuple(document(i) for i in ("same", "dead", "hidden", "new")),
            failed=(problem("f"),),
            skipped=(problem("s"), problem("t")),
            deleted=("unknown",),
        )
        notes.admit_page(page, run=run)
        row = notes.run(run)
        assert (row.listed, row.unchanged, row.queued, row.skipped, row.failed) == (7, 2, 1, 2, 2)
        assert (row.restored, row.deleted) == (1, 0)
        assert [p["outcome"] for p in row.problems] == ["failed", "failed", "skipped", "skipped"]
        assert row.problems[1]["item"] == "dead"

    def test_a_page_met_twice_in_one_run_queues_its_documents_once(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        batch = tuple(starmap(document, [("a", "one"), ("b", "two")]))
        notes.admit(*batch, run=run)
        notes.admit(*batch, run=run)
        notes.index()
        notes.admit(*batch, run=run)
        row = notes.run(run)
        assert (row.queued, row.unchanged, row.listed) == (2, 0, 2)
        assert counts_add_up(notes, run)

    def test_a_document_that_changes_within_a_run_counts_once(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        for edition in ("one", "two", "three"):
            notes.admit(document("a", edition), run=run)
            notes.index()
        notes.close_run(run)
        row = notes.run(run)
        assert (row.queued, row.indexed, row.listed) == (1, 1, 1)
        assert notes.row("a")["indexed_version"] == 3
        assert notes.contents("a") == ["three"]

    def test_two_documents_of_one_page_with_one_id_are_one(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a", "first"), document("a", "second"), run=run)
        notes.index()
        assert notes.contents("a") == ["second"]
        assert counts_add_up(notes, run)

    def test_queued_ends_as_indexed_dead_or_superseded(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(*(document(i, i) for i in ("good", "dead", "gone", "renewed")), run=run)
        notes.index(notes.items("good"))
        claimed = notes.claim("dead")
        with notes.database.tenant(notes.tenant) as connection:
            work.fail(connection, claimed, claimed.ids, LeaseLost("x"), delay=0, dead=True)
        notes.admit_page(Page(cursor={}, deleted=("gone",)), run=run)
        with notes.database.tenant(notes.tenant) as connection:
            runs.finish_walk(connection, run)
            runs.fail(connection, run, "stopped here, so that another run may open")
        second = notes.open_run()
        notes.admit(document("renewed", "edited"), run=second)
        with notes.database.tenant(notes.tenant) as connection:
            found = runs.progress(connection, [run])[run]
        assert {k: found[k] for k in ("open", "indexed", "dead", "superseded")} == {
            "open": 0,
            "indexed": 1,
            "dead": 1,
            "superseded": 2,
        }
        assert notes.run(run).queued == 4

    def test_a_run_names_its_first_problems_and_counts_all(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        many = tuple(problem(f"p{n}") for n in range(runs.MOST_PROBLEMS - 1))
        notes.admit_page(Page(cursor={}, failed=many), run=run)
        notes.admit_page(Page(cursor={}, failed=many, skipped=(problem("last"),)), run=run)
        row = notes.run(run)
        assert (row.failed, row.skipped) == (2 * len(many), 1)
        assert len(row.problems) == runs.MOST_PROBLEMS
        assert row.problems[0]["item"] == "p0"


class TestOneTransaction:
    """The page and the cursor are one write, and only of the one who holds the sync."""

    def store(self, notes: SourceLedger, documents: Sequence[Document], token: object) -> None:
        run = notes.runs()[-1]["id"]
        with notes.database.tenant(notes.tenant) as connection:
            page = Page(cursor={"n": 1}, documents=tuple(documents))
            sources.renew(connection, notes.source, token, lease=LEASE, cursor=page.cursor)  # type: ignore[arg-type]
            runs.add(connection, run, admission.admit(connection, notes.where(run), page), cursor=page.cursor)
            if any(d.text == "explode" for d in documents):
                connection.execute(text("select 1 / 0"))

    def test_a_broken_transaction_keeps_neither(self, notes: SourceLedger) -> None:
        notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            token = sources.claim(connection, notes.source, lease=LEASE)
        with pytest.raises(Exception, match="DivisionByZero"):
            self.store(notes, [document("a", "explode")], token)
        assert notes.documents() == []
        assert notes.run_items() == []
        assert notes.sources.one()["cursor"] is None
        self.store(notes, [document("a")], token)
        assert notes.sources.one()["cursor"] == {"n": 1}
        assert notes.runs.one()["listed"] == 1

    def test_who_lost_the_sync_writes_nothing(self, notes: SourceLedger) -> None:
        notes.open_run()
        with pytest.raises(LeaseLost):
            self.store(notes, [document("a")], uuid4())
        assert notes.documents() == []
        assert notes.runs.one()["listed"] == 0


class TestOutdate:
    def test_settled_documents_of_another_pipeline_are_queued_with_the_text_at_hand(
        self, notes: SourceLedger
    ) -> None:
        notes.admit(document("a", "one"), document("dead", "two"), document("gone"))
        notes.index()
        notes.set("dead", state="dead")
        notes.admit_page(Page(cursor={}, deleted=("gone",)))
        run = notes.open_run()
        where = replace(notes.where(run), pipeline_version="test-1|new|m")
        with notes.database.tenant(notes.tenant) as connection:
            assert admission.outdate(connection, where) == 2
            assert admission.outdate(connection, where) == 0
        notes.index()
        row = notes.row("a")
        assert (row["indexed_version"], row["indexed_pipeline"]) == (2, "test-1|new|m")
        assert notes.contents("dead") == ["two"]
        assert notes.row("gone")["deleted"] is True

    def test_the_same_pipeline_changes_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        with notes.database.tenant(notes.tenant) as connection:
            assert admission.outdate(connection, notes.where(notes.open_run(), pipeline=PIPELINE)) == 0
