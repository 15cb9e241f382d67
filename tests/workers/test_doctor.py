"""The doctor: a healthy store gives nothing to complain about, and each kind of damage is found and mended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis

from pipeline.documents import Json
from pipeline.ledger import Item, Stage
from tests.conftest import Addresses
from workers import (
    control,
    doctor,
    embedded,
    machine_checks,
    operations,
    registering,
    runtime,
    server_checks,
    upkeep,
)
from workers.app import configure
from workers.celeryconfig import QUEUES
from workers.diagnosis import Health
from workers.runtime import Runtime
from workers.settings import load

CONFIG = """
rag:
  tenant: acme
  project: app
  embedding: {provider: hashing, dimensions: 64}
  retrieval: {exactBelow: 100}
  sources:
    - {name: notes, type: markdown, paths: ["docs/*.md"]}
"""
SQL = psycopg.Connection[Any]
Findings = dict[str, Json]


class Store:
    """An installation whose workers are driven by hand."""

    def __init__(self, parts: Runtime, root: Path) -> None:
        self.parts = parts
        self.root = root

    def write(self, name: str, sections: int = 3) -> None:
        """A file that becomes some chunks."""
        words = [
            f"## Part {n} of {name}\n\n" + f"{name} {n} quay crane berth tide. " * 30 for n in range(sections)
        ]
        path = self.root / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n\n" + "\n\n".join(words), encoding="utf-8")

    def sync(self) -> None:
        """One whole sync of the source, through all stages."""
        one = next(iter(self.parts.configured.values()))
        run = control.start_run(self.parts, one.tenant_id, one.id, trigger="manual")
        assert run is not None
        assert control.sync(self.parts, one.tenant_id, one.id, run)
        self.work()

    def work(self) -> None:
        """Everything that waits, then what the pump does when runs are settled."""
        indexer, tenant = self.parts.indexer, self.parts.tenant
        steps = {Stage.FETCHED: indexer.chunk, Stage.CHUNKED: indexer.embed, Stage.EMBEDDED: indexer.upsert}
        for stage, step in steps.items():
            step(tenant, self.waiting(stage))
        control.pump(self.parts)
        upkeep.build_indexes(self.parts)

    def waiting(self, stage: Stage) -> list[Item]:
        """Documents that wait for a stage."""
        with self.parts.database.control() as connection:
            rows = connection.exec_driver_sql(
                "select id, desired_version from document where state = 'pending' and stage = %s",
                (stage.value,),
            )
            return [Item(row.id, row.desired_version) for row in rows]

    def examine(self, *, repair: bool = False) -> Findings:
        """The doctor's findings by the name of their check."""
        found = doctor.report(doctor.examine(self.parts, repair=repair))["findings"]
        assert len({f["check"] for f in found}) == len(found)
        return {f["check"]: f for f in found}

    def mend(self, check: str) -> Json:
        """What repairing this damage reports; it is found before, and not found again afterwards."""
        before = self.examine()[check]
        assert before["status"] != "ok", before
        assert before["fix"]
        assert before["repaired"] is False
        mended = self.examine(repair=True)[check]
        assert mended["repaired"] is True, mended
        assert mended["status"] == "ok"
        assert self.examine()[check]["status"] == "ok"
        return before


