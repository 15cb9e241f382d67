"""The doctor: sources, models, processes, disk, clock and versions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.workers.doctor.installation import Store
from workers.app.doctor import server_checks
from workers.monitoring import liveness


def test_a_source_that_cannot_be_read_is_named(store: Store) -> None:
    for path in (store.root / "docs").iterdir():
        path.unlink()
    found = store.examine()["sources"]
    assert (found["status"], found["fix"]) == ("warning", "larder sources check notes")


def test_missing_model_files_are_an_error(store: Store) -> None:
    folder = store.root / "empty-model"
    folder.mkdir()
    embedding = store.runtime.rag.embedding.model_copy(update={"provider": "minilm", "model_path": folder})
    store.runtime.rag = store.runtime.rag.model_copy(update={"embedding": embedding})
    store.runtime.__dict__.pop("embedding_options", None)
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
    embedding = store.runtime.rag.embedding.model_copy(update=changes)
    store.runtime.rag = store.runtime.rag.model_copy(update={"embedding": embedding})
    store.runtime.__dict__.pop("embedding_options", None)
    found = server_checks.model(store.runtime)
    assert found.status == status, found
    assert (host in found.detail) == (status == "warning")


def test_a_process_that_lives_and_is_silent_is_found(store: Store) -> None:
    data = store.runtime.settings.data
    (data / "heartbeat").mkdir(parents=True)
    file = data / "heartbeat" / "worker-embed.heartbeat"
    file.touch()
    os.utime(file, (0, time.time() - 60))
    assert store.examine()["heartbeats"]["status"] == "ok"  # left behind by a process that was stopped
    started = liveness.process_start(os.getpid())
    processes = [{"name": "worker-embed", "pid": os.getpid(), "started": started}]
    (data / "state.json").write_text(json.dumps({"processes": processes}), encoding="utf-8")
    found = store.examine()["heartbeats"]
    assert found["status"] == "error"
    assert "worker-embed for 6" in found["detail"]
    file.touch()
    assert store.examine()["heartbeats"]["status"] == "ok"


@pytest.mark.parametrize(
    ("free", "health"),
    [
        (999_999_999, "error"),
        (1_000_000_000, "warning"),
        (4_999_999_999, "warning"),
        (5_000_000_000, "ok"),
    ],
)
def test_how_much_disk_is_enough(free: int, health: str) -> None:
    assert server_checks.judge_disk(free, "data").status == health


def test_a_clock_that_is_wrong_is_a_warning(store: Store) -> None:
    def ahead(seconds: float) -> Callable[[], datetime]:
        return lambda: datetime.now(UTC) + timedelta(seconds=seconds)

    assert server_checks.clock(store.runtime, ahead(3)).status == "ok"
    assert server_checks.clock(store.runtime, ahead(8)).status == "warning"
    assert server_checks.clock(store.runtime, ahead(-8)).status == "warning"


@pytest.mark.parametrize(
    ("version", "health"), [("0.7.4", "error"), ("0.8.0", "ok"), ("0.10.1", "ok"), ("1.0", "ok")]
)
def test_which_pgvector_is_new_enough(version: str, health: str) -> None:
    assert server_checks.judge_pgvector(version).status == health
