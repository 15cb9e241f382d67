"""The table of stories: its columns, what is stored once, what is found, what is removed, and whose it is."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipeline import stories
from pipeline.database import migrations
from pipeline.database.engine import Database, ServerTimeouts
from pipeline.errors import ConfigurationError, RequestRejected, StoreRejected
from pipeline.stories import (
    StoryMemory,
    UserStoryEmbedding,
    delete_stories_by_source,
    get_story_count,
    init_vector_extension,
    search_similar_stories,
    store,
    store_user_stories_batch,
    store_user_story,
    use,
)
from pipeline.stories.store import Base, build_index, stored_texts_of, stories_of_other_models, story_stats
from tests.conftest import Addresses, with_database
from tests.pipeline.stories.storyteller import NORTH, Pointing, angle, remembering, story
from workers.local import embedded

TABLE = "clarifai_user_story_embeddings"
COLUMNS = {
    "id": "character varying(64) not null",
    "user_story_id": "character varying(20) not null",
    "title": "character varying(500) not null",
    "user_story_text": "text not null",
    "acceptance_criteria": "text[]",
    "description": "text",
    "requirement_id": "character varying(20)",
    "requirement_text": "text",
    "tags": "text[]",
    "priority": "character varying(20)",
    "tshirt_size": "character varying(5)",
    "confidence_score": "double precision",
    "source_agent": "character varying(50) not null",
    "source_doc_id": "character varying(64)",
    "embedding": "vector not null",
    "created_at": "timestamp without time zone",
    "user_rating": "integer",
    "was_edited": "boolean",
}
"""As the document gives them, but for the length of the vector, which is the model's; ours are two more."""


@pytest.fixture
def memory(shared_database: Database) -> StoryMemory:
    return remembering(shared_database, Pointing())


def rows(memory: StoryMemory, columns: str = "user_story_text") -> list[tuple[Any, ...]]:
    with memory.connected() as connection:
        found = connection.execute(
            text(f"select {columns} from {TABLE} order by created_at, user_story_text")
        )
        return [tuple(row) for row in found]


def put(memory: StoryMemory, *similarities: float, **changes: Any) -> list[str]:
    """Stories called by how similar they are to `NORTH`."""
    made = [story(f"{s:.2f}", **changes) for s in similarities]
    return store_user_stories_batch(made, [angle(s) for s in similarities], memory=memory)


def found(memory: StoryMemory, **how: Any) -> list[str]:
    return [one["user_story_text"] for one in search_similar_stories(NORTH, memory=memory, **how)]


# The table ----------------------------------------------------------------------------------------


@pytest.mark.req(
    "000-005",
    "000-006",
    "000-007",
    "000-008",
    "000-009",
    "000-010",
    "000-011",
    "000-012",
    "000-013",
    "000-014",
)
def test_the_table_has_the_columns_of_the_document(omniscient: psycopg.Connection[Any]) -> None:
    held = omniscient.execute(f"""
        select attname, format_type(atttypid, atttypmod) || case when attnotnull then ' not null' else '' end
        from pg_attribute where attrelid = '{TABLE}'::regclass and attnum > 0 and not attisdropped""")
    assert dict(held.fetchall()) == {**COLUMNS, "tenant_id": "uuid not null", "model": "text not null"}
    key = omniscient.execute(
        f"select pg_get_constraintdef(oid) from pg_constraint where conrelid = '{TABLE}'::regclass and contype = 'p'"
    )
    assert key.fetchall() == [("PRIMARY KEY (id)",)]


@pytest.mark.req("000-003", "000-014", "000-016")
def test_the_mapped_class_has_the_same_columns(memory: StoryMemory) -> None:
    table = UserStoryEmbedding.__table__
    assert set(table.columns.keys()) == {*COLUMNS, "tenant_id", "model"}
    assert isinstance(table.c.tags.type, ARRAY)
    assert isinstance(table.c.tags.type.item_type, Text)
    with Session(memory.database.app) as session:
        session.execute(text("select set_config('app.tenant', :t, true)"), {"t": str(memory.tenant)})
        session.execute(text("insert into tenant (id, name) values (:t, 'x')"), {"t": memory.tenant})
        row = UserStoryEmbedding(
            user_story_id="US-1",
            title="t",
            user_story_text="x",
            source_agent="a",
            embedding=[1.0, 0.0],
            model="pointing",
        )
        session.add(row)
        session.flush()
        session.refresh(row)
        made: Any = row
        assert (made.tenant_id, made.was_edited, made.embedding) == (memory.tenant, False, [1.0, 0.0])
        assert len(str(row.id)) == 32
        assert row.created_at is not None
        found = search_similar_stories(NORTH, session=session, memory=memory)
        assert [one["id"] for one in found] == [row.id]
    assert get_story_count(memory=memory) == 0, "nothing was committed"


