"""larder sources, dead and doctor: what they print, and how they exit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import redis
import typer
from cryptography.fernet import Fernet
from typer.testing import CliRunner, Result

from tests.ledger import Ledger, ago
from workers import runtime as runtimes
from workers.cli import index, operate
from workers.local import embedded
from workers.queue.celeryconfig import QUEUES

app = typer.Typer()
app.add_typer(index.sources, name="sources")
app.add_typer(operate.dead, name="dead")
app.add_typer(operate.keys, name="keys")
app.command()(operate.doctor)

CONFIG = """
rag:
  tenant: acme
  embedding: {provider: hashing, dimensions: 64}
  sources:
    - {name: docs, type: markdown, paths: ["docs/*.md"]}
    - {name: notes, type: text, paths: ["notes/*.txt"]}
"""
SQL = psycopg.Connection[Any]
Run = Callable[..., Result]


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    servers: embedded.Servers,
) -> Run:
    """`run("dead", "list")`: the command on this test's database."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n\nText.", encoding="utf-8")
    env = {**environment, "COLUMNS": "200"}

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(app, list(args), env=env)
        for runtime in runtimes._current:
            runtime.database.close()
        with redis.Redis.from_url(servers.broker_url) as client:
            client.delete(*QUEUES)
        return result

    return invoke


@pytest.fixture
def dead(run: Run, ledger: Ledger) -> list[int]:
    """Three dead letters of docs: a.md, b.md, c.md."""
    assert run("sources", "list").exit_code == 0
    names = ["a.md", "b.md", "c.md"]
    for name in names:
        ledger.add_document(name, "docs", source_type="documentation", state="dead", stage="chunked")
    return [ledger.add_letter(name, code="E002", reason="the model is away")["id"] for name in names]


def document(result: Result) -> Any:
    """Stdout as the one document it must be."""
    return json.loads(result.stdout)


def states(ledger: Ledger) -> dict[str, str]:
    return dict(ledger.documents.values("external_id", "state"))


# Sources ------------------------------------------------------------------------------------------


def test_sources_are_listed_for_people_and_machines(run: Run) -> None:
    told = run("sources", "list", "--json")
    assert told.stderr == "", "who reads the document reads no table beside it"
    found = document(told)["sources"]
    assert [(s["name"], s["state"]) for s in found] == [("docs", "active"), ("notes", "active")]
    shown = run("sources", "list").stdout
    assert "docs" in shown
    assert "never" in shown


def test_check_fails_if_a_source_cannot_be_read(run: Run) -> None:
    good = run("sources", "check", "docs", "--json")
    assert good.exit_code == 0
    assert document(good)["success"] is True
    bad = run("sources", "check")
    assert bad.exit_code == 1
    assert "bad" in bad.stdout
    assert "notes/*.txt" in bad.stdout
    assert document(run("sources", "check", "--json"))["success"] is False


def test_check_needs_no_server(run: Run, tmp_path: Path) -> None:
    checked = CliRunner().invoke(
        app, ["sources", "check", "docs"], env={"LARDER_DATA": str(tmp_path / "data")}
    )
    assert checked.exit_code == 0, checked.output
    assert not (tmp_path / "data").exists()


def test_pause_resume_release_and_reconcile(run: Run, ledger: Ledger) -> None:
    paused = run("sources", "pause", "docs")
    assert paused.exit_code == 0
    assert "larder sources resume docs" in paused.stdout
    assert document(run("sources", "list", "--json"))["sources"][0]["state"] == "paused"
    assert document(run("sources", "resume", "docs", "--json"))["paused"] is False
    ledger.sources.set("docs", held=7)
    released = run("sources", "release", "docs")
    assert "released 7 deletions; started a sync of docs" in released.stdout
    again = run("sources", "reconcile")
    assert (
        again.stdout.strip()
        == "started a sync of notes; docs is being synced already: repeat this when it has ended"
    )


@pytest.mark.parametrize("what", [["check"], ["pause"], ["resume"], ["release"], ["reconcile"]])
def test_an_unknown_source_lists_the_known_ones(what: list[str], run: Run) -> None:
    refused = run("sources", *what, "nots")
    assert refused.exit_code == 2
    assert "'nots'" in refused.stderr
    assert "docs, notes" in refused.stderr
    assert "Traceback" not in refused.output
    assert document(run("sources", *what, "nots", "--json"))["success"] is False


