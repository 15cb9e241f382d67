"""Functions that act as the owner run no code of their callers, and the owner gets no rights beyond its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.conftest import Addresses
from tests.pipeline.source_ledger import SourceLedger, document

OURS = """
    select p.oid::regprocedure::text, array(select format_type(t, null) from unnest(p.proargtypes) t)
    from pg_proc p where p.pronamespace = 'public'::regnamespace and {} and not exists (
        select from pg_depend d where d.objid = p.oid and d.deptype = 'e') order by 1"""
"""Functions of ours by name, with the types of their arguments; none of an extension."""
TABLES = """
    select c.relname, string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '),
           string_agg(format('null::%s as %I', format_type(a.atttypid, a.atttypmod), a.attname), ', ')
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition group by 1"""
"""Name, columns with their types, and a row of nulls in the same columns."""
ARGUMENTS = {
    "integer": "1",
    "bigint": "1",
    "text": "'building'",
    "uuid": "gen_random_uuid()",
    "jsonb": "'{}'",
    "boolean": "true",
}
CARELESS = """
    set role larder_owner;
    create function careless() returns void language plpgsql security definer set search_path = public as
        'begin insert into search_index select * from search_index; end';
    grant execute on function careless() to larder_app; reset role"""
"""A function of the owner that says neither whose table it means nor that the temporary schema comes last."""
CODE = """
    create function pg_temp.{}() returns {} language plpgsql as $$
    begin
        if current_user <> session_user then raise exception 'this ran as %', current_user; end if;
        return null;
    end $$"""


def as_tables(tables: list[tuple[str, str, str]]) -> Iterator[str]:
    """Tables of the caller by the names of ours, with a trigger."""
    yield CODE.format("told", "trigger")
    for name, columns, _ in tables:
        yield f"create temp table {name} ({columns}); grant all on {name} to public"
        yield f"create trigger t before insert or update or delete on {name} execute function pg_temp.told()"


def as_views(tables: list[tuple[str, str, str]]) -> Iterator[str]:
    """Views of the caller by the names of our tables, with a function that decides about their rows."""
    yield CODE.format("told", "boolean")
    for name, _, nulls in tables:
        yield f"create temp view {name} as select {nulls} where pg_temp.told() offset 0; grant all on {name} to public"


def attacked(url: str, statements: list[str], tables: list[tuple[str, str, str]]) -> set[str]:
    """Who else than the caller ran the caller's code, while these statements ran."""
    ran = set()
    for stand_ins in (as_tables, as_views):
        with psycopg.connect(url, autocommit=True) as caller:
            for statement in stand_ins(tables):
                caller.execute(statement)
            for statement in statements:
                try:
                    caller.execute(statement)
                except psycopg.Error as error:
                    if "this ran as" in str(error):
                        ran.add(str(error.diag.message_primary).rpartition(" ")[2])
    return ran


def call_of(function: str, types: list[str]) -> list[str]:
    return [f"select {function.partition('(')[0]}({', '.join(ARGUMENTS[t] for t in types)})"]


@pytest.fixture
def tables(omniscient: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    omniscient.execute("select open_search_index('x', 'm', 1, 'structure', 'p')")
    return omniscient.execute(TABLES).fetchall()


def test_no_function_of_the_owner_runs_code_of_its_caller(
    addresses: Addresses, omniscient: psycopg.Connection[Any], tables: list[tuple[str, str, str]]
) -> None:
    functions = omniscient.execute(OURS.format("p.prosecdef")).fetchall()
    assert len(functions) >= 6
    for function, types in functions:
        callers = [
            url
            for role, url in (("larder_app", addresses.app), ("larder_control", addresses.control))
            if omniscient.execute(
                "select has_function_privilege(%s, %s, 'execute')", (role, function)
            ).fetchone()
            == (True,)
        ]
        assert callers, function
        for url in callers:
            assert attacked(url, call_of(function, types), tables) == set(), function
        # Nor with the path that leaves the temporary schema in front: the names say their schema.
        omniscient.execute(f"alter function {function} set search_path = public")
        assert attacked(callers[0], call_of(function, types), tables) == set(), function
    omniscient.execute(CARELESS)
    assert attacked(addresses.app, ["select careless()"], tables) == {"larder_owner"}, (
        "what is replayed bites"
    )


@pytest.mark.parametrize("path", ["public, pg_temp", "public"])
def test_rows_that_go_with_another_one_take_no_code_of_whoever_removes_it_along(
    addresses: Addresses,
    omniscient: psycopg.Connection[Any],
    tables: list[tuple[str, str, str]],
    alone: SourceLedger,
    path: str,
) -> None:
    """They are removed by the owner, who from PostgreSQL 18 on also runs the triggers of that."""
    alone.admit(document("a"))
    triggers = omniscient.execute(OURS.format("p.prorettype = 'trigger'::regtype")).fetchall()
    assert len(triggers) >= 3
    for function, _ in triggers:
        omniscient.execute(f"alter function {function} set search_path = {path}")
    remove = [
        f"delete from public.{table}" for table in ("run_item", "sync_run", "document", "source", "project")
    ]
    as_tenant = f"select set_config('app.tenant', '{alone.tenant}', false)"
    for statement in remove:
        assert attacked(addresses.app, ["begin", as_tenant, statement, "rollback"], tables) == set(), (
            statement
        )


def test_every_function_means_tables_of_ours(omniscient: psycopg.Connection[Any]) -> None:
    """By its path, and by each name: triggers run with the path of whoever changes a row."""
    written = "p.prolang = (select oid from pg_language where lanname = 'plpgsql')"
    wrong = f"{written} and not coalesce('search_path=public, pg_temp' = any(p.proconfig), false)"
    assert len(omniscient.execute(OURS.format(written)).fetchall()) >= 12
    assert omniscient.execute(OURS.format(wrong)).fetchall() == []
    tables = "|".join(name for (name, _, _) in omniscient.execute(TABLES).fetchall())
    bare = rf"p.prosrc ~ '\m(from|into|update|join|table|analyze|like|on)\s+({tables})\M'"
    assert omniscient.execute(OURS.format(f"{written} and {bare}")).fetchall() == []


def test_not_everybody_may_call_a_function_of_ours(omniscient: psycopg.Connection[Any]) -> None:
    assert (
        omniscient.execute(OURS.format("has_function_privilege('public', p.oid, 'execute')")).fetchall() == []
    )


def test_the_owner_gets_no_role_but_the_one_that_shows_its_views(
    addresses: Addresses, omniscient: psycopg.Connection[Any]
) -> None:
    roles = [name for (name,) in omniscient.execute("select rolname from pg_roles order by 1").fetchall()]
    got = set()
    with psycopg.connect(addresses.admin, autocommit=True) as owner:
        for role in roles:
            with suppress(psycopg.Error), owner.transaction(force_rollback=True):
                owner.execute(f'grant "{role}" to current_user')
                got.add(role)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("create role larder_owners_own")
    assert got == {"larder_reader"}, "whose views migrations change"