@pytest.mark.req("000-017", "000-053")
def test_making_all_tables_changes_none_that_is_there(
    addresses: Addresses, omniscient: psycopg.Connection[Any]
) -> None:
    def shape() -> Any:
        return omniscient.execute("""
            select table_name, column_name, data_type, column_default from information_schema.columns
            where table_schema = 'public' order by 1, 2""").fetchall()

    before = shape()
    engine = migrations.owner_engine(addresses.admin)
    Base.metadata.create_all(engine)
    engine.dispose()
    assert shape() == before


@pytest.mark.req("000-017", "000-044")
def test_the_extension_is_made_once_and_every_connection_knows_its_type(
    memory: StoryMemory, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    init_vector_extension(memory.database.app)
    use(memory)
    try:
        init_vector_extension()
    finally:
        use(None)
    with pytest.raises(ConfigurationError, match="no memory of stories"):
        init_vector_extension()
    put(memory, 0.5)
    with memory.connected() as connection:
        value = connection.execute(text(f"select embedding from {TABLE}")).scalar_one()
    assert value.to_list() == pytest.approx(angle(0.5))


@pytest.fixture
def empty(
    servers: embedded.Servers, pristine: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[str]:
    """The owner's address of a database without tables."""
    name = "empty_for_stories"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} owner larder_owner")
    with superuser(name) as connection:
        connection.execute("create extension vector")
        connection.execute("grant create on schema public to larder_owner")
    yield with_database(servers.admin_url, name)
    with superuser("postgres") as connection:
        connection.execute(f"drop database {name} with (force)")


@pytest.mark.req("000-053")
def test_the_step_of_stories_goes_up_and_down_and_up(
    empty: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    before = max(r for r in migrations.STEPS if r < "024")
    migrations.upgrade(empty, to=before)
    insert = f"""
        insert into {TABLE} (tenant_id, user_story_id, title, user_story_text, source_agent, embedding{{}})
        select id, 'US-1', 't', 'a text', 'a', array_fill(0.5, array[{{}}])::vector{{}} from tenant limit 1"""
    with superuser("empty_for_stories") as connection:

        def shape() -> Any:
            tables = connection.execute("""
                select attrelid::regclass::text, attname, format_type(atttypid, atttypmod) from pg_attribute
                where attrelid in (select oid from pg_class where relnamespace = 'public'::regnamespace)
                  and attnum > 0 and not attisdropped order by 1, 2""").fetchall()
            functions = connection.execute(
                "select proname from pg_proc where pronamespace = 'public'::regnamespace order by 1"
            ).fetchall()
            return tables, functions

        connection.execute("insert into tenant (id, name) values (gen_random_uuid(), 'a')")
        connection.execute(insert.format("", 768, ""))
        old = shape()
        migrations.upgrade(empty, to="024")
        assert connection.execute(f"select model from {TABLE}").fetchall() == [
            ("gemini/gemini-embedding-001",)
        ]
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(insert.format(", model", 3, ", 'm'"))
        assert migrations.downgrade(empty, to=before) == before
        assert shape() == old
        assert connection.execute(f"select count(*) from {TABLE}").fetchone() == (1,)
        migrations.upgrade(empty, to="024")
        connection.execute("""
            insert into enrichment_job (id, tenant_id, project_id, request, task)
            select gen_random_uuid(), id, id, '{}', 'larder.stories.store' from tenant""")
        with pytest.raises(IntegrityError, match="no_story_waits"):
            migrations.downgrade(empty, to=before)
        connection.execute("update enrichment_job set state = 'done'")
        migrations.downgrade(empty, to=before)
        migrations.upgrade(empty, to="024")
        connection.execute(insert.format(", model", 384, ", 'all-MiniLM-L6-v2'").replace("a text", "another"))
        with pytest.raises(IntegrityError, match="only_stories_of_gemini"):
            migrations.downgrade(empty, to=before)
        assert connection.execute("select version_num from alembic_version").fetchone() == ("024",)
    for to, why in (("001", "cannot be undone"), ("00x", "no revision")):
        with pytest.raises(ConfigurationError, match=why):
            migrations.downgrade(empty, to=to)


# Storing ------------------------------------------------------------------------------------------


@pytest.mark.req("000-039", "000-010", "000-011", "000-012", "000-014")
def test_a_story_of_either_agent_is_one_row(memory: StoryMemory) -> None:
    given = story(requirement_text="The system shall", source_doc_id="doc-1", user_rating=4)
    first = store_user_story(given, NORTH, source_agent="UserStoryAgent", memory=memory)
    other = {
        "title": "T",
        "story": "As a clerk, I want it",
        "acceptanceCriteria": "- one\n- two",
        "Tags/Labels": "Auth, mail",
        "T-shirt Size": "S",
        "Confidence": "95 %",
        "Priority": "Low",
    }
    second = store_user_story(other, NORTH, None, "RequirementUserStoryAgent", memory=memory)
    columns = ", ".join(COLUMNS)
    one, two = (dict(zip(COLUMNS, row, strict=True)) for row in rows(memory, columns))
    assert one.pop("embedding").to_list() == NORTH
    assert one.pop("created_at")
    assert one == {
        **{key: given[key] for key in given if key in COLUMNS},
        "id": first,
        "user_story_text": given["user_story"],
        "source_agent": "UserStoryAgent",
        "was_edited": False,
    }
    wanted = {
        "id": second,
        "user_story_id": "N/A",
        "user_story_text": "As a clerk, I want it",
        "acceptance_criteria": ["- one", "- two"],
        "tags": ["Auth", "mail"],
        "tshirt_size": "S",
        "confidence_score": 0.95,
        "priority": "Low",
        "source_agent": "RequirementUserStoryAgent",
        "requirement_text": None,
    }
    assert {key: two[key] for key in wanted} == wanted


@pytest.mark.req("000-006", "000-007", "000-008", "000-011", "000-014")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"user_story": " "}, "user_story_text"),
        ({"user_story_id": "US-" + "1" * 18}, "user_story_id"),
        ({"title": "t" * 501}, "title"),
        ({"tshirt_size": "medium"}, "tshirt_size"),
        ({"confidence_score": "high"}, "confidence_score"),
        ({"confidence_score": "nan"}, "confidence_score"),
        ({"user_rating": 6}, "user_rating"),
        ({"title": ["no", "text"]}, "title"),
        ({"was_edited": "perhaps"}, "was_edited"),
    ],
)
def test_what_is_no_story_is_refused_by_its_field_and_without_its_text(
    memory: StoryMemory, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestRejected, match=field) as caught:
        store_user_story(story("secret words", **changes), NORTH, memory=memory)
    for value in ("secret", *changes.values()):
        assert str(value) not in caught.value.message or value == " "
    assert rows(memory) == []


