"""The audit: a chain per tenant without holes, in which every kind of damage is seen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.errors import StoreHindered
from pipeline.ledger import audit
from pipeline.ledger.audit import AuditLog, Chain
from tests.conftest import Addresses

pytestmark = pytest.mark.req("001-116")
SQL = psycopg.Connection[Any]

ANEW = """
do $$
declare
    entry audit;
    last  text;
begin
    for entry in select * from audit where tenant_id = '{tenant}' order by seq loop
        last := coalesce(last, entry.prev_hash);
        update audit set prev_hash = last, hash = encode(sha256(convert_to(jsonb_build_array(last, tenant_id, seq,
                extract(epoch from at), actor, action, subject, detail)::text, 'UTF8')), 'hex')
            where tenant_id = entry.tenant_id and seq = entry.seq returning hash into last;
    end loop;
    update audit_head set hash = last where tenant_id = '{tenant}';
end $$"""
"""What somebody does who may do everything and knows how: all hashes fit again, those of the head too."""


@pytest.fixture
def owner(
    shared_addresses: Addresses, superuser: Callable[[str], SQL], shared_database: Database
) -> Iterator[SQL]:
    """Somebody whom nothing binds."""
    with superuser(shared_addresses.name) as connection:
        yield connection


class Book:
    """A tenant's chain, written by the application and damaged by the owner."""

    def __init__(self, database: Database, owner: SQL, entries: int = 0) -> None:
        self.database = database
        self.owner = owner
        self.tenant = uuid4()
        for n in range(1, entries + 1):
            self.note(f"thing {n}")

    def note(self, subject: str, by: str = "ann") -> None:
        with self.database.tenant(self.tenant) as connection:
            audit.append(connection, self.tenant, "look", subject, {"a": 1, "b": [None, "ä"]}, by=by)

    def verify(self, noted: str | None = None) -> Chain:
        with self.database.tenant(self.tenant) as connection:
            return audit.verify(connection, noted)

    def problems(self, noted: str | None = None) -> list[str]:
        return [one.problem for one in self.verify(noted).problems]

    def rows(self, columns: str = "seq") -> list[Any]:
        return self.owner.execute(
            f"select {columns} from audit where tenant_id = %s order by seq", (self.tenant,)
        ).fetchall()

    def damage(self, *statements: str) -> None:
        for one in statements:
            own = f"tenant_id = '{self.tenant}'"
            self.owner.execute(one.replace("[own]", own).replace("{tenant}", str(self.tenant)))

    def age(self, days: int, *, after: int) -> None:
        """Let all entries but the last `after` be so old, and the chain fit."""
        old = f"update audit set at = at - interval '{days} days' where [own] and seq <= "
        self.damage(old + str(self.rows()[-1][0] - after), ANEW)

    def prune(self, days: int) -> None:
        while self.prune_some(days):
            assert self.problems() == [], "in between, too"

    def prune_some(self, days: int) -> bool:
        with self.database.tenant(self.tenant) as connection:
            return audit.prune(connection, days=days)


@pytest.fixture
def book(shared_database: Database, owner: SQL) -> Book:
    """Six entries."""
    return Book(shared_database, owner, 6)


# Writing ------------------------------------------------------------------------------------------


def test_eight_writers_at_once_leave_no_hole_and_a_chain_that_fits(
    shared_database: Database, owner: SQL
) -> None:
    book = Book(shared_database, owner)

    def write(name: int) -> None:
        for n in range(200):
            book.note(f"{n}", by=f"writer {name}")

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(8)))
    assert [seq for (seq,) in book.rows()] == list(range(1, 1601))
    found = book.verify()
    assert (found.entries, found.first, found.problems) == (1600, 1, ())
    assert (found.head,) == book.rows("hash")[-1]
    for writer in range(8):
        own = [subject for subject, by in book.rows("subject, actor") if by == f"writer {writer}"]
        assert own == [str(n) for n in range(200)], "each in its own order"


def test_an_entry_of_a_transaction_that_is_rolled_back_leaves_no_hole(book: Book) -> None:
    with book.database.tenant(book.tenant) as connection:
        audit.append(connection, book.tenant, "look", "x", by="ann")
        connection.rollback()
    book.note("thing 7")
    assert book.rows("seq, subject")[-1] == (7, "thing 7")
    assert book.problems() == []


