"""Exit codes of what was typed wrong, and what `config check` finds before anything runs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.fernet import Fernet
from redis import Redis
from typer.testing import CliRunner, Result

from tests.workers.cli.asking import Run
from workers.cli.commands import app
from workers.local import embedded
from workers.queue import broker
from workers.queue.app import count_quarantined

TYPED_WRONG: list[tuple[str, ...]] = [
    ("token", "--permission", "bogus"),
    ("token", "--level", "bogus"),
    ("token", "--hours", "0"),
    ("token", "--project", ""),
    ("mcp", "--level", "bogus"),
    ("why-visible", "ann", "x", "--level", "bogus"),
    ("worker", "nope"),
    ("search", "x", "--kind", "bogus"),
    ("search", "x", "--mode", "bogus"),
    ("search", "x", "--since", "yesterday-ish"),
    ("search", "x", "--source-type", "bogus"),
    ("search", "x", "--metadata", "bogus"),
    ("search", ""),
    ("feedback", "x", "y", "bogus"),
    ("enrich", "missing.json"),
    ("enrich", "missing.json", "--format", "bogus"),
    ("stories", "seed", "missing.csv"),
    ("eval", "missing"),
    ("ingest", "missing"),
    ("index", "nope"),
    ("sources", "pause", "nope"),
    ("sources", "check", "nope"),
    ("sources", "release", "nope"),
    ("runs", "nope"),
    ("logs", "nope"),
    ("dead", "show", "999"),
    ("dead", "show", "abc"),
    ("reindex", "--provider", "nope"),
    ("migrate", "--to", "bogus"),
    ("nope",),
    ("status", "--nope"),
]


@pytest.mark.parametrize("args", TYPED_WRONG, ids=" ".join)
def test_what_was_typed_wrong_is_two(run_shared: Run, args: tuple[str, ...]) -> None:
    result = run_shared(*args)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


def check(folder: Path, rag: str, **environ: str) -> Result:
    (folder / "larder.yaml").write_text(f"rag: {{embedding: {{provider: hashing}}, {rag}}}", encoding="utf-8")
    return CliRunner().invoke(app, ["config", "check", "--config", str(folder / "larder.yaml")], env=environ)


URL = "postgresql://larder_app:open-sesame@db.example/larder"
BROKER = {"LARDER_BROKER_URL": "redis://broker.example/0"}


@pytest.mark.parametrize(
    ("rag", "environ", "said"),
    [
        ("", {"LARDER_ENCRYPTION_KEYS": "broken"}, "keys divided by commas"),
        ("security: {encryptionKeys: [no]}", {}, "encryptionKeys"),
        ("", {"LARDER_ENCRYPTION_KEYS": f"{Fernet.generate_key().decode()},broken"}, "larder keys new"),
        ("", {**BROKER, "LARDER_DATABASE_URL": f"{URL}?sslmode=bogus"}, "parameter sslmode is refused"),
        ("", {**BROKER, "LARDER_DATABASE_URL": f"{URL}?sslmod=require"}, "parameter sslmod is refused"),
        ("", {**BROKER, "LARDER_DATABASE_URL": f"{URL}?channel_binding=x"}, "channel_binding"),
        (
            "",
            {**BROKER, "LARDER_DATABASE_URL": URL, "LARDER_CONTROL_DATABASE_URL": f"{URL}?sslmode=x"},
            "storage.database.controlUrl: ",
        ),
        ("security: {encrypt: [author]}", {**BROKER, "LARDER_DATABASE_URL": URL}, "there is no key"),
        ("", {"LARDER_DATABASE_URL": URL}, "LARDER_BROKER_URL (storage.broker.url) is missing"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    tmp_path: Path, rag: str, environ: dict[str, str], said: str
) -> None:
    result = check(tmp_path, rag, **environ)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "open-sesame" not in result.output


@pytest.mark.parametrize(
    ("rag", "environ"),
    [
        ("security: {encrypt: [author]}", {}),
        (
            "security: {encrypt: [author]}",
            {
                **BROKER,
                "LARDER_DATABASE_URL": f"{URL}?sslmode=verify-full",
                "LARDER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
            },
        ),
    ],
)
def test_one_that_can_is_not(tmp_path: Path, rag: str, environ: dict[str, str]) -> None:
    assert check(tmp_path, rag, **environ).exit_code == 0


def test_messages_that_no_worker_took_are_shown_and_dropped(run: Run, servers: embedded.Servers) -> None:
    with Redis.from_url(servers.broker_url) as client:
        client.delete(broker.QUARANTINE_KEY, broker.QUARANTINE_LIST)
        channel = SimpleNamespace(conn_or_acquire=lambda: nullcontext(client))
        for n in range(3):
            count_quarantined(channel, {"task": "larder.nope", "id": f"id-{n}", "argsrepr": "('a text',)"})
    shown = run("dead", "messages")
    assert (shown.exit_code, "larder.nope" in shown.stdout, "id-2" in shown.stdout) == (0, True, True)
    assert "a text" not in run("dead", "messages", "--json").stdout
    assert run("dead", "messages", "--drop").exit_code == 2
    assert "dropped 3 messages" in run("dead", "messages", "--drop", "--yes").stdout
    assert "no messages" in run("dead", "messages").stdout
    assert broker.quarantined_total(servers.broker_url) == 0