@pytest.mark.req("000-040")
def test_a_batch_is_stored_whole_or_not_at_all(memory: StoryMemory) -> None:
    ids = put(memory, 0.9, 0.8, 0.7)
    assert sorted(ids) == sorted(row[0] for row in rows(memory, "id"))
    more = [story("new"), story("newer")]
    for vectors in ([NORTH], [NORTH, [1.0, 0.0, 0.0]], [NORTH, [float("nan"), 1.0]]):
        with pytest.raises((StoreRejected, ValueError)):
            store_user_stories_batch(more, vectors, memory=memory)
    with pytest.raises(RequestRejected):
        store_user_stories_batch([story("new"), {}], [NORTH, NORTH], memory=memory)
    assert len(rows(memory)) == 3
    assert store_user_stories_batch([], [], memory=memory) == []


def test_a_thousand_stories_are_one_call(memory: StoryMemory) -> None:
    assert (
        len(store_user_stories_batch([story(f"n {n}") for n in range(1000)], [NORTH] * 1000, memory=memory))
        == 1000
    )


@pytest.mark.req("000-036")
def test_the_same_text_is_stored_once(memory: StoryMemory) -> None:
    first = store_user_story(story("a"), NORTH, memory=memory)
    assert store_user_story(story("a", title="other"), NORTH, memory=memory) == first
    assert store_user_stories_batch([story("a"), story("b"), story("b")], [NORTH] * 3, memory=memory) != []
    assert rows(memory, "user_story_text, title") == [("a", "Title of a"), ("b", "Title of b")]
    with memory.connected() as connection:
        assert stored_texts_of(connection, memory, ["b", "c", "A"]) == {"b"}


