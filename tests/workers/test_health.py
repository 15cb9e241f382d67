"""One judgement: what is wrong is told by status, health page, metrics, alerts and doctor alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis
from fastapi.testclient import TestClient

from pipeline.access import Caller
from pipeline.errors import StoreError, StoreRefused
from pipeline.ledger import tenant_id
from tests.conftest import Addresses
from workers.api.app import create_app
from workers.app import status, tokens
from workers.app.doctor import doctor
from workers.processes.alerts import AWAY_KEY, Watcher
from workers.runtime import Runtime

SQL = psycopg.Connection[Any]


@pytest.fixture
def refuse(
    addresses: Addresses, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[Callable[[str], None]]:
    """`refuse(role)`: from now on the server lets it into the test's database no more."""
    with superuser("postgres") as connection:

        def shut(role: str) -> None:
            other = {"larder_app": "larder_control", "larder_control": "larder_app"}[role]
            connection.execute(f"revoke connect on database {addresses.name} from public")
            connection.execute(f"grant connect on database {addresses.name} to {other}")

        yield shut


@pytest.mark.parametrize("role", ["larder_app", "larder_control"])
def test_a_login_that_is_refused_is_told_by_all_within_seconds(
    runtime: Runtime,
    broker: redis.Redis,
    refuse: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    monkeypatch.setattr(status, "RECENT_SECONDS", 0.0)
    runtime.settings.data.mkdir()  # the API's secret lies there
    seen = status.watcher(runtime)
    watcher = Watcher(seen, seen, retry=0.01)
    watcher.look()
    with TestClient(create_app(runtime)) as api:
        assert api.get("/health/rag").json()["store"] in {"ok", "starting"}
        # Connections that are open stay so: nothing but a new one tells.
        with runtime.database.tenant(tenant_id("acme")), runtime.database.control():
            refuse(role)
        health = api.get("/health/rag")
        shown = api.get("/metrics").text
    assert (health.status_code, health.json()["store"], health.json()["errors"]) == (
        503,
        "error",
        ["database"],
    )
    assert health.json()["degradation_level"] == 4
    assert 'larder_up{server="database"} 0.0' in shown
    assert 'larder_problems{check="database",status="error"} 1.0' in shown
    with pytest.raises(StoreError) as caught:
        status.status(runtime)
    assert isinstance(caught.value, StoreRefused)
    found = status.without_database(runtime, caught.value)
    assert found["database"] == "refused"
    assert (found["next"][0]["check"], "grant connect" in found["next"][0]["fix"]) == ("database", True)
    watcher.look()
    assert b"store_unreachable" in (broker.getdel(AWAY_KEY) or b"")
    first = doctor.examine(runtime)[0]
    assert (first.check, first.status) == ("database", "error")
    assert "permission denied for database" in first.detail
    seen.close()


@pytest.mark.usefixtures("broker")
def test_what_the_database_says_of_its_roles_is_for_the_operator_alone(
    runtime: Runtime, refuse: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    runtime.settings.data.mkdir()  # the API's secret lies there
    caller = Caller(tenant=tenant_id("acme"), tenant_name="acme", subject="ann", projects=("*",))
    token = tokens.issue_token(runtime.settings, caller, hours=1)
    refuse("larder_app")
    with TestClient(create_app(runtime)) as api:
        headers = {"Authorization": f"Bearer {token}"}
        body = {"query_text": "kestrel", "project_id": "default"}
        answer = api.post("/api/v1/rag/query", json=body, headers=headers)
    assert answer.status_code == 503, answer.text
    assert answer.json()["detail"] == "the database refuses the login"
    assert "permission denied for database" in caplog.text
