"""What the database itself refuses: another tenant's rows, texts to the control role, a changed audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pipeline.database.engine import Database
from pipeline.errors import StoreHindered
from pipeline.search.stores import outbox
from tests.conftest import Addresses
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs

WITHOUT_TENANT = {
    "alembic_version": "the schema's revision",
    "search_index": "models and sizes, the same for all",
    "worker": "processes of the installation",
    "canary": "when each queue was last served",
    "alert": "what is wrong with the installation; the control role alone reads it",
    "alert_message": "who is to be told of it; the control role alone reads it",
    "embedding_hold": "a configuration that the provider refuses, the same for all",
    "lane_clock": "the turn that is served, the same for all",
    "vector_store": "vector stores of the installation, the same for all",
    "tenant": "its own id is the tenant; row-level security all the same",
}
"""Tables that have no tenant_id, and why."""

UNIQUE_WITHOUT_TENANT = {
    "project_pkey": "id made from the tenant's id",
    "source_pkey": "id made from the tenant's id",
    "document_pkey": "id made from the source's id, which is made from the tenant's",
    "sync_run_pkey": "number given by the database",
    "dead_letter_pkey": "number given by the database",
    "enrichment_job_pkey": "random id",
    "clarifai_user_story_embeddings_pkey": "random id",
    "source_hint_pkey": "begins with the source's id",
    "source_event_pkey": "begins with the source's id",
    "sync_run_one_walk": "begins with the source's id",
    "run_item_pkey": "begins with the run's number",
    "walk_piece_pkey": "begins with the run's number",
    "document_body_pkey": "begins with the document's id",
    "chunk_stage_pkey": "begins with the document's id",
    "index_work_pkey": "begins with the document's id",
    "chunk_pkey": "an index of all tenants, then the document's id",
}
"""Unique keys that do not begin with tenant_id: a row of another tenant can never collide with one of these."""

SECRETS = {
    "document": ("title", "url", "tags", "metadata", "acl", "served_acl"),
    "index_document": ("centroid",),
    "document_body": ("body",),
    "source_hint": ("external_id",),
    "chunk": ("content", "context", "embedding", "lexemes"),
    "chunk_stage": ("content", "context"),
    "embedding_cache": ("vector", "hash"),
    "embedding_claim": ("hash",),
    "clarifai_user_story_embeddings": ("title", "user_story_text", "embedding"),
    "enrichment_job": ("request", "result"),
    "lexeme_stat": ("lexeme",),
    "feedback": ("query_hash", "item", "title", "project", "question", "given_by"),
    "audit": ("subject", "detail"),
    "action_collection": ("name",),
    "action_document": ("content", "metadata", "embedding"),
}
"""What the control role must never read."""

TENANTED = """
    select c.relname, c.relrowsecurity, c.relforcerowsecurity from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
    where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') order by 1"""


@dataclass(frozen=True)
class Two:
    """Two tenants with a row in every table, in one database."""

    ours: SourceLedger
    theirs: SourceLedger
    database: Database
    owner: str


@pytest.fixture(scope="module")
def two(shared_addresses: Addresses, shared_database: Database) -> Two:
    ours, theirs = (SourceLedger(shared_database, UUID(int=n), UUID(int=n + 10)) for n in (1, 2))
    with shared_database.control() as connection:
        outbox.register(connection, "v", preferred=False)
    for one in (ours, theirs):
        one.admit(document("a", paragraphs(2)), document("dead"))
        one.index(one.items("a"))
        claimed = one.claim("dead")
        for key in claimed.ids:
            one.documents.set({"id": key}, state="dead")
        one.admit(document("b", paragraphs(2)))
        one.indexer().chunk(one.tenant, one.items())
        fill_rest(one)
    return Two(ours=ours, theirs=theirs, database=shared_database, owner=shared_addresses.admin)