@pytest.mark.parametrize(
    ("of_old", "of_new", "words"),
    [
        ("", "", "docs had no documents; it is called handbook now"),
        ("ab", "", "handbook has 2 documents of docs"),
        ("ab", "ab", "handbook had 2 documents of docs already, and they no longer come twice"),
        ("ab", "a", "handbook has 1 document of docs, and had 1 document more of it already"),
    ],
)
def test_a_rename_says_what_became_of_the_documents(
    run: Run, tmp_path: Path, ledger: Ledger, of_old: str, of_new: str, words: str
) -> None:
    assert run("sources", "list").exit_code == 0
    (tmp_path / "larder.yaml").write_text(CONFIG.replace("name: docs", "name: handbook"), encoding="utf-8")
    assert run("sources", "list").exit_code == 0
    for source, items in (("docs", of_old), ("handbook", of_new)):
        for item in items:
            ledger.add_document(item, source, state="done", stage="done")
    renamed = run("sources", "rename", "docs", "handbook")
    assert renamed.stdout.strip().startswith(words)
    assert renamed.exit_code == 0


def test_a_source_is_forgotten_with_yes_alone(run: Run, ledger: Ledger) -> None:
    assert run("sources", "list").exit_code == 0
    refused = run("sources", "forget", "docs", "--yes")
    assert refused.exit_code == 2
    assert "acme/docs is configured" in refused.stderr
    ledger.add_source("former", "docs")
    asked = run("sources", "forget", "acme/former")
    assert asked.exit_code == 2
    assert "forget acme/former and remove 0 documents; repeat it with --yes" in asked.stdout
    assert document(run("sources", "forget", "former", "--yes", "--json"))["forgotten"] == ["acme/former"]
    assert "former" not in run("sources", "list").stdout


# Dead letters -------------------------------------------------------------------------------------


def test_dead_letters_are_listed(run: Run, dead: list[int]) -> None:
    shown = run("dead", "list").stdout
    for words in ("a.md", "b.md", "c.md", "the model is away", "chunked", str(dead[0])):
        assert words in shown
    assert "a title" not in shown
    found = document(run("dead", "list", "--source", "docs", "--json"))["dead_letters"]
    assert [letter["id"] for letter in found] == list(reversed(dead))
    assert document(run("dead", "list", "--source", "notes", "--json"))["dead_letters"] == []
    assert run("dead", "list", "--source", "nots").exit_code == 2


def test_no_dead_letters_is_a_sentence(run: Run) -> None:
    listed = run("dead", "list")
    assert (listed.exit_code, listed.stdout.strip()) == (0, "no dead letters")


def test_one_letter_is_shown_without_the_text(run: Run, dead: list[int]) -> None:
    shown = run("dead", "show", str(dead[0]))
    assert shown.exit_code == 0
    assert "a.md" in shown.stdout
    assert "a title" not in shown.stdout
    found = document(run("dead", "show", str(dead[0]), "--json"))
    assert (found["item"], found["code"], found["history"]) == ("a.md", "E002", [])
    assert run("dead", "show", "999").exit_code == 2


def test_replay_by_number(run: Run, dead: list[int], ledger: Ledger) -> None:
    done = run("dead", "replay", str(dead[0]), str(dead[2]), "--json")
    assert done.exit_code == 0
    assert document(done)["replayed"] == ["a.md", "c.md"]
    assert states(ledger) == {"a.md": "pending", "b.md": "dead", "c.md": "pending"}
    partly = run("dead", "replay", str(dead[0]), str(dead[1]))
    assert partly.exit_code == 3
    assert "queued 1 document again; no longer dead: a.md" in partly.stdout
    assert run("dead", "replay", str(dead[0])).exit_code == 1
    listed = document(run("dead", "list", "--all", "--json"))["dead_letters"]
    assert [letter["resolution"] for letter in listed] == ["replayed"] * 3


def test_replay_of_a_source_and_of_all(run: Run, dead: list[int], ledger: Ledger) -> None:
    assert document(run("dead", "replay", "--source", "notes", "--json"))["replayed"] == []
    assert set(states(ledger).values()) == {"dead"}
    assert run("dead", "replay", "--all").exit_code == 0
    assert set(states(ledger).values()) == {"pending"}


@pytest.fixture
def failed(dead: list[int], ledger: Ledger) -> list[str]:
    """Two jobs of stories of the letters' tenant that failed."""
    how = {"state": "failed", "task": "larder.stories.store", "code": "E002", "error": "the key is refused"}
    given = {"request": {"stories": [{"title": "a title"}]}, "finished_at": ago()}
    return sorted(str(ledger.add_job("docs", project_id=uuid4(), **how, **given)["id"]) for _ in range(2))