@pytest.mark.req("000-036")
def test_the_same_text_is_stored_once_by_many_at_once(memory: StoryMemory) -> None:
    start, failed = threading.Barrier(8), []

    def write(turn: int) -> None:
        texts = [f"story {n}" for n in range(50)]
        start.wait()
        try:
            store_user_stories_batch(
                [story(t) for t in (texts if turn % 2 else texts[::-1])], [NORTH] * 50, memory=memory
            )
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=write, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(rows(memory)) == 50


@pytest.mark.req("000-002", "000-014", "000-035")
def test_what_a_person_edited_or_rated_takes_the_place_of_the_same_text(memory: StoryMemory) -> None:
    first = store_user_story(story("a"), NORTH, memory=memory)
    edited = story("a", acceptance_criteria=["better"], was_edited=True)
    assert store_user_story(edited, angle(0.5), source_agent="UserStoryFeedbackAgent", memory=memory) == first
    shown = "acceptance_criteria, source_agent, was_edited, user_rating, embedding"
    ((criteria, agent, was_edited, rating, vector),) = rows(memory, shown)
    assert (criteria, agent, was_edited, rating) == (["better"], "UserStoryFeedbackAgent", True, None)
    assert vector.to_list() == pytest.approx(angle(0.5))
    store_user_story(story("a"), NORTH, memory=memory)
    assert rows(memory, "acceptance_criteria, was_edited") == [(["better"], True)], "no generator undoes it"
    store_user_story(story("a", acceptance_criteria=["better"], user_rating=5), NORTH, memory=memory)
    assert rows(memory, "acceptance_criteria, was_edited, user_rating") == [(["better"], True, 5)]
    both = [story("b", was_edited=True, title="edited"), story("b", title="plain")]
    store_user_stories_batch(both, [NORTH] * 2, memory=memory)
    assert rows(memory, "title")[-1] == ("edited",)


# Finding ------------------------------------------------------------------------------------------


@pytest.mark.req("000-041", "000-027", "000-004", "000-024", "000-055")
def test_similar_stories_come_nearest_first_and_none_below_the_threshold(memory: StoryMemory) -> None:
    put(memory, 0.71, 0.99, 0.69, 0.80, 0.90, 0.75, 0.95, confidence_score=0.1)
    assert found(memory) == ["0.99", "0.95", "0.90", "0.80", "0.75"]
    assert found(memory, k=2) == ["0.99", "0.95"]
    assert found(memory, k=9) == ["0.99", "0.95", "0.90", "0.80", "0.75", "0.71"]
    assert found(memory, k=9, similarity_threshold=0.9001) == ["0.99", "0.95"]
    first = search_similar_stories(NORTH, memory=memory)[0]
    assert first["similarity_score"] == pytest.approx(0.99, abs=1e-6)
    assert set(first) == {*COLUMNS, "similarity_score"} - {"embedding"}


@pytest.mark.req("000-028", "000-027")
def test_tags_narrow_the_search_beforehand(memory: StoryMemory) -> None:
    put(memory, 0.99, 0.98, 0.97, 0.96, 0.95, tags=["billing"])
    put(memory, 0.80, tags=["Login", "security"])
    put(memory, 0.90, tags=None)
    assert found(memory, tag_filter=["authentication", "login"]) == ["0.80"]
    assert found(memory, tag_filter=["none"]) == []
    assert found(memory, k=9, tag_filter=[]) == found(memory, k=9)


@pytest.mark.req("000-013", "000-041")
def test_vectors_of_two_models_never_meet(memory: StoryMemory) -> None:
    other = replace(memory, model="other")
    longer = replace(memory, model="longer", dimensions=3)
    put(memory, 0.9)
    store_user_story(story("theirs"), NORTH, memory=other)
    store_user_story(story("long"), [1.0, 0.0, 0.0], memory=longer)
    assert found(memory) == ["0.90"]
    assert found(other) == ["theirs"]
    assert [get_story_count(memory=one) for one in (memory, other, longer)] == [1, 1, 1]
    with pytest.raises(StoreRejected, match="has 3 dimensions; pointing has 2"):
        search_similar_stories([1.0, 0.0, 0.0], memory=memory)
    with memory.connected() as connection:
        rest = stories_of_other_models(connection, memory, most=9)
    assert [one["user_story_text"] for one in rest] == ["theirs", "long"]
    store_user_story(story("long"), NORTH, memory=memory)
    assert sorted(found(memory)) == ["0.90", "long"], "the model in use takes a text over"
    store_user_story(story("long", was_edited=True, title="edited"), NORTH, memory=memory)
    store_user_story(story("long"), NORTH, memory=other)
    assert ("edited", "pointing") in rows(memory, "title, model"), "but not from a person"