def fill_rest(notes: SourceLedger) -> None:
    """A row in each table that indexing itself does not fill."""
    tenant, doc = notes.tenant, notes.id("a")
    values = {"t": tenant, "p": notes.project, "d": doc, "s": notes.source, "i": uuid4()}
    for statement in (
        "insert into lexeme_stat values (:t, 1, 'word', 1)",
        "insert into embedding_claim values (:t, 'm', 'h', :i, now())",
        "insert into embedding_usage (tenant_id, day, provider, model, kind) values (:t, now(), 'p', 'm', 'query')",
        "insert into index_stat (tenant_id, index_id, chunks, mean_length) values (:t, 1, 1, 1)",
        "insert into feedback (tenant_id, document_id, query_hash, verdict) values (:t, :d, 'h', 'useful')",
        "insert into enrichment_job (id, tenant_id, project_id, request) values (:i, :t, :p, '{}')",
        "insert into vector_outbox (tenant_id, store, index_id, document_id, ord, lane) values (:t, 'v', 1, :d, 0, 1)",
        """insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts,
           crash_count) values (:t, :s, :d, 1, 'fetched', 'E003', 'x', 0, 0)""",
        "insert into walk_piece select id, tenant_id, 1, '{}' from sync_run limit 1",
        "insert into source_hint (tenant_id, source_id, external_id) values (:t, :s, 'x')",
        "insert into source_event (tenant_id, source_id, event_id) values (:t, :s, 'x')",
        "select audit_append(:t, 'me', 'look', 'thing', '{}')",
        "insert into action_collection (tenant_id, name, dimensions, model) values (:t, 'notes', 1, '')",
        """insert into action_document (tenant_id, collection, id, content, metadata, embedding)
           values (:t, 'notes', '1', 'x', '{}', '[1]')""",
        """insert into clarifai_user_story_embeddings (user_story_id, title, user_story_text, source_agent,
           embedding, model) values ('1', 't', 'x', 'a', '[1,2,3]', 'm')""",
    ):
        needed = {k: v for k, v in values.items() if f":{k}" in statement.replace("::", "")}
        notes.sql(statement, **needed)


def tenanted(connection: psycopg.Connection[Any]) -> list[tuple[str, bool, bool]]:
    return connection.execute(TENANTED).fetchall()


@pytest.fixture(scope="module")
def tables(owner: psycopg.Connection[Any]) -> list[str]:
    """Tables with rows of tenants, as the catalogue has them: a new one is among them, and needs a row in `two`."""
    names = [name for name, _, _ in tenanted(owner) if not name.startswith("chunk_") or name == "chunk_stage"]
    assert {"document", "chunk", "embedding_cache", "enrichment_job", *AUDIT, *FIGURES, *SECRETS} <= {*names}
    return names


@pytest.fixture(scope="module")
def owner(two: Two) -> Iterator[psycopg.Connection[Any]]:
    """The owner of the tables, who is bound by row-level security like everybody."""
    with psycopg.connect(two.owner, autocommit=True) as connection:
        yield connection