def test_failed_jobs_of_stories_are_among_the_dead_letters(
    run: Run, dead: list[int], failed: list[str], ledger: Ledger
) -> None:
    first, second = failed
    shown = run("dead", "list").stdout
    for words in ("a.md", first[:8], second[:8], "the key is refused"):
        assert words in shown
    assert {one["id"] for one in document(run("dead", "list", "--json"))["jobs"]} == set(failed)
    assert document(run("dead", "list", "--source", "docs", "--json"))["jobs"] == []
    assert document(run("dead", "show", first[:8], "--json"))["reason"] == "the key is refused"
    assert "a title" not in run("dead", "show", first).stdout + shown
    assert run("dead", "show", "0" * 8 + "-none").exit_code == 2
    done = document(run("dead", "replay", str(dead[0]), first[:8], "--json"))
    assert done["replayed"] == ["a.md", first]
    assert ledger.jobs.values("state", id=UUID(first)) == ["queued"]
    assert run("dead", "drop", second).exit_code == 2
    assert ledger.jobs.values("state", id=UUID(second)) == ["failed"]
    assert document(run("dead", "drop", second, "--yes", "--json"))["dropped"] == [second]
    assert ledger.jobs(id=UUID(second)) == []
    ledger.jobs.set(state="failed", finished_at=ago())
    assert (
        "queued 2 documents again; queued 1 job of user stories again"
        in run("dead", "replay", "--all").stdout
    )


@pytest.mark.parametrize("what", [[], ["1", "--all"], ["--source", "docs", "--all"]])
def test_replay_wants_exactly_one_choice(what: list[str], run: Run, dead: list[int], ledger: Ledger) -> None:
    refused = run("dead", "replay", *what)
    assert refused.exit_code == 2
    assert "give ids, or --source NAME, or --all" in refused.stderr
    assert set(states(ledger).values()) == {"dead"}


def test_drop_wants_a_yes(run: Run, dead: list[int], ledger: Ledger) -> None:
    refused = run("dead", "drop", str(dead[0]))
    assert refused.exit_code == 2
    assert "would drop a.md" in refused.stdout
    assert len(document(run("dead", "list", "--json"))["dead_letters"]) == 3
    done = run("dead", "drop", str(dead[0]), "--yes", "--json")
    assert document(done) == {"success": True, "dropped": ["a.md"]}
    assert len(document(run("dead", "list", "--json"))["dead_letters"]) == 2
    assert states(ledger)["a.md"] == "dead"


# Doctor -------------------------------------------------------------------------------------------


def test_doctor_exits_by_what_remains(run: Run, dead: list[int], ledger: Ledger) -> None:
    well = run("doctor", "--json")
    assert well.exit_code == 0
    assert document(well)["ok"] is True
    assert {"check", "status", "detail", "fix", "repaired"} == set(document(well)["findings"][0])
    ledger.documents.set(state="done", chunk_count=2, indexed_version=1)
    ill = run("doctor")
    assert ill.exit_code == 1
    assert "3 documents have lost, doubled or old chunks: a.md, b.md, c.md" in " ".join(ill.stdout.split())
    for one in ledger.documents():
        ledger.bodies.add(document_id=one["id"], tenant_id=one["tenant_id"], version=1, body="x")
    mended = document(run("doctor", "--repair", "--json"))
    assert [f["check"] for f in mended["findings"] if f["repaired"]] == ["document chunks"]
    assert set(states(ledger).values()) == {"pending"}


# Keys ---------------------------------------------------------------------------------------------


@pytest.mark.req("001-114")
def test_keys_are_made_counted_and_replaced(
    run: Run, dead: list[int], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [document(run("keys", "new", "--json"))["key"] for _ in range(2)]
    old, new = (hashlib.sha256(key.encode()).hexdigest()[:8] for key in keys)
    token = Fernet(keys[0]).encrypt(b'{"author": "Ann"}').decode()
    ledger.documents.set(metadata={"encrypted": token})
    assert run("keys", "new").stdout.strip() not in keys
    monkeypatch.setenv("LARDER_ENCRYPTION_KEYS", keys[1])
    assert document(run("keys", "status", "--json"))["documents"] == {new: 0, "unknown key": 3}
    early = run("keys", "rotate")
    assert early.exit_code == 3, "the old key was taken away too early"
    assert "3 documents are opened by none of these keys; put their key back" in early.stdout
    monkeypatch.setenv("LARDER_ENCRYPTION_KEYS", f"{keys[1]},{keys[0]}")
    Path("larder.yaml").write_text(f"{CONFIG}  security: {{encrypt: [author]}}\n", encoding="utf-8")
    assert document(run("keys", "status", "--json"))["documents"] == {new: 0, old: 3}
    assert "3 documents were encrypted anew" in run("keys", "rotate").stdout
    assert document(run("keys", "status", "--json"))["documents"] == {new: 3, old: 0}
    assert len(ledger.audit(action="keys.rotate")) == 1
    told = document(run("keys", "rotate", "--json"))
    assert told["rotated"] == 0
    monkeypatch.setenv("LARDER_ENCRYPTION_KEYS", "secret")
    refused = run("keys", "status")
    assert refused.exit_code != 0
    assert "LARDER_ENCRYPTION_KEYS: security.encryptionKeys: found a text that is not shown" in refused.stderr
    assert "secret" not in refused.stderr
