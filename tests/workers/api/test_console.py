"""The console: who is let in, what a form needs, what a page may load, and what stands on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from pipeline.ledger import project_id, source_id
from tests.ledger import Ledger, ago, of_connection, of_tenant
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.api.conftest import ACME
from workers.api.app import create_app
from workers.api.console import MAX_TEXT
from workers.app.enrichment import job
from workers.runtime import Runtime

BERTH = project_id(ACME.tenant, "berth")


@pytest.fixture
def browser(runtime: Runtime) -> Iterator[TestClient]:
    with TestClient(create_app(runtime), base_url="https://larder.test") as client:
        yield client


@pytest.fixture
def logged(browser: TestClient, token: Callable[..., str]) -> Callable[..., TestClient]:
    def enter(**changes: Any) -> TestClient:
        answer = browser.post("/console/login", data={"token": token(**changes)}, follow_redirects=False)
        assert answer.status_code == 303
        cookie = answer.headers["Set-Cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure", "Path=/console"))
        return browser

    return enter


def csrf(page: Any) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found
    return found[1]


def test_who_has_no_token_sees_the_page_to_log_in_and_nothing_else(browser: TestClient) -> None:
    for path in (
        "",
        "/enrich",
        "/sources",
        "/changes",
        f"/documents/{BERTH}",
        f"/enrich/{BERTH}",
        "?q=mooring",
    ):
        page = browser.get(f"/console{path}")
        assert (page.status_code, "Log in" in page.text, "Mooring" in page.text) == (401, True, False)
    assert browser.post("/console/release", data={"csrf": "x", "source": "x"}).status_code == 401
    wrong = browser.post("/console/login", data={"token": "nonsense"})
    assert wrong.status_code == 401
    assert "the token is refused" in wrong.text
    assert "nonsense" not in wrong.text


def test_no_other_site_logs_somebody_in(browser: TestClient, token: Callable[..., str]) -> None:
    """Else what they ask from then on would be asked, and audited, as somebody of its choice."""
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 303), ("none", 303)):
        headers = {"Sec-Fetch-Site": site}
        answer = browser.post(
            "/console/login", data={"token": token()}, headers=headers, follow_redirects=False
        )
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (status, status == 303)


@pytest.fixture
def few(runtime: Runtime) -> Iterator[int]:
    """How many requests a user may ask in a minute."""
    rag, most = runtime.rag, 7
    runtime.rag = rag.model_copy(update={"api": rag.api.model_copy(update={"requests_per_minute": most})})
    yield most
    runtime.rag = rag


def test_pages_and_requests_of_a_user_are_counted_together(
    few: int, logged: Callable[..., TestClient], token: Callable[..., str]
) -> None:
    own: dict[str, Any] = {"subject": "cora"}
    browser, headers = logged(**own), {"Authorization": f"Bearer {token(**own)}"}
    told = [browser.get("/console/changes").status_code for _ in range(few - 1)]
    told += [browser.get("/api/v1/projects", headers=headers).status_code for _ in range(2)]
    assert told == [200] * few + [429]
    page = browser.get("/console/changes", headers={"X-Forwarded-For": "198.51.100.7"})
    assert (page.status_code, "Too many requests" in page.text) == (429, True)
    assert f"{few} a minute" in page.text
    assert int(page.headers["Retry-After"]) <= 60 // few + 1, "for one more, and not for a part of a sync"
    browser.cookies.clear()
    assert logged(subject="dora").get("/console/changes").status_code == 200


def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing_of_its_own(
    logged: Callable[..., TestClient],
) -> None:
    browser = logged(permissions=frozenset({"admin"}))
    for path in ("", "?q=mooring+lines", "/enrich", "/sources", "/changes"):
        page = browser.get(f"/console{path}")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"<style|<script(?![^>]* src=)| on\w+=| style=", page.text)
        assert not re.findall(r'(?:src|href)="(?!/console|#main)[^"]*"', page.text)
    for kind, media in (("css", "text/css"), ("js", "text/javascript")):
        assert browser.get(f"/console/console.{kind}").headers["Content-Type"].startswith(media)
    assert browser.get("/console/console.html").status_code == 404


@pytest.mark.req("001-115")
def test_one_searches_marks_and_reads_what_one_may_see(
    logged: Callable[..., TestClient], runtime: Runtime
) -> None:
    browser = logged(subject="bob", permissions=frozenset({"read", "write"}))
    page = browser.get("/console", params={"q": "mooring lines"})
    assert "<mark>Mooring</mark> <mark>lines</mark> of acme berth, internal 0" in page.text
    assert "confidential" not in page.text
    assert "evil" not in page.text
    document_id = re.search(r'name="ref" value="([0-9a-f-]{36})"', page.text)
    assert document_id
    said = {"q": "mooring lines", "ref": document_id[1], "verdict": "useful"}
    assert browser.post("/console/feedback", data={**said, "csrf": "0" * 64}).status_code == 403
    noted = browser.post("/console/feedback", data={**said, "csrf": csrf(page)})
    assert (noted.status_code, "Noted." in noted.text, "what people said" in noted.text) == (200, True, True)
    assert "before each tide" in browser.get(f"/console/documents/{document_id[1]}").text
    hidden = Ledger(of_tenant(runtime.database, ACME.tenant)).documents(external_id="confidential-0")[0]["id"]
    gone = browser.get(f"/console/documents/{hidden}")
    assert (gone.status_code, "There is no such document" in gone.text) == (404, True)
    assert "internal-0" in browser.get("/console/changes").text
    assert "confidential-0" not in browser.get("/console/changes").text


def test_evil_texts_stay_texts(logged: Callable[..., TestClient], runtime: Runtime) -> None:
    notes = SourceLedger(runtime.database, ACME.tenant, BERTH, "evil-notes")
    script = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    evil = f"Gantry {script} [click](javascript:alert(1)) {{{{ 7*7 }}}}"
    notes.admit(document("evil", evil, title=f"Gantry {script}", url="javascript:alert(1)"))
    notes.index()
    browser = logged()
    found = browser.get("/console", params={"q": "gantry"}).text
    assert "&lt;script&gt;" in found
    whole = browser.get(f"/console/documents/{notes.id('evil')}").text
    for page in (found, whole):
        assert not re.search(r"<script>|<img|href=.javascript", page)
        assert "{{ 7*7 }}" in page


def test_a_page_of_a_long_text_takes_no_minutes(logged: Callable[..., TestClient], runtime: Runtime) -> None:
    notes = SourceLedger(runtime.database, ACME.tenant, BERTH, "long-notes")
    notes.admit(document("long", "x" * MAX_TEXT + "beyond"))
    page = logged().get(f"/console/documents/{notes.id('long')}").text
    assert ("... 6 characters more" in page, "xxx" in page, "beyond" in page) == (True, True, False)


def test_an_item_is_asked_about_watched_and_read(logged: Callable[..., TestClient], runtime: Runtime) -> None:
    browser = logged()
    form = browser.get("/console/enrich")
    told = {"csrf": csrf(form), "title": "Check mooring lines before each tide", "project": str(BERTH)}
    assert browser.post("/console/enrich", data={**told, "csrf": "x"}).status_code == 403
    waiting = browser.post("/console/enrich", data=told)
    assert 'http-equiv="refresh"' in waiting.text
    job_id = UUID(str(waiting.url).rpartition("/")[2])
    job.run(runtime, ACME.tenant, job_id)
    page = browser.get(f"/console/enrich/{job_id}")
    assert "Title of internal-0" in page.text
    assert "Copy as Markdown" in page.text
    assert 'http-equiv="refresh"' not in page.text
    assert browser.post("/console/enrich", data={**told, "title": "A nul \x00 byte"}).status_code == 200
    wrong = browser.post("/console/enrich", data={**told, "title": "", "text": "{"})
    assert (wrong.status_code, 'role="alert"' in wrong.text) == (422, True)
    file = {"file": ("step-3.json", b'{"scored_pbis": [{"pbi": {"title": "Mooring lines"}, "scores": {}}]}')}
    assert "waiting for a worker" in browser.post("/console/enrich", data=told, files=file).text
    assert logged(subject="bob").get(f"/console/enrich/{job_id}").status_code == 404


def test_only_who_operates_lets_deletions_go_and_tries_again(
    logged: Callable[..., TestClient], runtime: Runtime
) -> None:
    acme, own = Ledger(of_tenant(runtime.database, ACME.tenant)), source_id(ACME.tenant, "notes-berth")
    acme.sources.set({"id": own}, held=30)
    acme.documents.set("public-3", state="dead")
    (odd,) = acme.documents.values("id", external_id="public-3", source_id=own)
    acme.add_letter(odd, stage="fetched", reason="too odd", attempts=1)
    reader = logged()
    page = reader.get("/console/sources")
    assert "notes-berth" in page.text
    assert "deletions go" not in page.text
    assert "too odd" not in page.text
    assert not re.search(r"\d+ (listed|indexed|of)", page.text), "counts of documents that few may see"
    assert reader.post("/console/replay", data={"csrf": csrf(page), "letter": 1}).status_code == 403

    operator = logged(permissions=frozenset({"operate"}), subject="olga")
    page = operator.get("/console/sources")
    assert "Let 30 deletions go" in page.text
    assert re.search(r"\d+ (listed|of)", page.text)
    assert "too odd" in page.text
    letter = re.search(r'name="letter" value="(\d+)"', page.text)
    assert letter
    replayed = operator.post("/console/replay", data={"csrf": csrf(page), "letter": letter[1]})
    assert "too odd" not in replayed.text
    stranger = logged(permissions=frozenset({"operate"}), projects=("empty",))
    page = stranger.get("/console/sources")
    assert "notes-berth" not in page.text
    foreign = stranger.post("/console/release", data={"csrf": csrf(page), "source": "notes-berth"})
    assert foreign.status_code == 404
    assert set(acme.audit.values("actor", action="dead.replay")) == {"olga"}


def test_who_operates_is_told_what_is_wrong_with_the_installation(
    logged: Callable[..., TestClient], runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.app.status.RECENT_SECONDS", 0.0)
    with runtime.database.control() as connection:
        seen = of_connection(connection)
        seen.add_worker("w", "control,ingest,embed", started_at=ago(hours=1))
        seen.canaries.add(queue="enrich", sung_at=ago(minutes=22))
    try:
        words = (
            r"no worker (has served|serves) enrich.*: larder up --detach"  # others of the file have jobs wait
        )
        page = logged(permissions=frozenset({"operate"})).get("/console/sources").text
        assert re.search(words, page)
        assert not re.search(words, logged().get("/console/sources").text)
    finally:
        with runtime.database.control() as connection:
            of_connection(connection).workers.clear()
            of_connection(connection).canaries.clear()


def test_counts_of_what_was_not_taken_in_lead_to_its_reasons(
    logged: Callable[..., TestClient], runtime: Runtime
) -> None:
    source = source_id(ACME.tenant, "notes-berth")
    named = [
        {"item": "a.md", "reason": "a.md is <i>odd</i>", "outcome": "failed"},
        {"item": "b.md", "reason": "b.md holds no text", "outcome": "skipped"},
    ]
    with runtime.database.control() as connection:
        ended = {"state": "finished", "finished_at": ago()}
        run = of_connection(connection).add_run(source, **ended, problems=named, left_out={"too large": 3})
    try:
        client = logged(permissions=frozenset({"admin"}))
        for path in ("", "/sources"):
            page = client.get(f"/console{path}").text
            for words in ("1 failed", "1 skipped", "3 excluded"):
                assert re.search(rf'href="/console/sources/notes-berth#[a-z-]+"[^>]*>{words}</a>', page), path
        shown = client.get("/console/sources/notes-berth").text
        assert "a.md is &lt;i&gt;odd&lt;/i&gt;" in shown
        assert "b.md holds no text" in shown
        assert "too large: 3" in shown
        assert client.get("/console/sources/nobody").status_code == 404
        reader = logged(permissions=frozenset({"read"}))
        assert reader.get("/console/sources/notes-berth").status_code == 404
        assert "1 failed" not in reader.get("/console").text
    finally:
        with runtime.database.control() as connection:
            of_connection(connection).runs.clear(run)


def test_an_address_of_the_machine_of_the_api_is_not_shown(
    logged: Callable[..., TestClient], runtime: Runtime
) -> None:
    notes = SourceLedger(runtime.database, ACME.tenant, BERTH, "paths")
    notes.admit(document("fenders", "Fenders hang here.", title="Fenders", url="file:///srv/my%20docs/f.md"))
    notes.index()
    client = logged()
    found = client.get("/console?q=fenders+hang").text
    assert f'href="/console/documents/{notes.id("fenders")}">Fenders</a>' in found
    shown = client.get(f"/console/documents/{notes.id('fenders')}").text
    for address in ("file:", "/srv/my docs", "/srv/my%20docs"):
        assert address not in found + shown
