"""Secrets, and the words of a document, are planted wherever they belong, and looked for wherever they do not."""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import psycopg
import pytest
import redis
from cryptography.fernet import Fernet
from pydantic import SecretStr

from connectors.sections import secrets_in
from pipeline.ledger import project_id, tenant_id
from tests.fakes.server import Answer, FakeServer, Seen
from workers.local.embedded import Credentials
from workers.settings import Settings, load

SENTENCE = "Quillfeather marzipan lies below the observatory floor"
"""Of documents and requests; it is never asked for."""
AUTHOR = "Zebulonia Quartermaine"
PLANTED = {
    "jwt": "canary-jwt-0123456789-0123456789-0123456789",
    "key": "canary-openai-key",
    "previous": "canary-previous-key",
    "token": "canary-confluence-token",
    "api_token": "canary-confluence-api-token",
    "pat": "canary-azure-pat",
    "metrics": "canary-metrics-token",
    "hook": "canary-webhook-token",
    "mail": "canary-mail-password",
    "tracing": "canary-tracing-token",
    "oauth": "canary-oauth-secret",
}
CONFIG = """
rag:
  auth: {{secret: {jwt}}}
  embedding: {{provider: hashing, previous: {{provider: openai, baseUrl: '{url}/v1', apiKey: {previous}}}}}
  stories: {{embedding: {{provider: openai, baseUrl: '{url}/v1', apiKey: {key}}}}}
  security: {{encrypt: [author], encryptionKeys: {fernet}}}
  flower:
    oauth:
      {{provider: okta, server: '{url}/oauth', key: flower, secret: {oauth}, redirectUrl: '{url}/login', emails: [a@b.example]}}
  monitoring:
    metrics: {{token: {metrics}}}
    tracing: {{endpoint: '{url}/v1/traces', token: {tracing}}}
    alerts:
      channels:
        - {{type: webhook, url: '{url}/hook', token: {hook}}}
        - {{type: mail, host: 127.0.0.1, port: 9, tls: false, username: ann, password: {mail}, sender: a@b.example, recipients: [c@d.example]}}
  queue: {{tickSeconds: 1, retryBaseSeconds: 1}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}}
    - {{name: wiki, type: confluence, baseUrl: {url}, token: {token}}}
    - {{name: cloud, type: confluence, baseUrl: {url}, username: ann, apiToken: {api_token}}}
    - {{name: board, type: azure_devops, organization: '{url}/acme', projects: [p], pat: {pat}}}
"""
PAGES: dict[str, str | bytes] = {
    "good.md": f"---\ntitle: Floors\nauthor: {AUTHOR}\n---\n# Floors\n\nAbout floors. {SENTENCE}.\n",
    "broken.md": f"---\naliases: [{SENTENCE}\nauthor: {{{AUTHOR}\n---\n# Broken\n\n{SENTENCE}.\n",
    "level.md": f"---\nsecurity_level: {SENTENCE}\n---\n# Level\n\n{SENTENCE}.\n",
    "latin.md": f"# Latin\n\n{SENTENCE} \N{LATIN SMALL LETTER E WITH ACUTE}.\n".encode("latin-1"),
}
HOLD_TEXTS = {"document_body", "chunk_stage", "chunk", "enrichment_job"}


class Echo(FakeServer):
    """Refuses everybody, with all that they sent."""

    def answer(self, seen: Seen) -> Answer:
        said = f"{dict(seen.headers)} {seen.body.decode('utf-8', 'replace')}"
        status = 401 if "Bearer canary-confluence" in said else 500
        return Answer(
            status=status, json={"error": {"message": said}, "message": said}, headers={"X-Said": said[:200]}
        )


