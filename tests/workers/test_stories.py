"""Stories through the queue: what is accepted is stored once, whatever is away, and what a client and a person get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import psycopg
import pytest
import redis

from pipeline.errors import ConfigurationError, DocumentRejected, RequestRejected
from pipeline.ledger import audit, jobs, overview, upkeep
from pipeline.stories import Story, get_story_count, retrieve_similar_examples, store_generated_stories, use
from tests.conftest import Addresses
from tests.fakes.faults import Fault
from tests.fakes.gemini_embedding import FakeGeminiEmbedding
from tests.ledger import Ledger, ago, ahead
from tests.pipeline.stories.storyteller import story
from tests.workers.installed import installed, without_messages
from workers.app import operations
from workers.app.doctor.doctor import examine
from workers.app.enrichment import stories as exports
from workers.app.enrichment.job import run
from workers.app.enrichment.stories import (
    StoryQuery,
    connect,
    delete,
    find,
    memory_of,
    rows_of,
    search,
)
from workers.app.enrichment.story_jobs import MOST_STORIES
from workers.app.ingestion import maintenance
from workers.app.status import status
from workers.client import Client, EnrichmentFailed, NoAnswerYet
from workers.local import embedded
from workers.runtime import Runtime, acting_as
from workers.settings import load

GEMINI = """
rag:
  tenant: acme
  embedding: {{provider: hashing, dimensions: 64}}
  stories: {{minStories: 0, embedding: {{baseUrl: '{}', apiKey: key-of-the-tests}}}}