def test_tenants_do_not_wait_for_each_other(shared_database: Database, owner: SQL) -> None:
    slow, quick = Book(shared_database, owner), Book(shared_database, owner)
    with shared_database.tenant(slow.tenant) as connection:
        audit.append(connection, slow.tenant, "clear", "everything", by="ann")
        quick.note("meanwhile")
    assert (len(slow.rows()), len(quick.rows())) == (1, 1)


def test_nobody_writes_into_the_chain_of_another(book: Book) -> None:
    before = book.rows("hash")
    for way in (book.database.tenant(uuid4()), book.database.control(), book.database.control(uuid4())):
        with pytest.raises(StoreHindered, match="row-level security"), way as connection:
            audit.append(connection, book.tenant, "look", "x", by="ann")
    assert book.rows("hash") == before


def test_the_control_role_notes_what_it_does_and_reads_nothing(book: Book) -> None:
    with book.database.control(book.tenant) as connection:
        audit.append(connection, book.tenant, "reindex", "search index 2", by="ann")
    assert book.rows("action")[-1] == ("reindex",)
    assert book.problems() == []
    for table in ("audit", "audit_head"):
        with (
            pytest.raises(StoreHindered, match="permission denied"),
            book.database.control(book.tenant) as connection,
        ):
            connection.execute(text(f"select * from {table}"))


def test_texts_that_the_database_cannot_hold_are_noted_without_what_it_cannot(book: Book) -> None:
    with book.database.tenant(book.tenant) as connection:
        audit.append(
            connection, book.tenant, "look", "a\x00b\ud800", {"c\x00": "\udfff", "n": 1e400}, by="\x00"
        )
    assert book.rows("subject, detail, actor")[-1] == ("ab?", {"c": "?", "n": None}, "")
    assert book.problems() == []


# Damage -------------------------------------------------------------------------------------------