@dataclass
class Watched:
    """An installation, and all that was heard of it."""

    site: Any
    settings: Settings
    said: dict[str, str] = field(default_factory=dict)
    """Where -> what stood there."""

    @property
    def secrets(self) -> set[str]:
        """All that nobody may read, as it is and as it travels."""
        own = {*secrets_in(self.settings.rag), *vars(Credentials.of_folder(self.site.data)).values()}
        basic = (f"ann:{PLANTED['api_token']}", f":{PLANTED['pat']}")
        return own | {base64.b64encode(one.encode()).decode() for one in basic}

    def run(self, *command: str) -> None:
        done = self.site.larder(*command, timeout=240)
        self.said[" ".join(command)] = done.out + done.err

    def found(self, words: Sequence[str] | set[str], without: Sequence[str] = ()) -> list[tuple[str, str]]:
        """(where, word) of each that was heard."""
        places = [name for name in self.said if not name.startswith(tuple(without))]
        return sorted((name, word) for name in places for word in words if word in self.said[name])


def sections(value: Any) -> Iterator[Any]:
    yield value
    for inner in (
        vars(value).values()
        if hasattr(type(value), "model_fields")
        else value
        if isinstance(value, tuple)
        else ()
    ):
        yield from sections(inner)


def listen(broker: str, heard: list[str]) -> None:
    """Every command that the broker gets, until it is gone: each message is in one."""
    client: Any = redis.Redis.from_url(broker)
    with suppress(redis.RedisError, OSError, ValueError), client.monitor() as monitor:
        heard.extend(str(command) for command in monitor.listen())


@pytest.fixture(scope="module")
def watched(make_site: Callable[[Path], Any]) -> Iterator[Watched]:
    root = Path(tempfile.mkdtemp(prefix="larder-canary-"))
    with Echo() as echo:
        site = make_site(root)
        file = site.write(
            "larder.yaml", CONFIG.format(url=echo.address, fernet=Fernet.generate_key().decode(), **PLANTED)
        )
        for name, content in PAGES.items():
            site.write(f"docs/{name}", content)
        watched = Watched(site=site, settings=load(file, {"LARDER_DATA": str(site.data)}))
        site.prepare()
        started = site.larder("up", "--detach", "--json", "--show-secrets")
        assert started.code == 0, started.err
        state = started.data
        heard: list[str] = []
        ear = threading.Thread(target=listen, args=(state["broker_url"], heard), daemon=True)
        ear.start()
        try:
            use(watched, state["api_url"])
            look(watched, state)
        finally:
            site.larder("down")
        ear.join(10)
        watched.said["broker"] = "\n".join(heard)
        for path in sorted((site.data / "logs").rglob("*")):
            watched.said[f"log {path.name}"] = path.read_text("utf-8", errors="replace")
        yield watched
    shutil.rmtree(root, ignore_errors=True)


def use(watched: Watched, url: str) -> None:
    """Index, search, ask, and do much that fails."""
    for command in (
        "index docs --json",
        "status --json",
        "sources check",
        "doctor --json",
        "config show",
        "search floors",
    ):
        watched.run(*command.split())
    watched.run("enrich", "--title", "x", "--bogus")
    minted = watched.site.larder("token", "--permission", "admin", "--project", "*").out.split()[-1]
    project = str(project_id(tenant_id("default"), "default"))
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {minted}"}, timeout=90) as api:

        def ask(name: str, method: str, path: str, failing: bool = True, **sent: Any) -> Any:
            answer = api.request(method, path, **sent)
            assert answer.is_error == failing, (name, answer.text)
            watched.said[f"{'error' if failing else 'good'} {name}"] = f"{answer.headers} {answer.text}"
            return answer

        good = {"failing": False}
        ask("search", "POST", "/api/v1/search", json={"text": "about floors"}, **good)
        pbi = {"id": "PBI-1", "title": "Mend the floors", "description": SENTENCE}
        wait = {"Prefer": "wait=60"}
        asked = ask("enrich", "POST", "/api/v1/enrich", json={"pbi": pbi}, headers=wait, **good)
        assert asked.status_code == 200, "there is a worker"
        sent = [
            ("files", (name, page if isinstance(page, bytes) else page.encode()))
            for name, page in PAGES.items()
        ]
        sent.append(("files", ("bad.json", f'{{"pbis": [{{"title": "{SENTENCE}"'.encode())))
        ask("upload", "POST", "/api/v1/knowledge/upload", data={"project_id": project}, files=sent, **good)
        for path in (
            "/api/v1/sources",
            "/api/v1/sources/docs/runs",
            "/health/rag",
            "/console/sources",
        ):
            ask(path, "GET", path, failing=path.startswith("/console"))
        ask("without the token", "GET", "/metrics")
        ask("metrics", "GET", "/metrics", headers={"Authorization": f"Bearer {PLANTED['metrics']}"}, **good)
        wrong = {"pbi": {"title": [SENTENCE], "description": SENTENCE}}
        ask("wrong", "POST", "/api/v1/enrich", json=wrong)
        ask(
            "mode", "POST", "/api/v1/search", json={"text": "x", "mode": SENTENCE, SENTENCE: 1, "k": SENTENCE}
        )
        ask("filter", "POST", "/api/v1/enrich", json={**pbi, "pbi": pbi, "filters": {"since": SENTENCE}})
        ask("body", "POST", "/api/v1/enrich", content=f'{{"pbi": "{SENTENCE}'.encode())
        ask("stories", "POST", "/rag/search", json={"query": SENTENCE})
        for n, secret in enumerate(sorted(watched.secrets)):
            ask(f"token {n}", "GET", "/api/v1/sources", headers={"Authorization": f"Bearer {secret}"})