"""


@pytest.fixture
def client(addresses: Addresses, broker: redis.Redis) -> Iterator[Client]:
    """Without a broker: the test itself does the work."""
    with Client(addresses.app, tenant="acme", project="app", deadline=30) as made:
        yield made


def work(runtime: Runtime, client: Client, accepted: Any) -> None:
    for job in accepted.jobs:
        run(runtime, client.tenant, job)


def count(runtime: Runtime) -> int:
    return get_story_count(memory=memory_of(runtime, runtime.settings.tenant_id))


# Jobs ---------------------------------------------------------------------------------------------


@pytest.mark.req("000-035", "000-036")
def test_stories_are_accepted_in_jobs_of_a_hundred_and_stored_once(runtime: Runtime, client: Client) -> None:
    given: list[Any] = [story(f"number {n}") for n in range(250)]
    given[120] = {"title": "no story"}
    given[200] = story("number 0")
    accepted = client.store_stories(given, "CLI-UserStoryAgent", {"REQ-001": "The system shall"})
    assert (len(accepted.jobs), accepted.accepted) == (3, 249)
    assert accepted.refused == [(121, "user_story_text: missing; it may also be called user_story or story")]
    assert count(runtime) == 0
    for _ in range(2):  # as messages are delivered
        work(runtime, client, accepted)
    assert client.stored_stories(accepted) == {
        "stored": 248,
        "skipped": 1,
        "refused": [(121, "user_story_text: missing; it may also be called user_story or story")],
    }
    assert client.story_stats()["by_source_agent"] == {"CLI-UserStoryAgent": 248}
    assert count(runtime) == 248


SECRET = "ghp_" + "a1B2" * 9
TOLD = f"As jane.doe@acme.com, I want {SECRET} to work"


@pytest.mark.parametrize(
    ("redact", "shown"),
    [
        ("true", "As [email], I want [secret] to work"),
        ("false", "As jane.doe@acme.com, I want [secret] to work"),
    ],
)
@pytest.mark.req("001-113")
def test_secrets_and_personal_data_are_neither_embedded_nor_stored_nor_in_a_job(
    redact: str,
    shown: str,
    tmp_path: Path,
    addresses: Addresses,
    servers: embedded.Servers,
    fake: FakeGeminiEmbedding,
    ledger: Ledger,
) -> None:
    config = GEMINI.format(fake.address).replace("minStories", f"redact: {redact}, minStories")
    fields = ("title", "description", "requirement_text", "user_story")
    given = story(**dict.fromkeys(fields, TOLD), acceptance_criteria=[TOLD], tags=[TOLD])
    with installed(tmp_path, addresses, servers, config) as runtime:
        with Client(addresses.app, tenant="acme", settings=runtime.settings) as client:
            accepted = client.store_stories([given])
            assert SECRET not in json.dumps(ledger.jobs.values("request"))
            work(runtime, client, accepted)
        generated = {**given, "user_story": f"{TOLD}, too"}
        memory = memory_of(runtime, runtime.settings.tenant_id)
        assert store_generated_stories([generated], memory=memory) == 1
        rows = find(memory, StoryQuery(query="work", threshold=-1.0))
    without_messages(servers)
    assert {one["user_story_text"] for one in rows} == {shown, f"{shown}, too"}
    for one in rows:
        assert {one[name] for name in ("title", "description", "requirement_text")} == {shown}
        assert one["acceptance_criteria"] == one["tags"] == [shown]
    assert all(SECRET not in str(seen.json) for seen in fake.requests())


@pytest.mark.req("001-116")
def test_the_audit_tells_who_stored_found_and_removed_stories(runtime: Runtime, client: Client) -> None:
    accepted = client.store_stories(
        [{}, *(story(f"n {n}", source_doc_id="run-1") for n in range(120))], "Agent"
    )
    work(runtime, client, accepted)
    with acting_as("ann"):
        found = search(runtime, client.tenant, StoryQuery(query="n 1", threshold=0.0))
        memory = memory_of(runtime, client.tenant)
        assert [delete(memory, "run-1"), delete(memory, "run-1")] == [120, 0]
    runtime.audit_log.flush()
    with runtime.database.tenant(client.tenant) as connection:
        entries = audit.listed(connection, 9)[::-1]
        assert audit.verify(connection).problems == ()
    told = [(e["action"], e["subject"], e["detail"]) for e in entries]
    stored = [
        ("stories.store", str(job), {"stories": n, "agents": ["Agent"]})
        for job, n in zip(accepted.jobs, (100, 20), strict=True)
    ]
    removed = ("stories.delete", "run-1", {"stories": 120})
    assert told[:2] == stored
    assert sorted(told[2:]) == [("rag_search", "n 1", {"resultsCount": len(found)}), removed]
    assert {e["actor"] for e in entries[2:]} == {"ann"}


def test_no_more_than_ten_thousand_are_taken_at_once(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="10,001 stories at once"):
        client.store_stories([None] * (MOST_STORIES + 1))


@pytest.fixture
def fake() -> Iterator[FakeGeminiEmbedding]:
    with FakeGeminiEmbedding() as started:
        yield started


@pytest.fixture
def gemini(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, fake: FakeGeminiEmbedding
) -> Iterator[Runtime]:
    """An installation whose stories are embedded by Gemini, and nothing else."""
    with installed(tmp_path, addresses, servers, GEMINI.format(fake.address)) as made:
        yield made
    without_messages(servers)


@pytest.mark.req("000-052", "000-023")
def test_an_accepted_story_outlasts_a_model_that_is_away(
    gemini: Runtime, client: Client, fake: FakeGeminiEmbedding, ledger: Ledger
) -> None:
    accepted = client.store_stories([story("a")])
    fake.faults.next(Fault.status(429, headers={"Retry-After": "600"}), times=4)
    for attempt in range(1, 5):  # more often than a job that somebody waits for is tried
        work(gemini, client, accepted)
        assert ledger.jobs.values("state", "attempts") == [("queued", attempt)]
        assert ledger.jobs.one()["due_at"] > ahead(minutes=9)
        ledger.jobs.set(due_at=ago())
    with pytest.raises(NoAnswerYet):
        client.stored_stories(accepted)
    work(gemini, client, accepted)
    assert client.stored_stories(accepted) == {"stored": 1, "skipped": 0, "refused": []}


def test_somebody_who_waits_is_told_after_three_tries(
    gemini: Runtime, client: Client, fake: FakeGeminiEmbedding, ledger: Ledger
) -> None:
    fake.faults.next(Fault.status(503), times=None)
    job = client.ask("larder.stories.search", {"query": "x"}, deadline=60)
    for _ in range(3):
        run(gemini, client.tenant, job)
        ledger.jobs.set(due_at=ago())
    with pytest.raises(EnrichmentFailed, match="Gemini answers 503"):
        client.result(job)


def test_a_story_that_the_model_refuses_is_named_by_its_number_and_the_others_are_stored(
    gemini: Runtime, client: Client, fake: FakeGeminiEmbedding
) -> None:
    fake.faults.next(Fault.status(400), when=lambda seen: "poison" in str(seen.json), times=None)
    accepted = client.store_stories([{}, story("a"), story("poison")])
    work(gemini, client, accepted)
    done = client.stored_stories(accepted)
    assert (done["stored"], [number for number, _ in done["refused"]]) == (1, [1, 3])


def test_an_installation_that_is_switched_off_stores_and_finds_nothing(
    runtime: Runtime, client: Client
) -> None:
    off = Runtime(
        replace(runtime.settings, rag=runtime.rag.model_copy(update={"enabled": False})), runtime.addresses
    )
    accepted = client.store_stories([story("a")])
    work(off, client, accepted)
    with pytest.raises(EnrichmentFailed, match="switched off"):
        client.stored_stories(accepted)
    assert find(memory_of(off, client.tenant), StoryQuery(query="a")) == []
    with pytest.raises(RequestRejected, match="the question is empty"):
        find(memory_of(runtime, client.tenant), StoryQuery(query=" "))
    off.database.close()


def test_stories_whose_job_failed_wait_for_a_person_and_are_stored_when_it_is_replayed(
    gemini: Runtime, client: Client, fake: FakeGeminiEmbedding, ledger: Ledger
) -> None:
    fake.faults.next(Fault.status(403), times=None)
    accepted = client.store_stories([story("secret words")])
    client.ask(
        "larder.stories.search", {"query": "x"}, deadline=60
    )  # whoever waits for an answer has been told
    work(gemini, client, accepted)
    over = {"finished_at": ago(days=9), "deadline": ago(), "state": "failed"}
    ledger.jobs.set({"task": "larder.stories.search"}, **over)
    for job in ledger.jobs(deadline=None):
        ledger.jobs.set(job["id"], finished_at=ago(days=8))
    with gemini.database.control() as connection:
        for answers in (1, 24):
            upkeep.trim(connection, "enrichment_job", runs_days=1, dead_days=30, answers_hours=answers)
        assert overview.enrichment(connection)["failed"] == 1
    (job,) = operations.failed_jobs(gemini)
    assert (job["id"], job["tenant"], job["code"]) == (str(accepted.jobs[0]), "acme", "E002")
    assert "secret" not in str(job)
    assert {one.check: one.status for one in examine(gemini)}["dead letters"] == "warning"
    assert status(gemini)["next"][0]["detail"] == "1 job of user stories failed"
    assert operations.dead_letters_and_jobs(gemini, [job["id"][:8]]) == ([], [job])
    fake.faults.clear()
    assert operations.settle_jobs(gemini, [job], "dead.replay", jobs.replay) == [job["id"]]
    assert operations.settle_jobs(gemini, [job], "dead.replay", jobs.replay) == []
    work(gemini, client, accepted)
    assert client.stored_stories(accepted)["stored"] == 1
    with gemini.database.control() as connection:
        assert jobs.failed(connection) == []


def test_a_client_finds_stories_by_the_workers_model(
    runtime: Runtime, client: Client, broker: redis.Redis, ledger: Ledger
) -> None:
    work(runtime, client, client.store_stories([story("reset a password"), story("print an invoice")]))

    def asked(**how: Any) -> list[str]:
        with pytest.raises(NoAnswerYet):
            client.search_stories("reset a password", wait=0.01, **how)
        (job,) = ledger.jobs.values("id", state="queued")
        ledger.jobs.set(deadline=None)
        run(runtime, client.tenant, job)
        return [one["user_story_text"] for one in client.result(job)["stories"]]

    assert asked(threshold=0.1)[0] == "reset a password"
    assert asked(threshold=0.1, k=1) == ["reset a password"]
    assert asked(threshold=0.1, tags=["billing"]) == []
    assert asked(threshold=0.1, examples=True) == [], "too few stories for a prompt"


@pytest.mark.req("000-038", "000-043", "000-001")
def test_a_generator_that_is_connected_works_on_the_configured_memory(
    gemini: Runtime, addresses: Addresses, client: Client, servers: embedded.Servers
) -> None:
    assert gemini.settings.path
    where = {"LARDER_DATABASE_URL": addresses.app, "LARDER_BROKER_URL": servers.broker_url}
    memory = connect(load(gemini.settings.path, where))
    try:
        assert (memory.model, memory.dimensions) == ("gemini/gemini-embedding-001", 768)
        assert (memory.options.threshold, memory.longest_wait) == (0.7, 60.0)
        assert store_generated_stories([story("reset a password")], "UserStoryAgent") == 1
        assert len(retrieve_similar_examples("reset a password", threshold=0.1)) == 1
    finally:
        use(None)
        memory.database.close()
    assert client.story_stats()["by_model"] == {"gemini/gemini-embedding-001": 1}


@pytest.mark.req("000-029", "000-024")
def test_the_least_similarity_is_what_was_measured_for_the_model_or_what_is_configured(
    build: Any, gemini: Runtime, runtime: Runtime
) -> None:
    tenant = runtime.settings.tenant_id
    assert memory_of(gemini, tenant).options.threshold == 0.70
    assert memory_of(runtime, tenant).options.threshold == 0.70, "not measured"
    stories = runtime.rag.stories.model_copy(update={"similarity_threshold": 0.5})
    rag = runtime.rag.model_copy(update={"stories": stories})
    own = Runtime(replace(runtime.settings, rag=rag), runtime.addresses)
    assert memory_of(own, tenant).options.threshold == 0.5
    minilm = Runtime(replace(runtime.settings, rag=type(runtime.rag)()), runtime.addresses)
    assert memory_of(minilm, tenant).options.threshold == 0.37
    own.database.close()
    minilm.database.close()


def test_another_model_embeds_stories_of_the_former_one_anew(
    runtime: Runtime, gemini: Runtime, client: Client
) -> None:
    edited = story("edited", was_edited=True, acceptance_criteria=["better"])
    work(runtime, client, client.store_stories([*(story(f"n {n}") for n in range(120)), edited]))
    assert count(gemini) == 0
    done: list[int] = []
    while not done or done[-1]:
        accepted = client.embed_stories_anew()
        work(gemini, client, accepted)
        done.append(client.stored_stories(accepted)["stored"])
    assert done == [100, 21, 0]
    assert (count(gemini), count(runtime)) == (121, 0)
    (kept,) = find(memory_of(gemini, client.tenant), StoryQuery(query="edited better", threshold=0.0, k=1))
    assert (kept["acceptance_criteria"], kept["was_edited"]) == (["better"], True)


@pytest.mark.req("000-056")
def test_the_process_that_builds_makes_the_index_of_stories(
    runtime: Runtime, omniscient: psycopg.Connection[Any]
) -> None:
    memory = memory_of(runtime, runtime.settings.tenant_id)
    store_generated_stories([story(f"n {n}") for n in range(1100)], memory=memory)
    with memory.connected() as connection:
        connection.exec_driver_sql("select pg_stat_force_next_flush()")
    maintenance.build_requested(runtime)
    made = omniscient.execute(
        "select indexdef from pg_indexes where indexname = 'idx_story_embedding_cosine'"
    )
    assert "vector(64)" in made.fetchall()[0][0]


# Files --------------------------------------------------------------------------------------------

ROWS: list[dict[str, Any]] = [
    {"User Story ID": "US-1", "Title": "T", "User Story": "As a user", "Tags/Labels": "a, b"},
    {"User Story ID": "US-2", "Title": "U", "User Story": "As a clerk", "Tags/Labels": None},
]


def excel(path: Path, *rows: list[Any]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


@pytest.mark.req("000-047", "000-025")
def test_exports_in_every_form_are_rows_with_the_numbers_a_person_sees(tmp_path: Path) -> None:
    heads, values = list(ROWS[0]), [list(row.values()) for row in ROWS]
    table = excel(tmp_path / "a.xlsx", heads, values[0], [None] * 4, values[1])
    assert rows_of(table) == [(2, ROWS[0]), (4, ROWS[1])]
    for divider in ",;\t":
        lines = [
            divider.join(heads),
            divider.join(f'"{v}"' for v in values[0]),
            "",
            divider.join(v or "" for v in values[1]),
        ]
        (tmp_path / "a.csv").write_text("\ufeff" + "\r\n".join(lines))
        (first, one), (second, two) = rows_of(tmp_path / "a.csv")
        assert (first, one, second) == (2, ROWS[0], 4)
        assert two == {**ROWS[1], "Tags/Labels": ""}
    for data in (ROWS, {"user_stories": ROWS}, {"final_output": {"userStories": ROWS}}):
        (tmp_path / "a.json").write_text(json.dumps(data))
        assert rows_of(tmp_path / "a.json") == [(1, ROWS[0]), (2, ROWS[1])]


@pytest.mark.req("000-047")
def test_a_file_of_a_tracker_is_read_by_the_names_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "jira.csv").write_text(
        "Summary,Issue key,Issue id,Labels,Labels,Labels,Description\n"
        'Sign in,SHOP-1,10001,auth,,sso,"As a clerk, I want to sign in"\n'
        "Export,SHOP-2,10002,,,,As a clerk, I want a table\n"
        "Print,SHOP-3,10003,,,,I want it printed\n"
    )
    (first, one), (second, torn), (third, other) = rows_of(tmp_path / "jira.csv")
    assert (first, second, third) == (2, 3, 4)
    assert isinstance(torn, RequestRejected), "a text was cut at its comma"
    assert torn.message == "it has 8 cells under 7 columns: put quotes around its texts"
    wanted = {
        "user_story_id": "SHOP-1",
        "title": "Sign in",
        "user_story_text": "As a clerk, I want to sign in",
    }
    read = Story.read(one).model_dump()
    assert {key: read[key] for key in wanted} == wanted
    assert (read["tags"], read["description"]) == (["auth", "sso"], None)
    assert Story.read(other).tags is None
    tasks = [
        {
            "id": "BACK-1",
            "title": "T",
            "description": "Draw it",
            "acceptance_criteria": [{"given": "a", "then": "b"}],
        }
    ]
    (tmp_path / "tasks.json").write_text(json.dumps({"count": 1, "tasks": tasks}))
    ((_, task),) = rows_of(tmp_path / "tasks.json")
    told = Story.read(task)
    assert (told.user_story_id, told.user_story_text) == ("BACK-1", "Draw it")
    assert told.acceptance_criteria == ["given a, then b"]
    long = Story.read(
        {"id": "8c0de1b2-5a1f-4c8e-9d3f-0a6b7c8d9e0f", "user_story_id": "US-7", "story": "As a user"}
    )
    assert (long.user_story_id, long.title) == ("US-7", "As a user")
    with pytest.raises(RequestRejected, match="user_story_text"):
        Story.read({"title": "T", "user_story": "", "description": "what it is about"})


def test_a_file_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {
        "no.xlsx": b"PK\x03\x04 not really",
        "no.json": b'{"stories": {"a": 1}}',
        "broken.json": b"[1,",
        "one.json": b'{"title": "T", "acceptance_criteria": ["a"]}',
        "empty.json": b"[]",
        "heads.csv": b"Title,User Story\n",
        "latin.csv": "Title\nGröße".encode("latin-1"),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DocumentRejected, match=name):
            rows_of(tmp_path / name)
    for name in ("none.csv", "story.docx"):
        with pytest.raises(ConfigurationError, match=name):
            rows_of(tmp_path / name)
    (tmp_path / "a.csv").write_text("Title\na\nb\nc\n")
    for bound, value in (("MOST_ROWS", 2), ("MOST_BYTES", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(exports, bound, value)
            with pytest.raises(DocumentRejected, match=r"has more than|is larger than"):
                rows_of(tmp_path / "a.csv")
    table = excel(tmp_path / "large.xlsx", ["Title"], ["a" * 10_000])
    monkeypatch.setattr(exports, "MOST_UNPACKED", 2_000)
    with pytest.raises(DocumentRejected, match="unpacks to more"):
        rows_of(table)