DAMAGE: dict[str, tuple[list[str], list[str]]] = {
    **{
        f"{column} changed": (
            [f"update audit set {column} = {value} where [own] and seq = 3"],
            ["entry 3 was changed"],
        )
        for column, value in {
            "at": "at + interval '1 microsecond'",
            "actor": "'bob'",
            "action": "'clear'",
            "subject": "subject || ' '",
            "detail": """'{"a": 1, "b": [null, "a"]}'""",
        }.items()
    },
    "hash changed": (
        ["update audit set hash = 'x' where [own] and seq = 3"],
        ["entry 3 was changed", "entry 4 does not follow on 3: one of them was changed or put in"],
    ),
    "changed, and its hash made to fit": (
        [
            "update audit set actor = 'bob' where [own] and seq = 3",
            "create temp table kept as select * from audit where [own] and seq <> 3",
            ANEW,
            "update audit a set prev_hash = k.prev_hash, hash = k.hash from kept k where (a.tenant_id, a.seq) = (k.tenant_id, k.seq)",
            "update audit_head h set hash = (select hash from kept where seq = 6) where [own]",
            "drop table kept",
        ],
        ["entry 4 does not follow on 3: one of them was changed or put in"],
    ),
    "taken out": (["delete from audit where [own] and seq = 3"], ["entry 3 is missing"]),
    "several taken out": (["delete from audit where [own] and seq in (3, 4)"], ["entry 3 is missing"]),
    "first taken out": (["delete from audit where [own] and seq = 1"], ["entry 1 is missing"]),
    "last taken out": (
        ["delete from audit where [own] and seq = 6"],
        ["entry 6 is missing, and all up to 6"],
    ),
    "end cut": (["delete from audit where [own] and seq > 2"], ["entry 3 is missing, and all up to 6"]),
    "all taken out": (["delete from audit where [own]"], ["entry 1 is missing, and all up to 6"]),
    "exchanged": (
        ["update audit set seq = case seq when 2 then -4 else -2 end where [own] and seq in (2, 4)",
         "update audit set seq = -seq where [own] and seq < 0"],
        ["entry 2 was changed"],
    ),
    "put in at the end": (
        ["insert into audit select tenant_id, at, actor, action, subject, detail, hash, 'x', 7 from audit where [own] and seq = 6"],
        ["entry 7 was changed", "entry 7 was put in at the end"],
    ),
    "put in between, and numbered anew": (
        ["update audit set seq = -seq - 1 where [own] and seq > 2",
         "update audit set seq = -seq where [own] and seq < 0",
         "insert into audit select tenant_id, at, actor, action, subject, detail, hash, 'x', 3 from audit where [own] and seq = 2"],
        ["entry 3 was changed"],
    ),
    "taken out, and numbered anew": (
        ["delete from audit where [own] and seq = 3", "update audit set seq = seq - 1 where [own] and seq = 4",
         "update audit set seq = 4 where [own] and seq = 5", "update audit set seq = 5 where [own] and seq = 6",
         "update audit_head set seq = 5 where [own]"],
        ["entry 3 was changed"],
    ),
    "head changed": (
        ["update audit_head set hash = 'x' where [own]"],
        ["entry 6 is another one than was written"],
    ),
    "head taken out": (["delete from audit_head where [own]"], ["entry 1 was put in at the end"]),
    "pruning made up": (
        ["delete from audit where [own] and seq = 1",
         "update audit set action = 'audit.prune', detail = '{\"through\": 1}' where [own] and seq = 6"],
        ["entry 6 was changed", "entry 2 does not follow on 1"],
    ),
    "pruning made unreadable": (
        ["update audit set action = 'audit.prune', detail = '{\"through\": \"1e9\"}' where [own] and seq = 6"],
        ["entry 0 is missing"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_seen_and_the_entry_named(book: Book, kind: str) -> None:
    statements, said = DAMAGE[kind]
    assert book.problems() == []
    book.damage(*statements)
    found = book.problems()
    assert [one for one in said if not any(one in problem for problem in found)] == [], found


def test_a_chain_that_was_written_anew_fits_but_not_with_the_noted_head(book: Book) -> None:
    noted = book.verify().head
    book.note("thing 7")
    assert book.problems(noted) == [], "what comes later changes nothing before it"
    book.damage("update audit set actor = 'bob' where [own] and seq = 3", ANEW)
    assert book.problems() == [], "nothing inside can tell"
    assert len(book.problems(noted)) == 1


def test_an_end_that_was_cut_together_with_the_head_is_missed_by_the_noted_one(book: Book) -> None:
    noted = book.verify().head
    book.damage(
        "delete from audit where [own] and seq > 4", "update audit_head set seq = 4 where [own]", ANEW
    )
    assert book.problems() == []
    assert "no entry has the noted hash" in book.problems(noted)[0]


def test_each_tenant_has_a_chain_of_its_own(book: Book) -> None:
    other = Book(book.database, book.owner, 2)
    book.damage("delete from audit where [own] and seq = 3")
    assert (other.problems(), other.verify().entries) == ([], 2)
    assert Book(book.database, book.owner).verify() == Chain(entries=0, first=0, head="", problems=())


# Pruning ------------------------------------------------------------------------------------------


def test_old_entries_go_and_the_chain_still_fits(book: Book) -> None:
    book.age(402, after=2)
    noted = book.rows("hash")[3][0]
    book.prune(400)
    assert book.rows("seq, action") == [(5, "look"), (6, "look"), (7, "audit.prune")]
    assert book.problems(noted) == [], "the last that went is still proved"
    book.prune(400)
    assert len(book.rows()) == 3, "nothing is old any more"
    book.age(402, after=1)
    book.prune(400)
    assert book.rows("seq, action") == [(7, "audit.prune"), (8, "audit.prune")]
    assert book.verify().first == 7
    assert book.problems() == []
    book.damage("delete from audit where [own] and seq = 7")
    assert book.problems() == ["entry 7 is missing"], "what went after it was not pruned"


def test_when_all_are_old_the_note_of_it_remains(book: Book) -> None:
    book.age(402, after=0)
    book.prune(400)
    assert book.rows("seq, detail ->> 'through'") == [(7, "6")]
    assert book.problems() == []


def test_many_go_in_parts_and_nobody_who_notes_something_waits(book: Book) -> None:
    book.damage(
        """insert into audit (tenant_id, seq, at, actor, action, subject, detail, prev_hash, hash)
           select '{tenant}', n, clock_timestamp(), 'ann', 'look', 'x', '{}', '', '' from generate_series(7, 12000) n""",
        "update audit_head set seq = 12000 where [own]",
    )
    book.age(402, after=1)
    assert book.prune_some(400)
    assert len(book.rows()) == 12_001, "the note of it first"
    left = []
    for _ in range(3):
        with book.database.tenant(book.tenant) as connection:
            assert audit.prune(connection, days=400)
            book.note("meanwhile")  # while what is deleted is not committed
            assert not book.prune_some(400), "one at a time"
        left.append(len(book.rows()))
        assert book.problems() == []
    assert left == [7_002, 2_003, 5]
    assert not book.prune_some(400)


def test_a_note_of_a_pruning_that_was_made_up_removes_nothing_young(book: Book) -> None:
    book.age(402, after=4)
    with book.database.tenant(book.tenant) as connection:
        audit.append(connection, book.tenant, "audit.prune", "all", {"through": 6}, by="upkeep")
    book.prune(400)
    assert [seq for (seq,) in book.rows()] == [3, 4, 5, 6, 7]


def test_it_is_pruned_once_a_day_and_never_within_thirty_days(book: Book) -> None:
    book.age(29, after=0)
    book.prune(0)
    assert len(book.rows()) == 6
    book.age(1, after=0)
    book.prune(1)
    assert len(book.rows()) == 6, "a day of them has not come together"
    Book(book.database, book.owner).prune(400)


# Searches -----------------------------------------------------------------------------------------


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_searches_are_written_in_their_order_with_a_hundred_characters(
    shared_database: Database, owner: SQL
) -> None:
    one, other, log = Book(shared_database, owner), Book(shared_database, owner), AuditLog(shared_database)
    for n in range(20):
        log.search(one.tenant, f"{n} " + "ä" * 200, n, by="ann")
    log.search(other.tenant, "kilns", 0, by="bob")
    log.flush()
    rows = one.rows("actor, action, subject, detail")
    assert rows == [("ann", "rag_search", f"{n} {'ä' * 200}"[:100], {"resultsCount": n}) for n in range(20)]
    assert other.rows("actor, subject") == [("bob", "kilns")]
    assert (one.problems(), other.problems()) == ([], [])


def test_whoever_searches_does_not_wait_for_the_audit(
    shared_database: Database,
    owner: SQL,
    told: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody holds the chain, as an administrator's long transaction does."""
    book, log = Book(shared_database, owner, 1), AuditLog(shared_database)
    with shared_database.tenant(book.tenant) as connection:
        audit.append(connection, book.tenant, "clear", "everything", by="ann")
        begun = time.monotonic()
        monkeypatch.setattr(audit, "MOST_WAITING", 300)
        for _ in range(800):
            log.search(book.tenant, "the secret question", 1, by="ann")
        assert time.monotonic() - begun < 5
    log.flush()
    assert book.problems() == []
    lost = [line for line in told() if "too many wait" in line]
    assert len(book.rows()) + len(lost) == 802, "each is written, or the log tells"
    assert lost
    assert not any("secret" in line for line in told())


def test_a_database_that_takes_nothing_is_told_in_the_log_without_the_question(
    addresses: Addresses, superuser: Callable[[str], SQL], told: Callable[[], list[str]]
) -> None:
    with superuser("postgres") as connection:
        connection.execute(f"alter database {addresses.name} set default_transaction_read_only = on")
    database = Database(addresses.app)
    log = AuditLog(database)
    log.search(uuid4(), "the secret question", 1, by="ann")
    log.flush()
    database.close()
    (said,) = told()
    assert said.startswith("1 entry was not written to the audit: the database cannot do this now: ")
    assert said.endswith("in a read-only transaction (25006)")


def test_without_a_database_the_log_tells(told: Callable[[], list[str]]) -> None:
    database = Database("postgresql://nobody:hidden@127.0.0.1:9/none")
    log = AuditLog(database)
    log.search(UUID(int=1), "the secret question", 1, by="ann")
    log.flush()
    assert len(told()) == 1
    assert told()[0].startswith("1 entry was not written to the audit: ")
    assert not {"secret", "hidden"} & set(told()[0].split())


def test_many_threads_search_at_once(shared_database: Database, owner: SQL) -> None:
    book, log = Book(shared_database, owner), AuditLog(shared_database)
    with ThreadPoolExecutor(8) as askers:
        list(askers.map(lambda n: log.search(book.tenant, f"{n}", 1, by="ann"), range(800)))
    log.flush()
    assert (book.verify().entries, book.problems()) == (800, [])