@pytest.mark.req("000-042")
def test_stories_are_counted_and_removed_by_their_run(memory: StoryMemory) -> None:
    put(memory, 0.9, 0.8, source_doc_id="run-1")
    put(memory, 0.7, source_doc_id="run-2")
    assert get_story_count(memory=memory) == 3
    assert get_story_count(most=2, memory=memory) == 2
    assert delete_stories_by_source("run-1", memory=memory) == 2
    assert delete_stories_by_source("run-1", memory=memory) == 0
    assert rows(memory) == [("0.70",)]


@pytest.mark.req("000-039", "000-042", "000-003")
def test_a_session_of_the_caller_is_neither_committed_nor_closed(memory: StoryMemory) -> None:
    put(memory, 0.9, source_doc_id="run-1")
    with memory.connected() as session:
        store_user_story(story("b"), NORTH, session=session, memory=memory)
        assert get_story_count(session, memory=memory) == 2
        assert delete_stories_by_source("run-1", session, memory=memory) == 1
        assert len(search_similar_stories(NORTH, session=session, memory=memory)) == 1
        session.rollback()
    assert rows(memory) == [("0.90",)]


@pytest.mark.req("000-046")
def test_statistics_tell_agents_and_confidence(memory: StoryMemory) -> None:
    put(memory, 0.9, 0.8, source_agent="UserStoryAgent", confidence_score=0.8)
    put(memory, 0.7, source_agent="CLI-UserStoryAgent", confidence_score=0.95, was_edited=True)
    put(memory, 0.6, confidence_score=None)
    with memory.connected() as connection:
        assert story_stats(connection, memory.tenant) == {
            "total_stories": 4,
            "by_source_agent": {"CLI-UserStoryAgent": 1, "UserStoryAgent": 2, "unknown": 1},
            "average_confidence_score": 0.85,
            "edited": 1,
            "by_model": {"pointing": 4},
        }
        assert story_stats(connection, uuid4())["average_confidence_score"] is None


@pytest.mark.req("000-015", "000-056")
def test_the_vector_index_comes_after_the_first_stories_and_is_used(
    database: Database, omniscient: psycopg.Connection[Any]
) -> None:
    memory = remembering(database, Pointing())
    definition = "select indexdef from pg_indexes where indexname = 'idx_story_embedding_cosine'"

    def build(dimensions: int = 2) -> bool:
        with memory.connected() as connection:
            connection.execute(
                text("select pg_stat_force_next_flush()")
            )  # of what this connection has written
        with database.control() as connection:
            return build_index(connection, dimensions, least=500)

    put(memory, 0.9)
    assert not build()
    assert omniscient.execute(definition).fetchall() == []
    store_user_stories_batch(
        [story(f"n {n}") for n in range(2000)], [angle(n / 2000) for n in range(2000)], memory=memory
    )
    assert build()
    assert not build(), "once"
    ((made,),) = omniscient.execute(definition).fetchall()
    assert "USING hnsw" in made
    assert "vector_cosine_ops" in made
    omniscient.execute(f"analyze {TABLE}")
    statement = f"explain {store.nearest(2)}"
    values = {"tenant": memory.tenant, "model": memory.model, "vector": "[1,0]", "tags": None, "confidence": 0, "near": 5, "threshold": 0.7, "edited": 0, "rated": 0, "k": 5}  # fmt: skip
    with memory.connected() as connection:
        connection.execute(text("set local enable_seqscan = off"))
        plan = "\n".join(row[0] for row in connection.execute(text(statement), values))
    assert "idx_story_embedding_cosine" in plan
    store_user_story(story("rare", tags=["Rare"]), angle(0.1), memory=memory)
    with memory.connected() as connection:
        connection.execute(text("set local enable_seqscan = off; set local hnsw.max_scan_tuples = 1"))
        how: dict[str, Any] = {"similarity_threshold": 0.0, "session": connection}
        assert found(memory, tag_filter=["rare"], **how) == ["rare"], "however many nearer ones lack it"
    assert search_similar_stories(NORTH, memory=memory)[0]["similarity_score"] > 0.99
    assert build(3), "another length has it made anew"
    assert "vector(3)" in omniscient.execute(definition).fetchall()[0][0]
    assert not build(2001), "longer than such an index takes"