class TestTheSchema:
    def test_every_table_with_tenants_has_row_level_security_in_force(
        self, owner: psycopg.Connection[Any]
    ) -> None:
        tables = tenanted(owner)
        assert len(tables) >= 17
        assert "chunk_1" in {name for name, _, _ in tables}
        assert [name for name, enabled, forced in tables if not (enabled and forced)] == []

    def test_every_other_table_has_a_reason(self, owner: psycopg.Connection[Any]) -> None:
        every = {
            r[0]
            for r in owner.execute(
                "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')"
            )
        }
        assert every - {name for name, _, _ in tenanted(owner)} == set(WITHOUT_TENANT)

    def test_tenants_are_rows_of_themselves_only(self, owner: psycopg.Connection[Any]) -> None:
        query = "select relrowsecurity and relforcerowsecurity from pg_class where oid = 'tenant'::regclass"
        assert owner.execute(query).fetchone() == (True,)

    def test_every_unique_key_begins_with_the_tenant_or_has_a_reason(
        self, owner: psycopg.Connection[Any]
    ) -> None:
        """A key without the tenant tells one tenant, by a conflict, what another holds."""
        rows = owner.execute("""
            select i.relname, pg_get_indexdef(x.indexrelid, 1, true) from pg_index x
            join pg_class i on i.oid = x.indexrelid join pg_class c on c.oid = x.indrelid
            join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
            where x.indisunique and c.relnamespace = 'public'::regnamespace and not c.relispartition""")
        others = {name for name, first in rows if first != "tenant_id"}
        assert others == set(UNIQUE_WITHOUT_TENANT)

    @pytest.mark.parametrize("role", ["larder_app", "larder_control", "larder_owner"])
    def test_nobody_is_above_it(self, owner: psycopg.Connection[Any], role: str) -> None:
        query = "select rolsuper, rolbypassrls from pg_roles where rolname = %s"
        assert owner.execute(query, (role,)).fetchone() == (False, False)

    def test_the_application_is_no_member_of_a_stronger_role(self, owner: psycopg.Connection[Any]) -> None:
        rows = owner.execute("""
            select 1 from pg_auth_members m join pg_roles r on r.oid = m.member
            where r.rolname in ('larder_app', 'larder_control')""")
        assert rows.fetchall() == []


def visible(database: Database, tenant: UUID | None, table: str) -> set[UUID]:
    statement = text(f"select distinct tenant_id from {table}")
    if tenant is None:
        with database.app.begin() as connection:
            return {row[0] for row in connection.execute(statement)}
    with database.tenant(tenant) as connection:
        return {row[0] for row in connection.execute(statement)}


VIEWS = (("searchable_document", "document", "id"), ("searchable_chunk", "chunk", "document_id"))
AUDIT = ("audit", "audit_head")
"""Only functions of the owner write these."""
FIGURES = ("document_count", "index_work_count", "run_count")
"""Tenants only add to these."""
CALLED = """
    select p.proname, array(select format_type(t, null) from unnest(p.proargtypes) t) from pg_proc p
    where p.pronamespace = 'public'::regnamespace and p.prorettype <> 'trigger'::regtype
      and has_function_privilege('larder_app', p.oid, 'execute')
      and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')"""
"""Functions that the application may call, with the types of their arguments."""
Superuser = Callable[[str], psycopg.Connection[Any]]


def act_for(connection: Connection, tenant: UUID) -> None:
    connection.execute(text("select set_config('app.tenant', :t, true)"), {"t": str(tenant)})


def everything(connection: Connection, tenant: UUID, tables: list[str]) -> list[tuple[str, int, str]]:
    """Table, number of rows and a hash over them, of all that a tenant has."""
    act_for(connection, tenant)
    row = "select count(*), coalesce(md5(string_agg(cast(t as text), '' order by cast(t as text))), '') from {} t"
    return [(name, *connection.execute(text(row.format(name))).one()) for name in tables]


