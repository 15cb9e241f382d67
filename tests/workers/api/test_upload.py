"""What is sent to a project: found when it is done, replaced when it is sent again, refused with its reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from fastapi.testclient import TestClient

from pipeline.ledger import documents, due_work, project_id, tenant_id
from pipeline.ledger.overview import newest_problems
from tests.ledger import of_connection
from tests.workers.api.conftest import ACME, Ask
from workers.app import status
from workers.app.health.source_words import count_rejected
from workers.app.ingestion import maintenance, pump, steps, upload
from workers.runtime import Runtime
from workers.settings import SOURCE_TYPES

BERTH = project_id(ACME.tenant, "berth")
Files = list[tuple[str, tuple[str, bytes]]]


def files(**named: bytes | str) -> Files:
    return [
        ("files", (name, body if isinstance(body, bytes) else body.encode())) for name, body in named.items()
    ]


@pytest.fixture
def send(api: TestClient, token: Callable[..., str]) -> Callable[..., Any]:
    def post(sent: Files, project: UUID = BERTH, **changes: Any) -> Any:
        headers = {
            "Authorization": f"Bearer {token(**{'permissions': frozenset({'read', 'write'})} | changes)}"
        }
        data = {"project_id": str(project)}
        return api.post("/api/v1/knowledge/upload", data=data, files=sent, headers=headers)

    return post


def work_off(runtime: Runtime) -> None:
    """What the workers would do."""
    indexer = steps.indexer(runtime, ACME.tenant)
    for step in (indexer.chunk, indexer.embed, indexer.upsert):
        with runtime.database.control() as connection:
            of_connection(connection).documents.set({"state": "pending"}, enqueued_at=None)
            found = due_work.pump_once(connection, steps.limits(runtime.rag))
        for batch in found.batches if found else ():
            step(batch.tenant_id, batch.items)
    maintenance.refresh_statistics(runtime)
    pump.pump_once(runtime)


def run_of(api: TestClient, token: Callable[..., str], answer: Any) -> Any:
    headers = {"Authorization": f"Bearer {token(permissions=frozenset({'write'}))}"}
    return api.get(answer.headers["Location"], headers=headers).json()


def test_what_could_not_be_taken_is_the_uploaders_affair(
    runtime: Runtime, api: TestClient, send: Callable[..., Any], token: Callable[..., str]
) -> None:
    answer = send(files(**{"a.exe": b"MZ"}))
    work_off(runtime)

    (problem,) = run_of(api, token, answer)["problems"]
    assert problem["item"] == "a.exe"
    with runtime.database.control() as connection:
        assert newest_problems(connection) == {}
    found = status.status(runtime)
    (source,) = [one for one in found["sources"] if one["name"] == "upload:berth"]
    assert (source["problems"], source["last_error"], count_rejected(source)) == ([], None, 0)
    told = [step["detail"] for step in found["next"] if step["check"] == "sources"]
    assert "upload:" not in str(told), "whoever sent it was told"


def test_items_of_two_runs_are_two_documents_and_the_next_state_replaces_one(
    send: Callable[..., Any],
) -> None:
    def sent(title: str, text: str) -> str:
        pbi = {"id": "PBI-001", "title": title, "description": text}
        answer = send(files(**{"final-output.json": json.dumps({"pbis": [pbi]})})).json()
        assert answer["rejected"] == []
        return str(answer["documents"][0]["external_id"])

    first, other = sent("Sort the berths", "By draught."), sent("Count crane hours", "By shift.")

    assert first == "PBI-001"
    assert other.startswith("PBI-001~")
    assert sent("Sort all the berths", "By length.") == first
    assert sent("Count the crane hours", "By day.") == other


@pytest.mark.req("004-006", "004-027", "002-002", "002-003", "002-004", "002-011")
def test_what_is_sent_is_found_and_what_is_sent_again_replaces_it(
    api: TestClient, runtime: Runtime, ask: Ask, send: Callable[..., Any], token: Callable[..., str]
) -> None:
    page = "---\ntags: [quay]\ncategory: guide\n---\n# Fenders\n\nThe zephyrine fender is hung at {}.\n"
    pbi = json.dumps(
        {"pbis": [{"id": "PBI-9", "title": "Zephyrine fender alarm", "description": "Sound it."}]}
    )
    sent = files(**{"guide/fenders.md": page.format("dawn"), "note.txt": "A zephyrine note.", "b.json": pbi})
    answer = send(sent)
    assert answer.status_code == 202, answer.text
    assert answer.json()["rejected"] == []
    ids = {one["external_id"]: one["document_id"] for one in answer.json()["documents"]}
    assert set(ids) == {"guide/fenders.md", "note.txt", "PBI-9"}
    assert run_of(api, token, answer)["state"] == "processing"
    work_off(runtime)
    done = run_of(api, token, answer)
    assert (done["state"], done["queued"], done["indexed"]) == ("finished", 3, 3)
    found = {one["document_id"]: one for one in ask("zephyrine", k=50).json()["results"]}
    assert set(ids.values()) <= set(found)
    guide = found[ids["guide/fenders.md"]]
    assert "hung at dawn" in guide["chunk_text"]
    assert (guide["metadata"]["tags"], guide["metadata"]["url"]) == (["quay"], "")
    assert guide["metadata"]["source"] == "upload:berth"

    again = send(sent)
    assert (run_of(api, token, again)["unchanged"], run_of(api, token, again)["queued"]) == (3, 0)
    send(files(**{"guide/fenders.md": page.format("dusk")}))
    work_off(runtime)
    texts = [one["chunk_text"] for one in ask("zephyrine", k=50).json()["results"]]
    assert sum("hung at" in text for text in texts) == sum("hung at dusk" in text for text in texts) == 1

    headers = {"Authorization": f"Bearer {token(permissions=frozenset({'write', 'read'}))}"}
    gone = f"/api/v1/knowledge/documents/{ids['note.txt']}"
    assert (
        api.get(f"/api/v1/documents/{ids['note.txt']}", headers=headers).json()["text"] == "A zephyrine note."
    )
    assert [api.delete(gone, headers=headers).status_code for _ in range(2)] == [204, 404]
    assert api.get(f"/api/v1/documents/{ids['note.txt']}", headers=headers).status_code == 404
    assert not any("zephyrine note" in one["chunk_text"] for one in ask("zephyrine", k=50).json()["results"])


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("../evil.md", b"# x", "no path below a folder"),
        ("/etc/x.md", b"# x", "no path below a folder"),
        ("a//b.md", b"# x", "no path below a folder"),
        ("x" * 600 + ".md", b"# x", "longer than 500 bytes"),
        ("x" * 300 + ".md", b"# x", "no file of its name"),
        ("a.exe", b"MZ", "ends with none of"),
        ("a.md", b"PK\x03\x04\x00\x00", "binary file"),
        ("empty.md", b"", "holds no text"),
        ("latin.md", b"\xff\xfe\xfa\x00\x81", "not valid"),
        ("deep.json", b"[" * 100_000, "deep"),
        ("bad.json", b"{", ""),
    ],
)
def test_what_cannot_be_taken_is_named(send: Callable[..., Any], name: str, content: bytes, why: str) -> None:
    answer = send([("files", (name, content)), ("files", ("good.md", b"# Good\n\nA good page."))])
    assert answer.status_code == 202, answer.text
    (rejected,) = answer.json()["rejected"]
    assert why in rejected["reason"]
    assert "larder-upload" not in answer.text, "folders of ours are nobody's business"
    assert [one["external_id"] for one in answer.json()["documents"]] == ["good.md"]


def test_what_was_read_in_part_is_taken_and_named(send: Callable[..., Any]) -> None:
    sent = files(**{"a.md": "---\nassignee: @wren\ntitle: Berths\n---\nDeep berths.", "b.md": "# Fine"})

    answer = send(sent).json()

    assert [one["external_id"] for one in answer["documents"]] == ["a.md", "b.md"]
    assert answer["noted"] == [
        {"item": "a.md", "reason": "the header is not valid YAML at line 2; it was read line by line"}
    ]


def test_documents_are_taken_as_json(
    api: TestClient, runtime: Runtime, ask: Ask, token: Callable[..., str]
) -> None:
    headers = {"Authorization": f"Bearer {token(permissions=frozenset({'write'}))}"}
    one = {
        "title": "Quince",
        "text": "The quincefold rule.",
        "tags": ["rule"],
        "url": "https://example.com/q",
    }
    sent = {
        "project_id": str(BERTH),
        "documents": [one, {**one, "title": "Secret", "security_level": "restricted"}],
    }
    assert api.post("/api/v1/knowledge/documents", json=sent, headers=headers).status_code == 202
    work_off(runtime)
    found = ask("quincefold", k=50).json()["results"]
    told = [r["metadata"]["title"] for r in found if "quincefold" in r["chunk_text"]]
    assert told == ["Quince"], "what is restricted is for those who may see it"
    with runtime.database.tenant(ACME.tenant) as connection:
        hidden = documents.find(connection, "Secret", most=2)[0]["id"]
    paths = [f"/api/v1/knowledge/documents/{one}" for one in (hidden, project_id(BERTH, "nowhere"))]
    answers = [api.delete(path, headers=headers) for path in paths]
    assert [(one.status_code, one.json()["detail"]) for one in answers] == [
        (404, "there is no such document")
    ] * 2
    script = {**sent, "documents": [{**one, "url": "javascript:alert(1)"}]}
    assert api.post("/api/v1/knowledge/documents", json=script, headers=headers).status_code == 422


def test_nobody_replaces_what_they_may_not_see(
    api: TestClient, runtime: Runtime, send: Callable[..., Any], token: Callable[..., str]
) -> None:
    """Not even its existence could be undone: the text would be gone, and its readers would read another one."""
    board = {"groups": ("board",), "level": "restricted"}
    kept = {
        "closed.md": "---\nacl: [['group:board']]\n---\n# Closed\n\nThe board's berth.\n",
        "secret.md": "---\nsecurity_level: restricted\n---\n# Secret\n\nThe restricted berth.\n",
    }
    ids = {d["external_id"]: d["document_id"] for d in send(files(**kept), **board).json()["documents"]}
    for again in range(2):  # while they wait to be indexed, and afterwards
        answer = send(files(**dict.fromkeys([*kept, f"mine-{again}.md"], "# Mine\n\nNothing of theirs.")))
        assert [one["external_id"] for one in answer.json()["documents"]] == [f"mine-{again}.md"]
        assert {one["item"] for one in answer.json()["rejected"]} == set(kept)
        as_json = {"title": "Closed", "text": "Mine.", "external_id": "closed.md"}
        headers = {"Authorization": f"Bearer {token(permissions=frozenset({'write'}))}"}
        sent = {"project_id": str(BERTH), "documents": [as_json]}
        taken = api.post("/api/v1/knowledge/documents", json=sent, headers=headers).json()
        assert (taken["documents"], len(taken["rejected"])) == ([], 1)
        work_off(runtime)
    headers = {"Authorization": f"Bearer {token(**board)}"}
    texts = [api.get(f"/api/v1/documents/{one}", headers=headers).json()["text"] for one in ids.values()]
    assert ["berth" in text for text in texts] == [True, True]
    changed = send(files(**{name: text.replace("berth", "quay") for name, text in kept.items()}), **board)
    assert len(changed.json()["documents"]) == 2, "who may see it may replace it"


def test_an_installation_with_sources_takes_files(runtime: Runtime, send: Callable[..., Any]) -> None:
    """What it is configured with goes to the process that reads them."""
    kept, source = runtime.settings, {"name": "x", "type": "markdown", "paths": ["*.md"]}
    sources = (SOURCE_TYPES["markdown"].model_validate(source),)
    runtime.settings = replace(kept, rag=kept.rag.model_copy(update={"sources": sources}))
    try:
        answer = send(files(**{"with-sources.md": "# A\n\nText."}))
    finally:
        runtime.settings = kept
    assert (answer.status_code, len(answer.json().get("documents", ()))) == (202, 1), answer.text


@pytest.mark.parametrize("charset", ["utf-8", "unicode_escape", "utf-16", "no-such"])
def test_a_name_in_whatever_letters_is_no_fault(
    api: TestClient, token: Callable[..., str], charset: str
) -> None:
    """The sender says how names are to be read; half a letter, which nobody can store, comes out of some."""
    part = 'Content-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n--x'
    parts_sent = [
        part.format("project_id", "", BERTH),
        part.format("files", r'; filename="half-\ud83d-\u0000.md"', "# A"),
    ]
    content = "\r\n".join(["--x", *parts_sent]).encode() + b"--\r\n"
    headers = {
        "Authorization": f"Bearer {token(permissions=frozenset({'write'}))}",
        "Content-Type": f"multipart/form-data; boundary=x; charset={charset}",
    }
    answer = api.post("/api/v1/knowledge/upload", content=content, headers=headers)
    assert answer.status_code in (202, 422), answer.text


def test_two_names_that_cannot_be_there_together(send: Callable[..., Any]) -> None:
    page = "# A\n\nText."
    answer = send(files(**{"a.md/b.md": page, "a.md": page, "c.md": page}))
    assert answer.status_code == 202, answer.text
    assert [one["item"] for one in answer.json()["rejected"]] == ["a.md"]
    assert [one["external_id"] for one in answer.json()["documents"]] == ["a.md/b.md", "c.md"]


def test_what_others_have_sent_and_what_came_before_ends_nobodys_upload(send: Callable[..., Any]) -> None:
    """All that is sent is read by one process, which ends for what is evil."""
    page = files(**{"a.md": "# A\n\nText."})
    assert send(page).status_code == 202
    (reader,) = (p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline()))
    reader.suspend()
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(send, page) for _ in range(3)]
        time.sleep(0.5)
        reader.kill()
        assert {one.result(60).status_code for one in sent} == {202}


def test_who_waits_behind_what_takes_too_long_is_not_blamed_for_it(
    send: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MOST_SECONDS", 0.1)
    with upload._TURN:  # somebody else is read
        answer = send(files(**{"a.md": "# A\n\nText."}))
    assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True)


def test_uploads_that_wait_leave_threads_for_all_else(send: Callable[..., Any]) -> None:
    page = files(**{"a.md": "# A\n\nText."})
    places = upload._PLACES._initial_value  # type: ignore[attr-defined]
    with ThreadPoolExecutor(places) as pool:
        with upload._TURN:  # somebody else is read
            sent = [pool.submit(send, page) for _ in range(places)]
            while upload._PLACES._value:
                time.sleep(0.01)
            answer = send(page)
        assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True)
        assert {one.result(60).status_code for one in sent} == {202}


def test_only_who_may_write_to_the_project_sends(send: Callable[..., Any]) -> None:
    page = files(**{"a.md": "# A\n\nText."})
    shared = project_id(ACME.tenant, "default")
    assert send(page, shared).status_code == 403, "what all read is changed by whom the token names for it"
    assert [send(page, shared, projects=(name,)).status_code for name in ("default", "*")] == [202, 202]
    assert send(page, permissions=frozenset({"read"})).status_code == 403
    assert send(page, project_id(ACME.tenant, "empty")).status_code == 403
    assert send(page, project_id(tenant_id("evil"), "berth")).status_code == 404
    assert send([]).status_code == 422
    assert send(files(**{f"{n}.md": "x" for n in range(501)})).status_code == 422


def test_projects_are_made_by_who_may(api: TestClient, token: Callable[..., str]) -> None:
    def post(name: str = "dredging", **changes: Any) -> Any:
        headers = {"Authorization": f"Bearer {token(**changes)}"}
        return api.post("/api/v1/projects", json={"name": name}, headers=headers)

    assert post().status_code == 403
    theirs = project_id(tenant_id("evil"), "not made yet")  # anybody can work that out
    squatted = post(str(theirs).upper(), permissions=frozenset({"admin"}))
    assert (squatted.status_code, "is no id" in squatted.text) == (422, True)
    assert post("\x1f", permissions=frozenset({"admin"})).status_code == 422, "nothing but what no one sees"
    made = post(permissions=frozenset({"admin"}))
    assert (made.status_code, made.json()["id"]) == (201, str(project_id(ACME.tenant, "dredging")))
    seen = api.get("/api/v1/projects", headers={"Authorization": f"Bearer {token()}"}).json()
    assert [one["name"] for one in seen] == ["berth", "default"]


def test_sources_and_runs_of_ones_own_projects(api: TestClient, token: Callable[..., str]) -> None:
    def get(path: str, **changes: Any) -> Any:
        return api.get(path, headers={"Authorization": f"Bearer {token(**changes)}"})

    names = {one["name"] for one in get("/api/v1/sources").json()}
    assert {"notes-berth", "notes-default"} <= names
    shared = {one["name"] for one in get("/api/v1/sources", projects=()).json()}
    assert shared - {"upload:default"} == {"notes-default"}
    operator = {"permissions": frozenset({"operate"})}
    assert get("/api/v1/sources/notes-berth/runs").status_code == 403
    assert get("/api/v1/sources/notes-berth/runs", **operator).json()[0]["queued"] == 12
    assert get("/api/v1/sources/notes-berth/runs", projects=(), **operator).status_code == 404
    run = f"/api/v1/runs/{get('/api/v1/sources/notes-berth/runs', **operator).json()[0]['id']}"
    told = [get(run, permissions=frozenset({"write", more})).status_code for more in ("write", "operate")]
    assert told == [404, 200], "problems of a sync name items that few may see"
    assert get("/api/v1/runs/999999", permissions=frozenset({"write"})).status_code == 404


_SERVER = """
import os, sys
from workers.app.ingestion.upload import _reader
if __name__ == "__main__":
    print(_reader().submit(os.getpid).result(60), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_that_reads_ends_with_the_server(tmp_path: Path, ended_by: signal.Signals) -> None:
    program = tmp_path / "server.py"
    program.write_text(_SERVER, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as server:
        assert server.stdout is not None
        reader = psutil.Process(int(server.stdout.readline()))
        server.send_signal(ended_by)
        try:
            reader.wait(20)
        finally:
            if reader.is_running():
                reader.kill()


def test_of_two_files_with_one_name_the_last_is_taken_and_the_other_named(send: Callable[..., Any]) -> None:
    composed, decomposed = "M\u00fcller.md", "Mu\u0308ller.md"
    sent = [
        *files(**{"a.md": "# A\n\nfirst"}),
        *files(**{"a.md": "# A\n\nsecond"}),
        *files(**{"same.txt": "words"}),
        *files(**{"same.txt": "words"}),
        *files(**{composed: "# M\n\nfirst"}),
        *files(**{decomposed: "# M\n\nsecond"}),
        *files(**{"Guide.md": "# G\n\nfirst"}),
        *files(**{"guide.md": "# G\n\nsecond"}),
    ]

    answer = send(sent).json()

    assert {d["external_id"] for d in answer["documents"]} == {
        "a.md", "same.txt", composed, "Guide.md", "guide.md",
    }  # fmt: skip
    assert [r["item"] for r in answer["rejected"]] == ["a.md", composed]
    assert all("name of its own" in r["reason"] for r in answer["rejected"])


def test_of_two_documents_with_one_id_the_last_is_taken_and_the_other_named(
    api: TestClient, token: Callable[..., str]
) -> None:
    headers = {"Authorization": f"Bearer {token(permissions=frozenset({'read', 'write'}))}"}
    given = [{"title": "Same", "text": word} for word in ("first", "second", "second")]
    answer = api.post(
        "/api/v1/knowledge/documents",
        json={"project_id": str(BERTH), "documents": given},
        headers=headers,
    ).json()

    assert [d["external_id"] for d in answer["documents"]] == ["Same"]
    assert [r["item"] for r in answer["rejected"]] == ["Same"]


def test_items_of_one_id_in_a_file_are_all_taken(send: Callable[..., Any]) -> None:
    items = [
        {"id": "1", "title": "Sort the berths", "acceptanceCriteria": ["by draught"]},
        {"id": "1", "title": "Count crane hours", "acceptanceCriteria": ["by shift"]},
    ]

    answer = send(files(**{"items.json": json.dumps(items)})).json()

    assert len(answer["documents"]) == 2
    assert "both are kept" in answer["rejected"][0]["reason"]
