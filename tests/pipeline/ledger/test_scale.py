"""What must not grow with the number of documents: looks of the pump and the status, transactions, leftovers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, text

from pipeline.database.engine import Database
from pipeline.documents import Page
from pipeline.errors import DocumentRejected
from pipeline.ledger import (
    Item,
    Limits,
    Stage,
    admission,
    due_work,
    overview,
    runs,
    search_indexes,
    upkeep,
    work,
)
from pipeline.search import term_statistics
from pipeline.search.chunk_store import indexes
from tests.ledger import Ledger, ago, of_connection
from tests.pipeline.second_index import LIMITS, SecondIndex
from tests.pipeline.source_ledger import SourceLedger, document, problem

MANY = 3000
WIDE = ("document", "run_item", "index_document", "index_work")
"""Tables with a row per document."""


@pytest.fixture
def notes(database: Database) -> SourceLedger:
    return SourceLedger(database, uuid4(), uuid4())


@pytest.fixture
def crowded(notes: SourceLedger, omniscient: psycopg.Connection[Any]) -> SourceLedger:
    """A source with many documents in two indexes, each in a run, half of them waiting."""
    run = notes.open_run()
    notes.admit(document("first"), run=run)
    notes.index()
    SecondIndex(notes)
    omniscient.execute(
        """
        insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, metadata,
                              desired_hash, pipeline_version, state, indexed_version, chunk_count, due_at)
            select gen_random_uuid(), tenant_id, id, project_id, 'page ' || n, 'text', 'reference', 'A title',
                   jsonb_build_object('words', repeat('b', 300)), 'h', 'p',
                   case when n %% 2 = 0 then 'pending' else 'done' end,
                   case when n %% 2 = 1 then 1 end, 2, timestamptz '9999-01-01 00:00+00'
            from source, generate_series(1, %s) n""",
        (MANY,),
    )
    omniscient.execute("""
        insert into index_work (tenant_id, document_id, source_id, version, stage, turn)
            select tenant_id, id, source_id, 1, case when number % 4 = 0 then 'chunked' else 'fetched' end, number / 8 * 8
            from document where state = 'pending'""")
    omniscient.execute(
        "insert into run_item (run_id, tenant_id, document_id, version) select %s, tenant_id, id, 1 from document"
        " on conflict do nothing",
        (run,),
    )
    omniscient.execute("""
        insert into index_document (tenant_id, index_id, document_id, version, chunk_count)
            select tenant_id, i.id, d.id, 1, 2 from document d, search_index i where d.state = 'done'
            on conflict do nothing""")
    omniscient.execute("vacuum analyze")
    return notes


def build_due(connection: Connection) -> object:
    index = indexes(connection)[0]
    return term_statistics.build_due(connection, index, exact_below=1, build_at=10**9)


LOOKS: dict[str, Callable[[Connection], object]] = {
    "the pump": lambda c: due_work.pump_once(c, Limits(in_flight=20)),
    "the pump while nothing may be embedded": lambda c: due_work.pump_once(
        c, Limits(in_flight=20), embed=due_work.EmbedRoom(documents=0)
    ),
    "what is to be embedded next": lambda c: due_work.choose_embeds(
        c, Limits(in_flight=20), due_work.EmbedRoom()
    ),
    "runs that are settled": runs.list_settled,
    "what an index lacks": lambda c: due_work.choose_fills(c, LIMITS),
    "tenants whose words are to be counted": upkeep.tenants_to_count,
    "indexes to be built": build_due,
    "sources on the screen": overview.sources,
    "work on the screen": lambda c: overview.backlog(c, resend=60),
    "the index on the screen": overview.index,
    "what waits for the embedder": overview.waiting,
    "progress of a run": lambda c: runs.progress(c, [1]),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_reads_no_table_of_documents_whole(crowded: SourceLedger, look: str) -> None:
    with crowded.database.control() as connection:
        due_work.choose_fills(connection, LIMITS)  # all were compared
    assert_few_are_read(crowded.database.control, crowded.database.controller, LOOKS[look])


@pytest.mark.parametrize("look", ["work on the screen", "what waits for the embedder"])
def test_what_waits_for_other_indexes_is_not_read_for_the_screen(
    crowded: SourceLedger, omniscient: psycopg.Connection[Any], look: str
) -> None:
    omniscient.execute("update index_work set stage = 'chunked'")
    omniscient.execute("""
        insert into index_work (tenant_id, document_id, index_id, source_id, version, lane, turn, due_at, last_error, waits)
            select tenant_id, id, 2, source_id, 1, 9, 0, now() - interval '1 day', 'held', 1
            from document where state = 'done'""")
    omniscient.execute("vacuum analyze index_work")
    assert_few_are_read(crowded.database.control, crowded.database.controller, LOOKS[look])


def test_a_message_that_comes_twice_costs_no_look_at_all_work(crowded: SourceLedger) -> None:
    item, database = Item(uuid4(), 1), crowded.database
    assert_few_are_read(
        partial(database.tenant, crowded.tenant),
        database.app,
        lambda c: work.claim(c, crowded.tenant, Stage.FETCHED, [item], lease=60),
    )


def assert_few_are_read(
    connect: Callable[[], AbstractContextManager[Connection]],
    engine: Engine,
    look: Callable[[Connection], object],
) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    with connect() as connection:
        connection.execute(text("select"))  # a transaction begins with its first statement
        event.listen(engine, "before_cursor_execute", note)
        try:
            look(connection)
        finally:
            event.remove(engine, "before_cursor_execute", note)
    assert asked
    for statement, values in asked:
        with connect() as connection:
            explained = f"explain (analyze, format json) {statement}"
            ((plans,),) = connection.exec_driver_sql(explained, values or None)
            connection.rollback()
        read = sum(map(rows_read, plans))
        assert read < MANY / 10, statement


def rows_read(node: dict[str, Any]) -> float:
    """How many rows of the WIDE tables a node of a plan and those below it look at."""
    below = [node["Plan"]] if "Plan" in node else node.get("Plans", [])
    read = 0.0
    if node.get("Relation Name") in WIDE and "Scan" in node["Node Type"]:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        read = max(rows, node.get("Rows Removed by Index Recheck", 0)) * node["Actual Loops"]
    return read + sum(map(rows_read, below))


def test_what_follows_a_first_page_is_planned_by_what_came(
    notes: SourceLedger, omniscient: psycopg.Connection[Any]
) -> None:
    omniscient.execute("alter table document set (autovacuum_enabled = off)")
    notes.admit(*(document(f"page {n}", "The text.") for n in range(600)), run=notes.open_run())
    held = text("explain select from document where id = any(:ids) order by id for no key update")

    def plan() -> str:
        values = {"ids": [notes.id(f"page {n}") for n in range(32)]}
        with notes.database.tenant(notes.tenant) as connection:
            return "\n".join(connection.execute(held, values).scalars())

    assert "document_pkey" not in plan(), "it reads all rows of the tenant"
    with notes.database.control() as connection:
        due_work.pump_once(connection, Limits())
    assert "document_pkey" in plan()


def true_figures(sql: psycopg.Connection[Any]) -> tuple[list[Any], ...]:
    documents = sql.execute("""
        select source_id, state, stage, hidden, count(*), sum(chunk_count) from document where not deleted
        group by 1, 2, 3, 4 order by 1, 2, 3, 4""")
    items = sql.execute(
        "select run_id, outcome, count(*), sum(chunks) from run_item group by 1, 2 order by 1, 2"
    )
    work = sql.execute(
        "select index_id, stage, count(*) from index_work where not dead group by 1, 2 order by 1, 2"
    )
    return documents.fetchall(), items.fetchall(), work.fetchall()


def kept_figures(sql: psycopg.Connection[Any]) -> tuple[list[Any], ...]:
    documents = sql.execute("""
        select source_id, state, stage, hidden, sum(documents), sum(chunks) from document_count
        group by 1, 2, 3, 4 having sum(documents) <> 0 order by 1, 2, 3, 4""")
    items = sql.execute("""
        select run_id, outcome, sum(items), sum(chunks) from run_count
        group by 1, 2 having sum(items) <> 0 order by 1, 2""")
    work = sql.execute("""
        select index_id, stage, sum(items) from index_work_count
        group by 1, 2 having sum(items) <> 0 order by 1, 2""")
    return documents.fetchall(), items.fetchall(), work.fetchall()


def test_figures_are_those_of_the_rows_whatever_happens_to_them(
    notes: SourceLedger, omniscient: psycopg.Connection[Any], ledger: Ledger
) -> None:
    def agree() -> None:
        assert kept_figures(omniscient) == true_figures(omniscient)
        with notes.database.control() as connection:
            runs.compact_counts(connection)
        assert kept_figures(omniscient) == true_figures(omniscient)

    run = notes.open_run()
    notes.admit(*(document(name, f"The text of {name}.") for name in "abcdef"), run=run)
    agree()
    notes.index()
    agree()
    notes.admit(document("a", "edited"), run=notes.open_run())
    notes.set("b", hidden=True)
    notes.set("c", state="dead")
    notes.admit_page(Page(cursor={}, deleted=("d",)))
    agree()
    for name in ("a", "d", "e"):
        ledger.documents.clear(name)
    ledger.runs.clear(run)
    agree()
    assert omniscient.execute("select count(*) from run_count where run_id = %s", (run,)).fetchone() == (0,)
    with notes.database.control() as connection:
        of_connection(connection).documents.clear()
    agree()


def test_an_index_gets_what_became_searchable_without_another_look_at_all(notes: SourceLedger) -> None:
    notes.admit(document("a", "one"), document("b", "two"))
    notes.index()
    second_index = SecondIndex(notes)
    second_index.fill()
    assert second_index.due() == []
    assert notes.indexes.one(status="building")["walked_at"] is not None
    notes.admit(document("b", "three"), document("c", "four"))
    notes.index()
    (due,) = second_index.due()
    assert {item.document_id for item in due.items} == {notes.id("b"), notes.id("c")}


def test_what_nobody_noted_is_found_when_all_are_checked(notes: SourceLedger, ledger: Ledger) -> None:
    notes.admit(document("a", "one"))
    notes.index()
    second_index = SecondIndex(notes)
    second_index.fill()
    second_index.due()
    ledger.indexed.set(second_index.index.id, version=0)
    assert second_index.due() == []
    with notes.database.control() as connection:
        search_indexes.restart_check(connection, second_index.index.id)
    assert len(second_index.due()) == 1


def test_documents_are_noted_for_a_new_index_some_at_a_time(
    notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes.admit(*(document(name, f"The text of {name}.") for name in "abcde"))
    notes.index()
    second_index = SecondIndex(notes)
    monkeypatch.setattr(work, "_ENQUEUE_SLICE", text(str(work._ENQUEUE_SLICE).replace("5000", "2")))
    found: list[int] = []
    for _ in range(4):
        due = second_index.due()
        found.append(sum(len(one.items) for one in due))
        for one in due:
            second_index.filler().fill(one.tenant_id, one.items)
    assert (found, second_index.progress().missing) == ([2, 2, 1, 0], 0)


def test_whatever_names_a_document_is_found_by_it(omniscient: psycopg.Connection[Any]) -> None:
    """Else each document that goes reads the other table whole."""
    bare = omniscient.execute("""
        select c.conrelid::regclass::text from pg_constraint c
        where c.contype = 'f' and c.confrelid = 'document'::regclass
          and not exists (select from pg_index i where i.indrelid = c.conrelid and i.indpred is null
                          and i.indkey[0] = c.conkey[1])""")
    assert bare.fetchall() == []


def trim(database: Database, table: str) -> bool:
    with database.control() as connection:
        return upkeep.trim(connection, table, runs_days=30, dead_days=30, answers_hours=1)


def test_old_rows_go_in_small_transactions_tombstones_that_were_never_searchable_too(
    notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes.admit(*(document(name) for name in "abc"), document("young"), document("living"))
    notes.admit_page(Page(cursor={}, deleted=("a", "b", "c", "young")))
    for name in ("a", "b", "c", "living"):
        notes.set(name, first_seen_at=ago(days=31))
    monkeypatch.setattr(upkeep, "TRIMMED", 2)
    assert trim(notes.database, "document")
    assert len(notes.documents()) == 3
    assert not trim(notes.database, "document")
    assert notes.documents.values("external_id") == ["living", "young"]


def test_letters_of_versions_that_were_replaced_are_settled_and_go(notes: SourceLedger) -> None:
    for text_ in ("one", "two", "three"):
        notes.admit(document("a", text_))
        claimed = notes.claim("a")
        with notes.database.tenant(notes.tenant) as connection:
            work.fail(connection, claimed, claimed.ids, DocumentRejected("x"), delay=0, dead=True)
    assert notes.dead.values("version", "resolution") == [
        (1, "replaced"),
        (2, "replaced"),
        (3, None),
    ]
    for letter in notes.dead():
        if letter["resolved_at"]:
            notes.dead.set(letter["id"], resolved_at=ago(days=31))
    trim(notes.database, "dead_letter")
    assert len(notes.dead()) == 1


def test_documents_of_another_pipeline_are_queued_some_at_a_time(
    notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes.admit(*(document(name, f"The text of {name}.") for name in "abcde"))
    notes.index()
    monkeypatch.setattr(admission, "OUTDATED", 2)
    where = notes.where(notes.open_run(), pipeline="test-1|new|m")
    queued = []
    for _ in range(4):
        with notes.database.tenant(notes.tenant) as connection:
            queued.append(admission.outdate(connection, where))
    assert queued == [2, 2, 1, 0]


def test_of_scheduled_runs_that_only_leave_out_the_same_item_the_newest_stays(notes: SourceLedger) -> None:
    ids = []
    for name in ("broken", "broken", "another", "another"):
        ids.append(notes.open_run(trigger="schedule"))
        notes.admit_page(Page(cursor={}, failed=(problem(name),)), run=ids[-1])
        notes.close_run(ids[-1])
    assert [row["id"] for row in notes.runs()] == [ids[1], ids[3]]


@pytest.mark.parametrize(
    ("allowed", "chunks", "keyword", "vector"),
    [
        ("64MB", 1, "256MB", "64MB"),
        ("64MB", 102_400, "256MB", "108800kB"),  # 1,088 bytes for each vector of 32 numbers
        ("64MB", 2_000_000, "256MB", "1GB"),
        ("2GB", 1, "2GB", "2GB"),
    ],
)
def test_indexes_are_built_with_the_memory_that_they_need_or_what_the_server_allows(
    notes: SourceLedger,
    omniscient: psycopg.Connection[Any],
    allowed: str,
    chunks: int,
    keyword: str,
    vector: str,
) -> None:
    """A graph that does not fit is finished on disk, many times more slowly; a parallel build clears what it may take."""
    notes.admit(document("a", "one"))
    notes.index()
    notes.set("a", chunk_count=chunks)
    omniscient.execute("create table seen (memory text); grant insert on seen to public")
    omniscient.execute("""
        create function note() returns event_trigger language plpgsql as
            $$ begin insert into public.seen values (current_setting('maintenance_work_mem')); end $$""")
    omniscient.execute(
        "create event trigger note on ddl_command_start when tag in ('CREATE INDEX') execute function note()"
    )
    for of_words in (True, False):
        with notes.database.control() as connection:
            connection.execute(text(f"set local maintenance_work_mem = '{allowed}'"))
            term_statistics.build(connection, indexes(connection)[0], keyword=of_words, vector=not of_words)
    assert [row[0] for row in omniscient.execute("select memory from seen")] == [keyword, vector]


@pytest.mark.parametrize(("minutes", "due"), [(10, False), (60, True)])
def test_words_of_many_chunks_are_not_counted_after_each_change(
    notes: SourceLedger, ledger: Ledger, minutes: int, due: bool
) -> None:
    """Two million are counted once in half an hour; a run does not wait for that."""
    notes.admit(document("a", "one"))
    notes.index()
    with notes.database.tenant(notes.tenant) as connection:
        term_statistics.refresh(connection, notes.tenant, 1)
    ledger.statistics.set(chunks=2_000_000, refreshed_at=ago(minutes=minutes))
    run = notes.open_run()
    notes.admit(document("a", "two"), run=run)
    notes.index()
    with notes.database.tenant(notes.tenant) as connection:
        runs.finish_walk(connection, run)
    with notes.database.control() as connection:
        (settled,) = runs.list_settled(connection)
        assert (settled.id, settled.changed, settled.uncounted) == (run, True, due)
        assert upkeep.tenants_to_count(connection) == [notes.tenant] * due


def test_words_of_many_more_chunks_are_counted_at_once(notes: SourceLedger, ledger: Ledger) -> None:
    notes.admit(document("a", "one"))
    notes.index()
    with notes.database.tenant(notes.tenant) as connection:
        term_statistics.refresh(connection, notes.tenant, 1)
    ledger.statistics.set(chunks=20_000, refreshed_at=ago(seconds=1))
    for chunks, due in ((70_000, False), (90_000, True)):
        notes.set("a", chunk_count=chunks)
        with notes.database.control() as connection:
            assert upkeep.tenants_to_count(connection) == [notes.tenant] * due