@pytest.mark.req("001-118", "001-121")
class TestTenants:
    def test_each_sees_its_own_rows_only(self, two: Two, tables: list[str]) -> None:
        for one in (two.ours, two.theirs):
            seen = {table: visible(two.database, one.tenant, table) for table in tables}
            assert seen == {table: {one.tenant} for table in tables}

    def test_without_a_tenant_there_is_nothing(self, two: Two, tables: list[str]) -> None:
        for tenant in (None, uuid4()):
            seen = {table: visible(two.database, tenant, table) for table in tables}
            assert seen == {table: set() for table in tables}

    def test_rows_cannot_be_given_to_another(self, two: Two, tables: list[str]) -> None:
        for table in sorted({*tables} - {*AUDIT, *FIGURES}):
            with pytest.raises(StoreHindered, match="row-level security"):
                two.ours.sql(f"update {table} set tenant_id = :t", t=two.theirs.tenant)

    def test_rows_of_another_are_neither_changed_nor_removed(self, two: Two, tables: list[str]) -> None:
        where = {"t": two.theirs.tenant}
        # Of the others nobody may delete a row, be it his own.
        for table in sorted({*tables} - {*AUDIT, "change_stamp", *FIGURES}):
            with two.database.tenant(two.ours.tenant) as connection:
                for statement in (f"update {table} set tenant_id = :t", f"delete from {table}"):
                    changed = connection.execute(text(f"{statement} where tenant_id = :t"), where)
                    assert changed.rowcount == 0, statement

    def test_rows_cannot_be_made_for_another(self, two: Two) -> None:
        with pytest.raises(StoreHindered, match="row-level security"):
            two.ours.sql(
                "insert into project (id, tenant_id, name) values (gen_random_uuid(), :t, 'x')",
                t=two.theirs.tenant,
            )

    def test_a_function_neither_tells_nor_changes_what_is_of_another(
        self,
        two: Two,
        owner: psycopg.Connection[Any],
        tables: list[str],
        superuser: Superuser,
        shared_addresses: Addresses,
    ) -> None:
        with superuser(shared_addresses.name) as every:
            every.execute(
                "update audit set at = at - interval '1000 days'"
            )  # as old as entries that are removed
        called = owner.execute(CALLED).fetchall()
        assert {"audit_append", "audit_prune", "current_tenant", "open_search_index"} <= {
            n for n, _ in called
        }
        given = {"uuid": f"'{two.theirs.tenant}'", "integer": "1", "text": "'x'", "jsonb": "'{}'"}
        for name, types in called:
            with two.database.app.connect() as connection, connection.begin() as transaction:
                before = everything(connection, two.theirs.tenant, tables)
                act_for(connection, two.ours.tenant)
                with suppress(DBAPIError), connection.begin_nested():
                    said = connection.execute(
                        text(f"select {name}({', '.join(map(given.__getitem__, types))})")
                    )
                    assert str(two.theirs.tenant) not in str(said.scalar()), name
                assert everything(connection, two.theirs.tenant, tables) == before, name
                transaction.rollback()

    def test_the_partition_is_no_way_round(self, two: Two) -> None:
        with pytest.raises(StoreHindered, match="permission denied"):
            two.ours.sql("select * from chunk_1")

    def test_the_tenant_does_not_leak_to_the_pools_next_user(self, two: Two) -> None:
        for _ in range(3):
            assert two.ours.sql("select * from document")
            with two.database.app.begin() as connection:
                assert connection.execute(text("select count(*) from document")).scalar() == 0

    def test_the_views_that_searches_read_show_each_its_own(self, two: Two) -> None:
        for view, table, key in VIEWS:
            for one in (two.ours, two.theirs):
                seen = {row[key] for row in one.sql(f"select {key} from {view}")}
                assert seen == {row[key] for row in one.sql(f"select {key} from {table}")} != set()
                assert set(two.database.fetch(one.tenant, f"select {key} from {view}", {})) == {
                    (i,) for i in seen
                }
            with two.database.query_engine.connect() as asked:
                assert asked.exec_driver_sql(f"select * from {view}").all() == []
            with (
                pytest.raises(StoreHindered, match="permission denied"),
                two.database.control() as connection,
            ):
                connection.execute(text(f"select * from {view}"))

    def test_a_view_that_filters_read_shows_no_text(self, two: Two) -> None:
        with pytest.raises(StoreHindered, match="does not exist"):
            two.ours.sql("select title from searchable_document")

    def test_a_tenant_sees_itself_only(self, two: Two) -> None:
        assert [r["id"] for r in two.ours.sql("select id from tenant")] == [two.ours.tenant]

    def test_the_owner_is_bound_too(self, owner: psycopg.Connection[Any], tables: list[str]) -> None:
        for table in (*tables, "tenant", "chunk_1"):
            assert owner.execute(f"select count(*) from {table}").fetchone() == (0,), table


