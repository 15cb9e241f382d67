"""Migrations may be run again, by two at once, and lead to what the code needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.errors import ConfigurationError, DocumentRejected
from pipeline.ledger import Item, Limits, Stage, audit, due_work, work
from tests.conftest import Addresses, with_database
from workers.local import embedded


@pytest.fixture
def empty(
    servers: embedded.Servers, pristine: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[str]:
    """The owner's address of a database without tables."""
    name = "empty_for_migrations"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} owner larder_owner")
    with superuser(name) as connection:
        connection.execute("create extension vector")
        connection.execute("grant create on schema public to larder_owner")
    yield with_database(servers.admin_url, name)
    with superuser("postgres") as connection:
        connection.execute(f"drop database {name} with (force)")


def shape(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("""
        select table_name, column_name, data_type from information_schema.columns
        where table_schema = 'public' order by 1, 2""").fetchall()


def current(url: str) -> str | None:
    engine = migrations.owner_engine(url)
    try:
        return migrations.current(engine)
    finally:
        engine.dispose()


def test_a_migrated_database_is_at_the_newest_revision(addresses: Addresses) -> None:
    assert current(addresses.admin) == migrations.NEWEST


def test_a_second_upgrade_changes_nothing(addresses: Addresses, omniscient: psycopg.Connection[Any]) -> None:
    before = shape(omniscient)
    assert migrations.upgrade(addresses.admin) == migrations.NEWEST
    assert shape(omniscient) == before
    assert len(before) > 100


def test_two_at_once_run_each_step_once(empty: str) -> None:
    assert current(empty) is None
    reached: list[str] = []
    threads = [threading.Thread(target=lambda: reached.append(migrations.upgrade(empty))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reached == [migrations.NEWEST] * 2
    assert current(empty) == migrations.NEWEST


def test_logins_are_given_to_the_two_roles_only(
    addresses: Addresses, servers: embedded.Servers, omniscient: psycopg.Connection[Any]
) -> None:
    before = omniscient.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone()
    migrations.give_logins(addresses.admin, {"postgres": "taken'over"})
    after = omniscient.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone()
    assert before == after


@pytest.mark.req("001-148")
def test_an_older_store_keeps_its_index_and_nothing_is_indexed_again(
    empty: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """Before revision 006 the model was part of each document's pipeline, and a document had one centroid."""
    migrations.upgrade(empty, to="004")
    with superuser("empty_for_migrations") as connection:
        connection.execute("""
            insert into tenant (id, name) select gen_random_uuid(), n from unnest(array['a', 'b']) n;
            insert into source (id, tenant_id, project_id, name, kind, pipeline_version)
                select gen_random_uuid(), id, id, 'docs', 'text', 'md-1|structure-1|m:3' from tenant;
            select open_search_index('x', 'm', 3, 'structure', 'p'), open_search_index('x', 'other', 3, 'structure', 'p');
            insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title,
                desired_hash, pipeline_version, indexed_version, indexed_pipeline, chunk_count, centroid)
                select gen_random_uuid(), tenant_id, id, id, 'e', 'text', 'reference', 't', 'h', 'md-1|structure-1|m:3',
                       2, 'md-1|structure-1|m:3', 5, '[1,2,3]' from source""")
        assert migrations.upgrade(empty) == migrations.NEWEST
        held = connection.execute("select index_id, version, chunk_count, centroid::text from index_document")
        assert held.fetchall() == [(1, 2, 5, "[1,2,3]")] * 2, "of both tenants, in the index of their model"
        rows = connection.execute("""
            select distinct pipeline_version, indexed_pipeline from document
            union select pipeline_version, pipeline_version from source""")
        assert rows.fetchall() == [("md-1|structure-1", "md-1|structure-1")]
        forced = connection.execute("""
            select bool_and(relforcerowsecurity) from pg_class
            where relname in ('document', 'source', 'index_document')""")
        assert forced.fetchone() == (True,)


@pytest.mark.req("001-116")
def test_an_older_audit_is_numbered_and_fits(
    empty: str, servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """Before revision 021 entries of all tenants had one row of numbers, with holes."""
    migrations.upgrade(empty, to="019")
    with superuser("empty_for_migrations") as connection:
        for n in (1, 2, 1, 1, 2):
            connection.execute(
                "select audit_append(%s, 'ann', 'clear', 'docs', '{\"n\": 1}')", (UUID(int=n),)
            )
            connection.execute("select nextval('audit_id_seq')")
        migrations.upgrade(empty)
        database = Database(with_database(servers.database_url, "empty_for_migrations"))
        for n, entries in ((1, 3), (2, 2)):
            with database.tenant(UUID(int=n)) as one:
                audit.append(one, UUID(int=n), "clear", "docs", by="bob")
                found = audit.verify(one)
            assert (found.entries, found.first, found.problems) == (entries + 1, 1, ())
        database.close()


def test_only_the_application_makes_temporary_tables(empty: str, servers: embedded.Servers) -> None:
    """It copies rows in through them; in front of a table of the same name they have misled others."""
    migrations.upgrade(empty)
    database = urlsplit(empty).path[1:]
    with psycopg.connect(with_database(servers.database_url, database)) as app:
        app.execute("create temp table mine (n int)")
    with (
        psycopg.connect(with_database(servers.control_url, database)) as control,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary"),
    ):
        control.execute("create temp table mine (n int)")


def test_an_older_store_with_a_run_under_way_and_a_release_is_brought_up_to_date(
    empty: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    migrations.upgrade(empty, to="013")
    with superuser("empty_for_migrations") as connection:
        connection.execute("""
            insert into tenant (id, name) values (gen_random_uuid(), 'a');
            insert into source (id, tenant_id, project_id, name, kind, held, released_until)
                select gen_random_uuid(), id, id, 'docs', 'text', 0, now() + interval '1 day' from tenant;
            insert into sync_run (tenant_id, source_id, state, trigger)
                select tenant_id, id, 'processing', 'schedule' from source""")
        assert migrations.upgrade(empty) == migrations.NEWEST
        again = (
            "insert into sync_run (tenant_id, source_id, trigger) select tenant_id, id, 'manual' from source"
        )
        connection.execute(again)
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(again)
        assert connection.execute("select released from source").fetchone() == (0,)


def test_work_on_another_index_goes_on_beside_a_worker_of_before(
    empty: str, servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """Before revision 041 attempts counted waits, too. What an old worker holds stays its own; it gives it back."""
    migrations.upgrade(empty, to="040")
    tenant, token = UUID(int=1), UUID(int=7)
    with superuser("empty_for_migrations") as connection:
        connection.execute("""
            insert into tenant (id, name) values ('00000000-0000-0000-0000-000000000001', 'a');
            insert into source (id, tenant_id, project_id, name, kind) select gen_random_uuid(), id, id, 'docs', 'text'
                from tenant;
            select open_search_index('x', 'm', 3, 'structure', 'p'),
                   begin_search_index('x', 'other', 3, 'structure', 'p', '');
            insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, state,
                desired_hash, pipeline_version, indexed_version)
                select gen_random_uuid(), tenant_id, id, id, e, 'text', 'reference', 't', 'done', 'h', 'p', 1
                from source, unnest(array['waits', 'dead', 'held']) e;
            insert into index_document (tenant_id, index_id, document_id, wanted, attempts, dead_version)
                select tenant_id, 2, id, 1, 7, case when external_id = 'dead' then 1 end from document""")
        claim = """
            update index_document x set lease_token = %s, lease_until = now() + interval '1 minute', crash_count = 1
            from document d where d.id = x.document_id and d.external_id = 'held'"""
        connection.execute(claim, (token,))
        assert migrations.upgrade(empty) == migrations.NEWEST
        rows = connection.execute("""
            select external_id, w.attempts, w.waits, w.dead from index_work w join document d on d.id = document_id
            order by 1""").fetchall()
        assert rows == [("dead", 7, 0, True), ("held", 0, 0, False), ("waits", 0, 0, False)]
        name = "empty_for_migrations"
        database = Database(
            with_database(servers.database_url, name), with_database(servers.control_url, name)
        )
        with database.control() as one:
            (batch,) = (b for b in due_work.choose_fills(one, Limits()) if b.index == 2)
        items = [Item(row[0], 1) for row in connection.execute("select id from document").fetchall()]
        with database.tenant(tenant) as one:
            claimed = work.claim(one, tenant, Stage.FETCHED, items, lease=60, index=2)
        assert claimed.ids == sorted(item.document_id for item in batch.items)
        assert len(claimed.ids) == 2, "not the dead one; the old worker's is filled twice with the same"
        given_back = connection.execute(
            """update index_document set lease_token = null, lease_until = null, enqueued_at = null, due_at = now(),
               crash_count = greatest(crash_count - 1, 0), attempts = attempts + 1 where lease_token = %s""",
            (token,),
        )
        assert given_back.rowcount == 1
        with database.control() as one:
            assert due_work.choose_fills(one, Limits()) == []
        database.close()


def test_what_waits_is_sent_by_turns_after_an_upgrade_beside_a_worker_of_before(
    empty: str, servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """Before revision 042 no document had a turn, and a worker of before gives none to what it admits and postpones."""
    migrations.upgrade(empty, to="041")
    with superuser("empty_for_migrations") as connection:
        connection.execute("""
            insert into tenant (id, name) values ('00000000-0000-0000-0000-000000000001', 'a');
            insert into source (id, tenant_id, project_id, name, kind) select gen_random_uuid(), id, id, 'docs', 'text'
                from tenant""")
        admit = """
            insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title,
                desired_hash, pipeline_version, stage, due_at, lease_token, lease_until, enqueued_at)
                select gen_random_uuid(), tenant_id, id, project_id, e, 'text', 'reference', 't', 'h', 'p', s, now() + d,
                       case when e = 'held' then '00000000-0000-0000-0000-000000000007'::uuid end,
                       case when e = 'held' then now() + interval '1 min' end, case when e = 'held' then now() end
                from source, (values (%s, %s, %s::interval)) v(e, s, d)"""
        for name, stage, due in (
            *(("cut", "chunked", "0"), ("embedded", "embedded", "0"), ("held", "fetched", "0")),
            *((f"new {n}", "fetched", "0") for n in range(9)),
            ("postponed", "fetched", "1 hour"),
        ):
            connection.execute(admit, (name, stage, due))
        assert migrations.upgrade(empty) == migrations.NEWEST
        name = "empty_for_migrations"
        database = Database(
            with_database(servers.database_url, name), with_database(servers.control_url, name)
        )

        def sent() -> list[tuple[str, int]]:
            """Stage and number of documents of each message."""
            with database.control() as one:
                pumped = due_work.pump_once(one, Limits())
            assert pumped is not None
            return sorted((batch.stage.value, len(batch.items)) for batch in pumped.batches)

        assert sent() == [("chunked", 1), ("embedded", 1), ("fetched", 9)]
        connection.execute(admit, ("admitted by the old worker", "fetched", "0"))
        assert sent() == [("fetched", 1)]
        postpone = """
            update document set lease_token = null, lease_until = null, enqueued_at = null, waits = waits + 1,
                due_at = now() + interval '1 hour' where lease_token is not null"""
        assert connection.execute(postpone).rowcount == 1
        assert sent() == []
        connection.execute("update index_work set due_at = now() where due_at > now()")
        assert sent() == [("fetched", 2)], "each once"
        database.close()


ADMITTED_BEFORE = """
    insert into document as d (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, desired_hash,
        pipeline_version, lane, turn)
        select %(id)s, tenant_id, id, project_id, %(id)s, 'text', 'reference', 't', 'h', 'p', 0, 0 from source
    on conflict (id) do update set desired_version = d.desired_version + 1, state = 'pending', stage = 'fetched',
        lane = 0, turn = 0, due_at = now(), enqueued_at = null, lease_token = null, lease_until = null"""
"""How a worker before revision 047 admits a document or a newer version of one."""
CLAIMED_BEFORE = """
    update document set lease_token = %(token)s, lease_until = now() + interval '1 min', enqueued_at = now(),
        crash_count = crash_count + 1
    where id = %(id)s and state = 'pending' and due_at <= now() and (lease_until is null or lease_until < now())"""
FINISHED_BEFORE = """
    update document set indexed_version = desired_version, stage = 'done', state = 'done', lease_token = null,
        lease_until = null, enqueued_at = null where lease_token = %(token)s"""
REMOVED_BEFORE = """
    update document set deleted = true, hidden = true, state = 'done', stage = 'done', lease_token = null,
        lease_until = null where id = %(id)s"""


class TestWorkersBeforeTheTableOfWork:
    """They keep their work in the columns of `document`, and know nothing of the table (revision 047)."""

    @pytest.fixture
    def old(
        self, empty: str, superuser: Callable[[str], psycopg.Connection[Any]]
    ) -> Iterator[psycopg.Connection[Any]]:
        migrations.upgrade(empty, to="046")
        with superuser("empty_for_migrations") as connection:
            connection.execute("""
                insert into tenant (id, name) values ('00000000-0000-0000-0000-000000000001', 'a');
                insert into source (id, tenant_id, project_id, name, kind)
                    select gen_random_uuid(), id, id, 'docs', 'text' from tenant""")
            yield connection

    @pytest.fixture
    def database(self, servers: embedded.Servers) -> Iterator[Database]:
        name = "empty_for_migrations"
        database = Database(
            with_database(servers.database_url, name), with_database(servers.control_url, name)
        )
        yield database
        database.close()

    def sent(self, database: Database) -> list[Item]:
        with database.control() as one:
            pumped = due_work.pump_once(one, Limits())
        assert pumped is not None
        return [item for batch in pumped.batches for item in batch.items]

    def claim(self, database: Database, items: Sequence[Item]) -> work.Claim:
        with database.tenant(UUID(int=1)) as one:
            return work.claim(one, UUID(int=1), Stage.FETCHED, items, lease=60)

    def test_what_one_works_on_stays_its_own_and_what_it_leaves_is_taken_over(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        finished, left = (
            {"id": UUID(int=2), "token": UUID(int=22)},
            {"id": UUID(int=3), "token": UUID(int=33)},
        )
        for one in (finished, left):
            old.execute(ADMITTED_BEFORE, one)
            assert old.execute(CLAIMED_BEFORE, one).rowcount == 1
        migrations.upgrade(empty)
        assert self.sent(database) == []
        assert old.execute(FINISHED_BEFORE, finished).rowcount == 1
        old.execute("update document set lease_until = now() - interval '1 s' where lease_token is not null")
        assert self.sent(database) == [Item(left["id"], 1)]
        assert old.execute(CLAIMED_BEFORE, left).rowcount == 0, "nobody takes it twice"
        assert old.execute(FINISHED_BEFORE, left).rowcount == 0, "it is no longer its own"
        assert self.claim(database, [Item(left["id"], 1), Item(finished["id"], 1)]).ids == [left["id"]]

    def test_what_one_admits_anew_is_worked_on_in_the_new_version_only(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        migrations.upgrade(empty)
        one = {"id": UUID(int=2), "token": UUID(int=22)}
        old.execute(ADMITTED_BEFORE, one)
        (item,) = self.sent(database)
        claim = self.claim(database, [item])
        old.execute(ADMITTED_BEFORE, one)
        with database.tenant(UUID(int=1)) as connection:
            assert work.still_ours(connection, claim) == [], "the text has changed"
        assert self.sent(database) == [Item(one["id"], 2)]
        assert self.claim(database, [item]).ids == []
        assert self.claim(database, [Item(one["id"], 2)]).ids == [one["id"]]

    def test_what_one_admits_anew_is_not_given_up_with_the_version_before(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        migrations.upgrade(empty)
        one = {"id": UUID(int=2), "token": UUID(int=22)}
        old.execute(ADMITTED_BEFORE, one)
        claim = self.claim(database, self.sent(database))
        old.execute(ADMITTED_BEFORE, one)
        with database.tenant(UUID(int=1)) as connection:
            work.fail(connection, claim, claim.ids, DocumentRejected("no"), delay=0, dead=True)
        assert old.execute("select state from document").fetchone() == ("pending",)
        assert self.sent(database) == [Item(one["id"], 2)]

    def test_what_one_makes_due_for_another_provider_is_left_alone(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        one = {"id": UUID(int=2), "token": UUID(int=22)}
        old.execute(ADMITTED_BEFORE, one)
        old.execute("update document set waits = 3")
        migrations.upgrade(empty)
        claim = self.claim(database, self.sent(database))
        assert next(iter(claim.documents.values())).waits == 3
        old.execute("""
            update document set due_at = now()
            where state = 'pending' and waits > 0 and due_at > now() and lease_token is null""")
        assert self.sent(database) == []
        with database.tenant(UUID(int=1)) as connection:
            assert work.still_ours(connection, claim) == claim.ids

    def test_what_one_removes_is_forgotten_by_whoever_claims_it(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        migrations.upgrade(empty)
        one = {"id": UUID(int=2)}
        old.execute(ADMITTED_BEFORE, one)
        items = self.sent(database)
        old.execute(REMOVED_BEFORE, one)
        assert self.claim(database, items).ids == []
        assert old.execute("select count(*) from index_work").fetchone() == (0,)

    def test_one_goes_on_after_the_way_back(
        self, old: psycopg.Connection[Any], empty: str, database: Database
    ) -> None:
        migrations.upgrade(empty)
        one = {"id": UUID(int=2), "token": UUID(int=22)}
        old.execute(ADMITTED_BEFORE, one)
        claim = self.claim(database, self.sent(database))
        with database.tenant(UUID(int=1)) as connection:
            work.advance(connection, claim, claim.ids, Stage.CHUNKED)
        migrations.downgrade(empty, to="046")
        assert old.execute("select stage, state from document").fetchall() == [("chunked", "pending")]
        assert old.execute(CLAIMED_BEFORE, one).rowcount == 1


def test_a_database_of_a_newer_larder_is_left_alone(
    addresses: Addresses, omniscient: psycopg.Connection[Any]
) -> None:
    omniscient.execute("update alembic_version set version_num = '998'")
    with pytest.raises(ConfigurationError, match="newer Larder"):
        migrations.upgrade(addresses.admin)