def test_the_vector_index_of_many_stories_takes_as_long_as_it_needs(
    addresses: Addresses, omniscient: psycopg.Connection[Any]
) -> None:
    database = Database(addresses.app, addresses.control, timeouts=ServerTimeouts(statement=0.2))
    memory = remembering(database, Pointing())
    put(memory, 0.9)
    omniscient.execute(f"""
        insert into {TABLE} (tenant_id, user_story_id, title, user_story_text, source_agent, model, embedding)
        select '{memory.tenant}', 'US-1', 't', n::text, 'a', 'm',
               (select array_agg(random()) from generate_series(1, 64 + 0 * n))::vector
        from generate_series(1, 4000) n;
        select pg_stat_force_next_flush()""")
    with database.control() as connection:
        assert build_index(connection, 64, least=500)
    database.close()


# Tenants ------------------------------------------------------------------------------------------

EXAMPLES = int(os.environ.get("LARDER_CASES", "100"))
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8).filter(
    str.strip
)


@pytest.mark.req("000-036", "000-041", "001-118")
@settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    ours=st.lists(WORDS, max_size=3, unique=True),
    theirs=st.lists(WORDS, min_size=1, max_size=3, unique=True),
    source=WORDS,
)
def test_no_story_of_another_tenant_is_ever_found_counted_kept_out_or_removed(
    shared_database: Database, ours: list[str], theirs: list[str], source: str
) -> None:
    """The same words, sources and vectors in both; whoever writes first does not matter to the other."""
    mine, other = (remembering(shared_database, Pointing()) for _ in range(2))
    for memory, texts in ((other, theirs), (mine, ours)):
        made = [story(t, source_doc_id=source, requirement_text=str(memory.tenant)) for t in texts]
        assert len(store_user_stories_batch(made, [NORTH] * len(texts), memory=memory)) == len(texts)
    for memory, texts in ((mine, ours), (other, theirs)):
        shown = search_similar_stories(NORTH, k=9, memory=memory)
        assert {one["requirement_text"] for one in shown} <= {str(memory.tenant)}
        assert sorted(one["user_story_text"] for one in shown) == sorted(texts)
        assert get_story_count(memory=memory) == len(texts)
        with memory.connected() as connection:
            assert stored_texts_of(connection, memory, ours + theirs) == set(texts)
            assert story_stats(connection, memory.tenant)["total_stories"] == len(texts)
    assert delete_stories_by_source(source, memory=mine) == len(ours)
    assert get_story_count(memory=other) == len(theirs)
    assert found(mine) == []


# Signatures ---------------------------------------------------------------------------------------

DOCUMENTED = {
    "compose_embedding_text": "story",
    "generate_embedding": "text, api_key=None, dimensions=768",
    "generate_embeddings_batch": "texts, api_key=None, dimensions=768",
    "store_user_story": "story, embedding, session=None, source_agent='unknown'",
    "store_user_stories_batch": "stories, embeddings, session=None, source_agent='unknown'",
    "search_similar_stories": "query_embedding, k=5, similarity_threshold=0.7, tag_filter=None, session=None",
    "get_story_count": "session=None",
    "delete_stories_by_source": "source_id, session=None",
    "retrieve_similar_examples": "requirement_text, k=5, threshold=0.7, tag_filter=None",
    "format_examples_for_prompt": "examples, max_examples=3",
    "store_generated_stories": "stories, source_agent='unknown', requirement_texts=None",
}


@pytest.mark.req(
    "000-022", "000-023", "000-034", "000-038", "000-039", "000-040", "000-041", "000-042", "000-043"
)
@pytest.mark.parametrize("name", DOCUMENTED)
def test_functions_take_what_the_document_says(name: str) -> None:
    given = inspect.signature(getattr(stories, name)).parameters.values()
    shown = [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in given
        if p.kind is not p.KEYWORD_ONLY
    ]
    assert ", ".join(shown) == DOCUMENTED[name]