def look(watched: Watched, state: Any) -> None:
    """At the tables, the keys of the broker, and what every user of the machine can list."""
    port = urlsplit(state["database_url"]).port
    password = Credentials.of_folder(watched.site.data).postgres
    where = {"host": "127.0.0.1", "port": port, "user": "postgres", "password": password, "dbname": "larder"}
    with psycopg.connect(**where) as every:
        tables = every.execute(
            "select relname from pg_class where relnamespace = 'public'::regnamespace"
            " and relkind in ('r', 'p') and not relispartition"
        ).fetchall()
        for (table,) in tables:
            rows = every.execute(f'select t::text from "{table}" t').fetchall()
            watched.said[f"table {table}"] = "\n".join(row for (row,) in rows)
    with redis.Redis.from_url(state["broker_url"]) as broker:
        watched.said["broker keys"] = " ".join(map(str, broker.keys("*")))
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    watched.said["process list"] = "\n".join(lines)


def test_every_secret_of_the_configuration_is_planted(watched: Watched) -> None:
    """A key that is new here is planted, too; those of servers of one's own are made with the embedded ones."""
    told = {True: set[str](), False: set[str]()}
    for one in sections(watched.settings.rag):
        for name, about in getattr(type(one), "model_fields", {}).items():
            if "SecretStr" in str(about.annotation):
                told[isinstance(getattr(one, name), SecretStr)].add(f"{type(one).__name__}.{name}")
    assert told[False] - told[True] == {
        "DatabaseSettings.url", "DatabaseSettings.control_url", "DatabaseSettings.admin_url", "BrokerSettings.url",
        "BrokerSettings.valkey_url",
        "EmbeddingSettings.api_key",
    }  # fmt: skip
    assert set(PLANTED.values()) <= watched.secrets


def test_a_secret_is_heard_nowhere(watched: Watched) -> None:
    assert len(watched.secrets) >= 16
    assert watched.found(watched.secrets) == []


def test_words_of_a_document_are_heard_where_texts_are_kept_and_shown(watched: Watched) -> None:
    """Nor is what is encrypted, not even there."""
    shown = ("good search", "good enrich", "search ", *(f"table {name}" for name in HOLD_TEXTS))
    assert watched.found([SENTENCE, SENTENCE.lower()], without=shown) == []
    assert (
        watched.found(
            [AUTHOR], without=["table document_body", "table chunk_stage", "table chunk", "good", "search "]
        )
        == []
    )
    assert {name for name, _ in watched.found([SENTENCE])} >= {"good search", "table document_body"}, (
        "it can be heard"
    )


def test_there_was_something_to_hear(watched: Watched) -> None:
    """Messages went through the broker, and each failure left its word."""
    assert "larder.chunk" in watched.said["broker"] or "ingest" in watched.said["broker"]
    assert "401" in watched.said["table source"]
    assert "rag_search" in watched.said["table audit"]
    assert "broken.md" in watched.said["good upload"]
    assert "worker" in watched.said["process list"]
    assert any(len(text) > 1000 for name, text in watched.said.items() if name.startswith("log "))
