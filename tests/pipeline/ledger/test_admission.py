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
from tests.pipeline.workshop import LEASE, PIPELINE, Workshop, document, paragraphs, problem


def counts_add_up(shop: Workshop, run: int) -> bool:
    row = shop.run(run)
    return row.listed == row.unchanged + row.queued + row.skipped + row.failed


class TestVerdicts:
    def test_a_new_document_waits_in_its_first_version(self, shop: Workshop) -> None:
        admitted = shop.admit(document("a", "Hello."))
        row = shop.row("a")
        assert admitted == runs.Counts(queued=1)
        assert (row["desired_version"], row["state"], row["stage"]) == (1, "pending", "fetched")
        assert (row["tenant_id"], row["project_id"]) == (shop.tenant, shop.project)
        assert shop.bodies.one()["body"] == "Hello."

    def test_of_two_documents_with_one_id_in_a_page_the_last_is_kept_and_the_other_named(
        self, shop: Workshop
    ) -> None:
        run = shop.open_run()
        admitted = shop.admit(
            document("a", "First."), document("a", "Second."), document("a", "Second."), run=run
        )
        assert admitted == runs.Counts(queued=1, failed=1)
        assert shop.bodies.one()["body"] == "Second."
        assert [p["item"] for p in shop.run(run).problems] == ["a"]

    @pytest.mark.req("002-011")
    def test_the_same_content_again_is_unchanged_once_it_is_indexed(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        assert shop.admit(document("a")) == runs.Counts(unchanged=1)
        assert shop.row("a")["desired_version"] == 1
        assert shop.items() == []

    @pytest.mark.req("002-011")
    def test_changed_content_is_the_same_document_in_its_next_version(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        assert shop.admit(document("a", "Other words.")).queued == 1
        row = shop.row("a")
        assert (row["desired_version"], row["indexed_version"], row["state"]) == (2, 1, "pending")
        assert len(shop.documents()) == 1
        assert shop.bodies.values("version", "body") == [(2, "Other words.")]

    def test_a_document_that_was_read_in_part_is_counted_and_named_each_time(self, shop: Workshop) -> None:
        noted = document(
            "a", metadata={"reading_note": "the header is not valid YAML at line 5; it was read line by line"}
        )
        assert shop.admit(noted) == runs.Counts(queued=1, noted=1)
        shop.index()
        run = shop.open_run()
        assert shop.admit(noted, document("b"), run=run).noted == 1
        row = shop.run(run)
        assert (row.listed, row.noted) == (2, 1)
        (problem,) = row.problems
        assert (problem["item"], problem["outcome"]) == ("a", "noted")
        assert problem["reason"] == "the header is not valid YAML at line 5; it was read line by line"

    def test_what_waits_already_keeps_its_version_and_joins_the_new_run(self, shop: Workshop) -> None:
        first, _ = shop.open_run(), shop.admit
        shop.admit(document("a"), run=first)
        second = shop.open_run()
        assert shop.admit(document("a"), run=second).queued == 1
        assert shop.row("a")["desired_version"] == 1
        outcomes = {r["run_id"]: r["outcome"] for r in shop.run_items()}
        assert outcomes == {first: "superseded", second: None}

    def test_a_dead_document_in_the_very_same_form_counts_as_failed(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.set("a", state="dead")
        assert shop.admit(document("a")) == runs.Counts(failed=1)
        assert shop.row("a")["state"] == "dead"

    @pytest.mark.parametrize("state", ["done", "dead"])
    def test_force_takes_settled_documents_again(self, shop: Workshop, state: str) -> None:
        shop.admit(document("a"))
        shop.set("a", state=state, stage="done", attempts=5, crash_count=2, last_error="x")
        assert shop.admit(document("a"), force=True).queued == 1
        row = shop.row("a")
        assert (row["desired_version"], row["state"], row["stage"]) == (2, "pending", "fetched")
        assert (row["attempts"], row["crash_count"], row["last_error"]) == (0, 0, None)

    def test_force_takes_a_document_once_per_run(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        run = shop.open_run(force=True)
        shop.admit(document("a"), run=run, force=True)
        shop.index()
        again = shop.admit(document("a"), run=run, force=True)
        assert again == runs.Counts()
        assert shop.row("a")["desired_version"] == 2

    @pytest.mark.parametrize("state", ["done", "dead"])
    def test_another_pipeline_makes_every_document_changed(self, shop: Workshop, state: str) -> None:
        shop.admit(document("a"))
        shop.set("a", state=state)
        assert shop.admit(document("a"), pipeline="test-1|other|m").queued == 1
        assert shop.row("a")["pipeline_version"] == "test-1|other|m"

    def test_a_preview_says_the_same_and_writes_nothing(self, shop: Workshop) -> None:
        shop.admit(document("same"), document("old"), document("dead"))
        shop.index()
        shop.set("dead", state="dead")
        shop.admit(document("waits"))
        run = shop.open_run()
        page = Page(
            cursor={},
            documents=(
                *tuple(document(i) for i in ("same", "dead", "waits", "new")),
                document("old", "edited"),
            ),
        )
        before = shop.documents()
        with shop.database.tenant(shop.tenant) as connection:
            verdicts = admission.verdicts(connection, shop.where(run), page)
        assert verdicts == {
            "same": "unchanged",
            "dead": "dead",
            "waits": "waiting",
            "new": "changed",
            "old": "changed",
        }
        assert shop.documents() == before


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
        self, shop: Workshop, change: dict[str, Any]
    ) -> None:
        shop.admit(document("a"))
        shop.index()
        assert shop.admit(document("a", **change)).queued == 1
        (name, value), row = next(iter(change.items())), shop.row("a")
        assert row[name] == (list(value) if isinstance(value, tuple) else value)

    def test_work_on_the_version_before_loses_its_token(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        claimed = shop.claim("a")
        assert claimed.ids == [shop.id("a")]
        shop.admit(document("a", "newer"))
        row = shop.row("a")
        assert (row["lease_token"], row["lease_until"], row["enqueued_at"]) == (None, None, None)
        with shop.database.tenant(shop.tenant) as connection:
            assert work.still_ours(connection, claimed) == []
            assert work.advance(connection, claimed, claimed.ids, Stage.CHUNKED) == []
        assert shop.row("a")["stage"] == "fetched"

    def test_what_was_staged_of_the_version_before_is_gone(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)))
        shop.indexer().chunk(shop.tenant, shop.items())
        assert len(shop.staged_chunks()) == 3
        shop.admit(document("a", "newer"))
        assert len(shop.staged_chunks()) == 0

    def test_the_old_version_stays_searchable_until_the_new_one_is_ready(self, shop: Workshop) -> None:
        shop.admit(document("a", "Old words."))
        shop.index()
        shop.admit(document("a", "New words."))
        assert shop.contents("a") == ["Old words."]
        shop.index()
        assert shop.contents("a") == ["New words."]


class TestReturn:
    def test_a_hidden_document_that_comes_unchanged_is_shown_without_work(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        shop.set("a", hidden=True)
        assert shop.admit(document("a")) == runs.Counts(unchanged=1, restored=1)
        assert (shop.row("a")["hidden"], shop.items()) == (False, [])

    def test_a_hidden_document_that_comes_changed_is_shown_and_queued(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.set("a", hidden=True)
        assert shop.admit(document("a", "edited")) == runs.Counts(queued=1, restored=1)
        assert shop.row("a")["hidden"] is False

    def test_a_deleted_document_that_comes_back_is_indexed_anew(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        shop.admit_page(Page(cursor={}, deleted=("a",)))
        assert shop.contents("a") == []
        assert shop.admit(document("a")) == runs.Counts(queued=1, restored=1)
        shop.index()
        row = shop.row("a")
        assert (row["deleted"], row["hidden"], row["indexed_version"]) == (False, False, 2)
        assert shop.contents("a") == ["Some words."]


class TestDeletion:
    def test_what_the_source_says_is_gone_goes_with_all_it_had(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)), document("b"))
        shop.index()
        shop.admit(document("a", "edited"))
        run = shop.open_run()
        assert shop.admit_page(Page(cursor={}, deleted=("a",)), run=run).deleted == 1
        row = shop.row("a")
        assert (row["deleted"], row["hidden"], row["state"], row["chunk_count"]) == (True, True, "done", 0)
        for table in ("chunk", "chunk_stage", "document_body"):
            assert {r["document_id"] for r in shop.sql(f"select document_id from {table}")} <= {shop.id("b")}
        assert len(shop.run_items(outcome=None)) == 0

    def test_it_takes_the_work_from_whoever_has_it(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        claimed = shop.claim("a")
        shop.admit_page(Page(cursor={}, deleted=("a",)))
        with shop.database.tenant(shop.tenant) as connection:
            assert work.still_ours(connection, claimed) == []

    def test_unknown_and_already_deleted_ones_do_not_count(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        assert shop.admit_page(Page(cursor={}, deleted=("a", "never-seen"))).deleted == 1
        assert shop.admit_page(Page(cursor={}, deleted=("a",))).deleted == 0

    def test_its_dead_letter_is_resolved(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        with shop.database.tenant(shop.tenant) as connection:
            work.write_letters(connection, [shop.id("a")], code="E003", reason="poison")
        shop.admit_page(Page(cursor={}, deleted=("a",)))
        assert shop.dead_letters() == []

    def test_an_odd_name_is_found_under_the_name_it_was_stored_by(self, shop: Workshop) -> None:
        odd = "bad\udc80\x00name.md"
        shop.admit(document(odd))
        assert shop.admit_page(Page(cursor={}, deleted=(odd,))).deleted == 1


class TestCounts:
    def test_every_item_is_counted_under_one_heading(self, shop: Workshop) -> None:
        shop.admit(document("same"), document("dead"), document("hidden"))
        shop.index()
        shop.set("dead", state="dead")
        shop.set("hidden", hidden=True)
        run = shop.open_run()
        page = Page(
            cursor={},
            documents=tuple(document(i) for i in ("same", "dead", "hidden", "new")),
            failed=(problem("f"),),
            skipped=(problem("s"), problem("t")),
            deleted=("unknown",),
        )
        shop.admit_page(page, run=run)
        row = shop.run(run)
        assert (row.listed, row.unchanged, row.queued, row.skipped, row.failed) == (7, 2, 1, 2, 2)
        assert (row.restored, row.deleted) == (1, 0)
        assert [p["outcome"] for p in row.problems] == ["failed", "failed", "skipped", "skipped"]
        assert row.problems[1]["item"] == "dead"

    def test_a_page_met_twice_in_one_run_queues_its_documents_once(self, shop: Workshop) -> None:
        run = shop.open_run()
        batch = tuple(starmap(document, [("a", "one"), ("b", "two")]))
        shop.admit(*batch, run=run)
        shop.admit(*batch, run=run)
        shop.index()
        shop.admit(*batch, run=run)
        row = shop.run(run)
        assert (row.queued, row.unchanged, row.listed) == (2, 0, 2)
        assert counts_add_up(shop, run)

    def test_a_document_that_changes_within_a_run_counts_once(self, shop: Workshop) -> None:
        run = shop.open_run()
        for edition in ("one", "two", "three"):
            shop.admit(document("a", edition), run=run)
            shop.index()
        shop.close_run(run)
        row = shop.run(run)
        assert (row.queued, row.indexed, row.listed) == (1, 1, 1)
        assert shop.row("a")["indexed_version"] == 3
        assert shop.contents("a") == ["three"]

    def test_two_documents_of_one_page_with_one_id_are_one(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a", "first"), document("a", "second"), run=run)
        shop.index()
        assert shop.contents("a") == ["second"]
        assert counts_add_up(shop, run)

    def test_queued_ends_as_indexed_dead_or_superseded(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(*(document(i, i) for i in ("good", "dead", "gone", "renewed")), run=run)
        shop.index(shop.items("good"))
        claimed = shop.claim("dead")
        with shop.database.tenant(shop.tenant) as connection:
            work.fail(connection, claimed, claimed.ids, LeaseLost("x"), delay=0, dead=True)
        shop.admit_page(Page(cursor={}, deleted=("gone",)), run=run)
        with shop.database.tenant(shop.tenant) as connection:
            runs.finish_walk(connection, run)
            runs.fail(connection, run, "stopped here, so that another run may open")
        second = shop.open_run()
        shop.admit(document("renewed", "edited"), run=second)
        with shop.database.tenant(shop.tenant) as connection:
            found = runs.progress(connection, [run])[run]
        assert {k: found[k] for k in ("open", "indexed", "dead", "superseded")} == {
            "open": 0,
            "indexed": 1,
            "dead": 1,
            "superseded": 2,
        }
        assert shop.run(run).queued == 4

    def test_a_run_names_its_first_problems_and_counts_all(self, shop: Workshop) -> None:
        run = shop.open_run()
        many = tuple(problem(f"p{n}") for n in range(runs.MOST_PROBLEMS - 1))
        shop.admit_page(Page(cursor={}, failed=many), run=run)
        shop.admit_page(Page(cursor={}, failed=many, skipped=(problem("last"),)), run=run)
        row = shop.run(run)
        assert (row.failed, row.skipped) == (2 * len(many), 1)
        assert len(row.problems) == runs.MOST_PROBLEMS
        assert row.problems[0]["item"] == "p0"


class TestOneTransaction:
    """The page and the cursor are one write, and only of the one who holds the sync."""

    def store(self, shop: Workshop, documents: Sequence[Document], token: object) -> None:
        run = shop.runs()[-1]["id"]
        with shop.database.tenant(shop.tenant) as connection:
            page = Page(cursor={"n": 1}, documents=tuple(documents))
            sources.renew(connection, shop.source, token, lease=LEASE, cursor=page.cursor)  # type: ignore[arg-type]
            runs.add(connection, run, admission.admit(connection, shop.where(run), page), cursor=page.cursor)
            if any(d.text == "explode" for d in documents):
                connection.execute(text("select 1 / 0"))

    def test_a_broken_transaction_keeps_neither(self, shop: Workshop) -> None:
        shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            token = sources.claim(connection, shop.source, lease=LEASE)
        with pytest.raises(Exception, match="DivisionByZero"):
            self.store(shop, [document("a", "explode")], token)
        assert shop.documents() == []
        assert shop.run_items() == []
        assert shop.sources.one()["cursor"] is None
        self.store(shop, [document("a")], token)
        assert shop.sources.one()["cursor"] == {"n": 1}
        assert shop.runs.one()["listed"] == 1

    def test_who_lost_the_sync_writes_nothing(self, shop: Workshop) -> None:
        shop.open_run()
        with pytest.raises(LeaseLost):
            self.store(shop, [document("a")], uuid4())
        assert shop.documents() == []
        assert shop.runs.one()["listed"] == 0


class TestOutdate:
    def test_settled_documents_of_another_pipeline_are_queued_with_the_text_at_hand(
        self, shop: Workshop
    ) -> None:
        shop.admit(document("a", "one"), document("dead", "two"), document("gone"))
        shop.index()
        shop.set("dead", state="dead")
        shop.admit_page(Page(cursor={}, deleted=("gone",)))
        run = shop.open_run()
        where = replace(shop.where(run), pipeline_version="test-1|new|m")
        with shop.database.tenant(shop.tenant) as connection:
            assert admission.outdate(connection, where) == 2
            assert admission.outdate(connection, where) == 0
        shop.index()
        row = shop.row("a")
        assert (row["indexed_version"], row["indexed_pipeline"]) == (2, "test-1|new|m")
        assert shop.contents("dead") == ["two"]
        assert shop.row("gone")["deleted"] is True

    def test_the_same_pipeline_changes_nothing(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        with shop.database.tenant(shop.tenant) as connection:
            assert admission.outdate(connection, shop.where(shop.open_run(), pipeline=PIPELINE)) == 0