class TestTheControlRole:
    @pytest.mark.parametrize(("table", "column"), [(t, c) for t, cs in SECRETS.items() for c in cs])
    def test_it_reads_no_text(self, two: Two, table: str, column: str) -> None:
        with pytest.raises(StoreHindered, match="permission denied"), two.database.control() as connection:
            connection.execute(text(f"select {column} from {table}"))

    def test_it_reads_no_text_through_the_view(self, two: Two) -> None:
        with pytest.raises(StoreHindered, match="permission denied"), two.database.control() as connection:
            connection.execute(text("select * from indexing_state"))

    @pytest.mark.parametrize("table", ["document", "source", "sync_run", "run_item", "enrichment_job"])
    def test_it_sees_the_ledger_of_all(self, two: Two, table: str) -> None:
        with two.database.control() as connection:
            found = {r[0] for r in connection.execute(text(f"select distinct tenant_id from {table}"))}
        assert {two.ours.tenant, two.theirs.tenant} <= found

    def test_it_cannot_move_a_document_to_another_tenant(self, two: Two) -> None:
        with pytest.raises(StoreHindered, match="permission denied"), two.database.control() as connection:
            connection.execute(text("update document set tenant_id = :t"), {"t": two.ours.tenant})


class TestTheAudit:
    @pytest.mark.parametrize(
        "statement",
        [
            "update audit set actor = 'x'",
            "delete from audit",
            "truncate audit",
            "insert into audit select * from audit",
            "update audit_head set seq = 0",
            "delete from audit_head",
            "insert into audit_head select gen_random_uuid(), 0, ''",
        ],
    )
    def test_it_cannot_be_changed_by_the_application(self, two: Two, statement: str) -> None:
        with pytest.raises(StoreHindered, match="permission denied"):
            two.ours.sql(statement)

    def test_each_entry_holds_the_hash_of_the_one_before(self, two: Two) -> None:
        for n in range(3):
            two.ours.sql("select audit_append(:t, 'me', 'do', :s, '{}')", t=two.ours.tenant, s=str(n))
        rows = two.ours.audit()
        assert [r["prev_hash"] for r in rows] == ["", *(r["hash"] for r in rows[:-1])]


@pytest.mark.req("001-071", "001-072")
class TestTheStateView:
    def test_it_has_the_columns_that_were_asked_for(self, two: Two) -> None:
        rows = two.ours.sql("select * from indexing_state order by id")
        assert list(rows[0]) == [
            *(
                "id",
                "source_path",
                "source_type",
                "last_indexed",
                "content_hash",
                "chunk_count",
                "vector_ids",
            ),
            *("status", "error_message", "retry_count", "metadata"),
        ]
        (done,) = (r for r in rows if r["source_path"] == "a")
        assert (done["chunk_count"], len(done["vector_ids"]), done["status"]) == (2, 2, "indexed")

    def test_it_respects_the_tenant(self, two: Two) -> None:
        for one in (two.ours, two.theirs):
            ids = {r["id"] for r in one.sql("select id from indexing_state")}
            assert ids == {r["number"] for r in one.sql("select number from document")}
        with two.database.app.begin() as connection:
            assert connection.execute(text("select count(*) from indexing_state")).scalar() == 0

    def test_it_tells_the_four_states(self, notes: SourceLedger) -> None:
        notes.admit(*(document(i) for i in ("indexed", "outdated", "failed", "gone")))
        notes.index()
        notes.admit(document("outdated", "edited"), document("pending", metadata={"source_path": "p/x.md"}))
        notes.set("failed", state="dead", last_error="why", attempts=2, crash_count=1)
        notes.set("gone", deleted=True)
        rows = notes.sql("select * from indexing_state")
        found = {r["source_path"]: r["status"] for r in rows}
        assert found == {
            "indexed": "indexed",
            "outdated": "outdated",
            "failed": "failed",
            "p/x.md": "pending",
        }
        (failed,) = (r for r in rows if r["status"] == "failed")
        assert (failed["error_message"], failed["retry_count"]) == ("why", 3)