@pytest.fixture
def parts(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    settings = load(tmp_path / "larder.yaml", {"LARDER_DATA": str(tmp_path / "data")})
    where = runtime.Addresses(
        database=addresses.app, control=addresses.control, admin=addresses.admin, broker=servers.broker_url
    )
    made = Runtime(settings, where)
    configure(settings.rag.queue, servers.broker_url)
    runtime.use(made)
    registering.register(made)
    yield made
    made.database.close()
    with redis.Redis.from_url(servers.broker_url) as broker:
        broker.delete(*QUEUES)


@pytest.fixture
def elsewhere(parts: Runtime) -> Iterator[Callable[..., Runtime]]:
    """`elsewhere(broker=...)`: the same installation, with another address; closed at the end."""
    made: list[Runtime] = []

    def build(**addresses: str) -> Runtime:
        made.append(Runtime(parts.settings, runtime.Addresses(**{**vars(parts.addresses), **addresses})))
        return made[-1]

    yield build
    for one in made:
        one.database.close()


@pytest.fixture
def store(parts: Runtime, tmp_path: Path) -> Store:
    """Three documents, indexed, and workers that say they live."""
    made = Store(parts, tmp_path)
    for name in ("berth.md", "crane.md", "tide.md"):
        made.write(name)
    made.sync()
    beat(parts)
    return made


def beat(parts: Runtime, queues: tuple[str, ...] = QUEUES) -> None:
    """Signs of life of a worker per queue."""
    with parts.database.control() as connection:
        connection.exec_driver_sql("delete from worker")
        for queue in queues:
            connection.exec_driver_sql(
                "insert into worker (name, queues, host, pid) values (%s, %s, 'here', 1)",
                (f"worker-{queue}", queue),
            )


def test_a_healthy_store_gives_nothing_to_complain_about(store: Store) -> None:
    findings = store.examine()
    assert {name: f for name, f in findings.items() if f["status"] != "ok" and name != "disk"} == {}
    assert [f["check"] for f in findings.values()] == [c.name for c in doctor.CHECKS]
    assert all(f["fix"] == "" and f["repaired"] is False for n, f in findings.items() if n != "disk")


def test_an_empty_store_is_healthy_too(parts: Runtime, tmp_path: Path) -> None:
    empty = Store(parts, tmp_path)
    empty.write("one.md")
    beat(parts)
    bad = {name for name, f in empty.examine().items() if f["status"] != "ok"}
    assert bad <= {"disk"}


def test_repair_of_a_healthy_store_changes_nothing(store: Store, omniscient: SQL) -> None:
    def everything() -> list[Any]:
        tables = ("document", "document_body", "chunk", "embedding_cache", "index_stat", "lexeme_stat")
        return [
            omniscient.execute(f"select md5(string_agg(x::text, '' order by x::text)) from {t} x").fetchone()
            for t in tables
        ]

    before = everything()
    assert not any(f["repaired"] for f in store.examine(repair=True).values())
    assert everything() == before


# What is planted, by the check that must find it; each can be mended at once.
PLANTED = {
    "orphaned chunks": "update document set deleted = true, state = 'done' where external_id like '%tide.md'",
    "staged chunks": """
        insert into chunk_stage (document_id, tenant_id, version, ord, content, context, hash)
        select id, tenant_id, 1, 0, 'x', '', '\\x00' from document""",
    "old texts": """
        insert into document_body (document_id, tenant_id, version, body) select id, tenant_id, 0, 'x' from document""",
    "search index": "update search_index set status = 'building'",
    "keyword statistics": "update index_stat set refreshed_at = refreshed_at - interval '1 hour'",
}


@pytest.mark.parametrize("check", PLANTED)
def test_planted_damage_is_found_and_mended(check: str, store: Store, omniscient: SQL) -> None:
    omniscient.execute(PLANTED[check])
    store.mend(check)


def test_chunks_whose_document_is_gone_are_removed_and_no_others(store: Store, omniscient: SQL) -> None:
    row = omniscient.execute("select count(*) from chunk").fetchone()
    assert row is not None
    omniscient.execute("delete from document where external_id like '%tide.md'")
    found = store.mend("orphaned chunks")
    left = omniscient.execute(
        "select count(*), count(d.id) from chunk c left join document d on d.id = c.document_id"
    )
    counted = left.fetchone()
    assert counted is not None
    assert counted[0] == counted[1] > 0
    assert found["detail"].startswith(f"{row[0] - counted[0]} chunks")


DAMAGE = {
    "lost": "delete from chunk where ord = 0",
    "all lost": "delete from chunk",
    "doubled": """
        insert into chunk select index_id, tenant_id, project_id, document_id, ord + 100, version, content, context,
        hash, lexemes, length, embedding from chunk where ord = 0""",
    "moved": "update chunk set ord = 100 where ord = 0",
    "stale": "update chunk set version = 0",
    "mixed": "update chunk set version = 0 where ord = 1",
    "from a later version": "update chunk set version = 9 where ord = 1",
    "never indexed in the wanted version": "update document set desired_version = 5",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_documents_without_exactly_their_chunks_are_indexed_again(
    kind: str, store: Store, omniscient: SQL
) -> None:
    # Versions of bodies follow, so that only the chunks are wrong.
    omniscient.execute(DAMAGE[kind])
    omniscient.execute(
        "update document_body b set version = d.desired_version from document d where d.id = b.document_id"
    )
    before = contents(omniscient)
    found = store.mend("document chunks")
    assert found["status"] == "error"
    assert "3 documents" in found["detail"]
    store.work()
    after = contents(omniscient)
    assert store.examine()["document chunks"]["status"] == "ok"
    assert {name: len(texts) for name, texts in after.items()} == dict(counts(omniscient))
    assert all(len(set(texts)) == len(texts) > 1 for texts in after.values())
    assert set(after) >= set(before)
    states = omniscient.execute(
        "select distinct state, indexed_version = desired_version from document"
    ).fetchall()
    assert states == [("done", True)]


def contents(omniscient: SQL) -> dict[str, list[str]]:
    """Texts of the chunks by document."""
    rows = omniscient.execute(
        "select d.external_id, array_agg(c.content order by c.ord) from document d join chunk c on c.document_id = d.id group by 1"
    )
    return dict(rows.fetchall())


def counts(omniscient: SQL) -> list[tuple[str, int]]:
    return omniscient.execute("select external_id, chunk_count from document").fetchall()


def test_only_the_damaged_document_is_indexed_again(store: Store, omniscient: SQL) -> None:
    omniscient.execute(
        "delete from chunk where ord = 0 and document_id = (select id from document where external_id like '%crane.md')"
    )
    store.mend("document chunks")
    rows = omniscient.execute("select external_id from document where state = 'pending'").fetchall()
    assert len(rows) == 1
    assert rows[0][0].endswith("crane.md")


def test_without_the_text_a_damaged_document_cannot_be_mended(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from chunk where ord = 0")
    omniscient.execute("delete from document_body")
    found = store.examine(repair=True)["document chunks"]
    assert (found["status"], found["repaired"]) == ("error", False)
    assert "larder index --force" in found["fix"]
    assert not doctor.report(doctor.examine(store.parts))["ok"]


def test_documents_of_another_tenant_are_looked_at_too(store: Store, omniscient: SQL) -> None:
    omniscient.execute("insert into tenant (id, name) values (gen_random_uuid(), 'other')")
    omniscient.execute(
        "update chunk set tenant_id = (select id from tenant where name = 'other') where ord = 0"
    )
    findings = store.examine()
    assert findings["orphaned chunks"]["status"] == "error"
    assert findings["document chunks"]["status"] == "error"
    assert "berth.md" in findings["document chunks"]["detail"]


def test_a_document_not_yet_in_the_new_index_is_judged_by_the_old_one(store: Store, omniscient: SQL) -> None:
    omniscient.execute("""
        insert into search_index (provider, model, dimensions, chunker, pipeline_version, status)
        values ('hashing', 'hashing-8', 8, 'structure', 'x', 'building')""")
    assert store.examine()["document chunks"]["status"] == "ok"


@pytest.mark.parametrize("what", ["lexemes", "vector"])
def test_an_index_that_is_not_built_is_built(what: str, store: Store, omniscient: SQL) -> None:
    retrieval = store.parts.rag.retrieval.model_copy(update={"exact_below": 1})
    store.parts.rag = store.parts.rag.model_copy(update={"retrieval": retrieval})
    upkeep.build_indexes(store.parts)
    assert store.examine()["built indexes"]["status"] == "ok"
    omniscient.execute(f"drop index chunk_1_{what}")
    store.mend("built indexes")
    omniscient.execute(f"drop index chunk_1_{what}")
    omniscient.execute("update search_index set keyword_built = false, indexed_rows = null")
    store.mend("built indexes")
    row = omniscient.execute(f"select to_regclass('chunk_1_{what}') is not null").fetchone()
    assert row == (True,)


def test_above_exact_below_a_missing_vector_index_is_found(store: Store) -> None:
    assert store.examine()["built indexes"]["status"] == "ok"
    retrieval = store.parts.rag.retrieval.model_copy(update={"exact_below": 1})
    store.parts.rag = store.parts.rag.model_copy(update={"retrieval": retrieval})
    assert "vector index" in store.mend("built indexes")["detail"]


def test_a_cache_over_its_limit_is_trimmed(store: Store, omniscient: SQL) -> None:
    omniscient.execute("""
        insert into embedding_cache (tenant_id, model, hash, vector, used_at)
        select t.id, 'other', sha256(n::text::bytea), array_fill(0.5, array[2000])::vector::halfvec, '2020-01-01'
        from tenant t, generate_series(1, 300) n""")
    embedding = store.parts.rag.embedding
    small = embedding.model_copy(update={"cache": embedding.cache.model_copy(update={"max_size": 1})})
    store.parts.rag = store.parts.rag.model_copy(update={"embedding": small})
    assert "allowed are 1" in store.mend("embedding cache")["detail"]


def test_an_invalid_index_is_named(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update pg_index set indisvalid = false where indexrelid = 'document_tags'::regclass")
    found = store.examine(repair=True)["valid indexes"]
    assert found["status"] == "error"
    assert "reindex index document_tags" in found["fix"]


WAITING = {
    "never sent": "update document set state = 'pending', stage = 'fetched', due_at = now() - interval '1 hour'",
    "message lost": """update document set state = 'pending', stage = 'fetched', due_at = now() - interval '1 hour',
        enqueued_at = now() - interval '1 hour'""",
    "lease forgotten": """update document set state = 'pending', stage = 'fetched', lease_token = gen_random_uuid(),
        lease_until = now() - interval '5 minutes'""",
}


@pytest.mark.parametrize("kind", WAITING)
def test_forgotten_documents_get_a_message(
    kind: str, store: Store, omniscient: SQL, servers: embedded.Servers
) -> None:
    with redis.Redis.from_url(servers.broker_url) as broker:
        omniscient.execute(WAITING[kind])
        broker.delete("ingest")
        assert "3 " in store.mend("waiting documents")["detail"]
        assert broker.llen("ingest") == 1


def test_a_document_that_waits_for_its_time_is_not_forgotten(store: Store, omniscient: SQL) -> None:
    omniscient.execute(
        "update document set state = 'pending', stage = 'fetched', due_at = now() + interval '1 hour'"
    )
    assert store.examine()["waiting documents"]["status"] == "ok"


def test_an_open_run_without_workers_is_an_error(store: Store, omniscient: SQL) -> None:
    one = next(iter(store.parts.configured.values()))
    control.start_run(store.parts, one.tenant_id, one.id, trigger="manual")
    assert store.examine()["open runs"]["status"] == "ok"
    omniscient.execute("update worker set seen_at = now() - interval '1 minute' where queues = 'embed'")
    found = store.examine()
    assert found["open runs"]["status"] == "error"
    assert "notes" in found["open runs"]["detail"]
    assert "embed" in found["open runs"]["detail"]
    assert (found["workers"]["status"], found["workers"]["detail"]) == ("error", "no worker serves embed")


def test_no_worker_at_all_is_a_warning(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from worker")
    assert store.examine()["workers"]["status"] == "warning"
    assert doctor.report(doctor.examine(store.parts))["ok"]


def test_a_queue_that_does_no_task_is_found(store: Store, omniscient: SQL) -> None:
    for queue in QUEUES:
        upkeep.sing(store.parts, queue)
    omniscient.execute("update canary set sung_at = now() - interval '10 minutes' where queue = 'embed'")
    assert store.examine()["workers"]["status"] == "ok"  # its worker has only just started
    omniscient.execute("update worker set started_at = now() - interval '10 minutes'")
    found = store.examine()["workers"]
    assert found["status"] == "warning"
    assert found["detail"].startswith("embed did no task")


def test_dead_letters_and_held_deletions_are_warnings(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update document set state = 'dead' where external_id like '%tide.md'")
    omniscient.execute("""
        insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts, crash_count)
        select tenant_id, source_id, id, desired_version, 'fetched', 'E003', 'broken', 1, 0 from document
        where state = 'dead'""")
    omniscient.execute("update source set held = 40")
    found = store.examine()
    assert (found["dead letters"]["status"], found["dead letters"]["fix"]) == ("warning", "larder dead list")
    assert found["held deletions"]["status"] == "warning"
    assert "40 of notes" in found["held deletions"]["detail"]
    assert found["held deletions"]["fix"].endswith("larder sources release notes")


AUDITS = {
    "changed": "update audit set subject = 'other' where id = 2",
    "changed with its own hash": """
        update audit set detail = '{"a": 2}', hash = encode(sha256(convert_to(concat_ws('|', prev_hash,
        extract(epoch from at)::text, actor, action, subject, '{"a": 2}'), 'UTF8')), 'hex') where id = 2""",
    "taken out": "delete from audit where id = 2",
    "first taken out": "delete from audit where id = 1",
    "put in": """
        insert into audit (tenant_id, actor, action, subject, prev_hash, hash)
        select tenant_id, actor, action, subject, hash, 'made up' from audit where id = 3""",
}


@pytest.mark.parametrize("kind", AUDITS)
def test_a_broken_audit_chain_is_found(kind: str, store: Store, omniscient: SQL) -> None:
    for subject in ("one", "two", "three"):
        with store.parts.database.tenant(store.parts.tenant) as connection:
            operations.audit(connection, store.parts.tenant, "test", subject, {"a": 1, "b": [None, "ä"]})
    assert store.examine()["audit chain"]["detail"] == "3 entries fit"
    omniscient.execute(AUDITS[kind])
    found = store.examine(repair=True)["audit chain"]
    assert (found["status"], found["repaired"]) == ("error", False)


def test_a_table_without_row_security_is_found(store: Store, omniscient: SQL) -> None:
    for change in ("no force", "disable"):
        omniscient.execute(f"alter table chunk_stage {change} row level security")
        found = store.examine()["row security"]
        assert found["status"] == "error"
        assert "chunk_stage" in found["detail"]
        for statement in found["fix"].removeprefix("as the owner: ").split("; "):
            omniscient.execute(statement)
        assert store.examine()["row security"]["status"] == "ok"


@pytest.fixture
def mighty(omniscient: SQL) -> Iterator[Callable[[str], None]]:
    """Gives larder_app a right it must not have, for the length of a test."""
    given: list[str] = []

    def give(right: str) -> None:
        given.append(right)
        omniscient.execute(f"alter role larder_app {right}")

    yield give
    for right in given:
        omniscient.execute(f"alter role larder_app no{right}")


@pytest.mark.parametrize("right", ["bypassrls", "superuser"])
def test_a_role_that_sees_every_tenant_is_found(
    right: str, store: Store, mighty: Callable[[str], None]
) -> None:
    mighty(right)
    found = store.examine()["roles"]
    assert found["status"] == "error"
    assert "larder_app" in found["detail"]


def test_a_login_that_is_mightier_than_its_role_is_a_warning(
    elsewhere: Callable[..., Runtime], addresses: Addresses, server_folder: Path
) -> None:
    password = embedded.Credentials.of(server_folder).postgres
    server = urlsplit(addresses.app).netloc.rpartition("@")[2]
    url = f"postgresql://postgres:{password}@{server}/{addresses.name}"
    found = server_checks.roles(elsewhere(database=url, control=url))
    assert found.health is Health.WARNING
    assert "postgres" in found.detail


def test_an_old_schema_stops_the_other_questions_to_the_database(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update alembic_version set version_num = '000'")
    found = store.examine()
    assert found["schema"]["status"] == "error"
    assert found["schema"]["fix"] == "larder migrate"
    assert "document chunks" not in found
    assert "broker" in found


def test_without_a_database_the_rest_is_still_looked_at(
    store: Store, elsewhere: Callable[..., Runtime]
) -> None:
    nowhere = "postgresql://larder_app:x@127.0.0.1:1/none"
    found = doctor.report(doctor.examine(elsewhere(database=nowhere, control=nowhere), repair=True))
    assert found["ok"] is False
    assert found["version"] == version("larder")
    rest = ["broker", "heartbeats", "model", "reranker", "sources", "disk"]
    assert [f["check"] for f in found["findings"]] == ["database", *rest]
    assert "does not answer" in found["findings"][0]["detail"]


def test_a_broker_that_is_away_is_an_error(elsewhere: Callable[..., Runtime]) -> None:
    found = server_checks.message_broker(elsewhere(broker="redis://127.0.0.1:1/0"))
    assert found.health is Health.ERROR


def test_a_broker_that_drops_messages_is_an_error(store: Store, servers: embedded.Servers) -> None:
    with redis.Redis.from_url(servers.broker_url) as client:
        used = client.info("memory")["used_memory"]
        try:
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert "allkeys-lru" in store.examine()["broker"]["detail"]
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", int(used / 0.75))
            assert store.examine()["broker"]["status"] == "warning"
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
    assert store.examine()["broker"]["status"] == "ok"


def test_a_source_that_cannot_be_read_is_named(store: Store) -> None:
    for path in (store.root / "docs").iterdir():
        path.unlink()
    found = store.examine()["sources"]
    assert (found["status"], found["fix"]) == ("warning", "larder sources check notes")


def test_missing_model_files_are_an_error(store: Store) -> None:
    folder = store.root / "empty-model"
    folder.mkdir()
    embedding = store.parts.rag.embedding.model_copy(update={"provider": "minilm", "model_path": folder})
    store.parts.rag = store.parts.rag.model_copy(update={"embedding": embedding})
    store.parts.__dict__.pop("embedding_options", None)
    found = store.examine()["model"]
    assert found["status"] == "error"
    assert "model.onnx" in found["detail"]


@pytest.mark.parametrize(("host", "status"), [("nowhere.invalid", "warning"), ("localhost", "ok")])
def test_a_service_whose_host_nobody_knows_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, host: str, status: str
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    changes = {"provider": "ollama", "base_url": f"http://{host}:11434", "model": None, "dimensions": None}
    embedding = store.parts.rag.embedding.model_copy(update=changes)
    store.parts.rag = store.parts.rag.model_copy(update={"embedding": embedding})
    store.parts.__dict__.pop("embedding_options", None)
    found = machine_checks.model(store.parts)
    assert found.health.value == status, found
    assert (host in found.detail) == (status == "warning")


def test_a_process_that_lives_and_is_silent_is_found(store: Store) -> None:
    data = store.parts.settings.data
    (data / "heartbeat").mkdir(parents=True)
    file = data / "heartbeat" / "heartbeat-worker-embed.json"
    file.write_text(json.dumps({"pid": os.getpid(), "at": time.time() - 60}), encoding="utf-8")
    assert store.examine()["heartbeats"]["status"] == "ok"  # left behind by a process that was stopped
    started = psutil.Process().create_time()
    processes = [{"name": "worker-embed", "pid": os.getpid(), "started": started}]
    (data / "state.json").write_text(json.dumps({"processes": processes}), encoding="utf-8")
    found = store.examine()["heartbeats"]
    assert found["status"] == "error"
    assert "worker-embed for 6" in found["detail"]
    file.write_text(json.dumps({"pid": os.getpid(), "at": time.time()}), encoding="utf-8")
    assert store.examine()["heartbeats"]["status"] == "ok"


@pytest.mark.parametrize(
    ("free", "health"),
    [
        (999_999_999, Health.ERROR),
        (1_000_000_000, Health.WARNING),
        (4_999_999_999, Health.WARNING),
        (5_000_000_000, Health.OK),
    ],
)
def test_how_much_disk_is_enough(free: int, health: Health) -> None:
    assert machine_checks.judge_disk(free, "data").health is health


def test_a_clock_that_is_wrong_is_a_warning(store: Store) -> None:
    def ahead(seconds: float) -> Callable[[], datetime]:
        return lambda: datetime.now(UTC) + timedelta(seconds=seconds)

    assert server_checks.clock(store.parts, ahead(3)).health is Health.OK
    assert server_checks.clock(store.parts, ahead(8)).health is Health.WARNING
    assert server_checks.clock(store.parts, ahead(-8)).health is Health.WARNING


@pytest.mark.parametrize(
    ("version", "health"), [("0.7.4", "error"), ("0.8.0", "ok"), ("0.10.1", "ok"), ("1.0", "ok")]
)
def test_which_pgvector_is_new_enough(version: str, health: str) -> None:
    assert server_checks.judge_pgvector(version).health == health


def test_no_finding_shows_a_text(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from chunk where ord = 0")
    said = str(store.examine(repair=True))
    assert "document chunks" in said
    assert "quay" not in said
