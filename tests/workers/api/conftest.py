"""Two tenants with documents of several projects and levels, and the API on top of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from pipeline.access import Caller
from pipeline.ledger import project_id, sources, tenant_id
from tests.conftest import Addresses
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.installed import installed
from workers.api.app import create_app
from workers.app import tokens
from workers.local import embedded
from workers.local.embedded.folder import free_port
from workers.runtime import Runtime

CONFIG = """
rag:
  tenant: acme
  embedding: {provider: hashing, dimensions: 32}
  retrieval: {minSimilarity: 0}
  api: {requestsPerMinute: 100000, wrongTokensPerMinute: 100000, maxBody: 1m}
  auth: {secret: a-secret-of-the-tests-of-32-bytes-and-more}
"""
ACME = Caller(tenant=tenant_id("acme"), tenant_name="acme", subject="ann", projects=("berth",))
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def runtime(
    tmp_path_factory: pytest.TempPathFactory, shared_addresses: Addresses, servers: embedded.Servers
) -> Iterator[Runtime]:
    with installed(tmp_path_factory.mktemp("api"), shared_addresses, servers, CONFIG) as made:
        for tenant in ("acme", "evil"):
            for project in ("default", "berth", "empty"):
                own = tenant_id(tenant)
                with made.database.tenant(own) as connection:
                    place = project_id(own, project)
                    sources.ensure_tenant(connection, own, tenant, place, project)
                if project != "empty":
                    fill(SourceLedger(made.database, own, place, f"notes-{project}"), f"{tenant} {project}")
        yield made


def fill(notes: SourceLedger, whose: str) -> None:
    """Twelve documents, of all levels, some for certain readers only."""
    acl = [[], [["user:ann"]], [["group:harbour"]], [["user:ann", "group:harbour"], ["group:board"]]]
    levels = ("public", "internal", "confidential")
    notes.admit(
        *(
            document(
                f"{level}-{n}",
                f"Mooring lines of {whose}, {level} {n}. They are checked before each tide.",
                security_level=level,
                metadata={"acl": layers} if layers else {},
            )
            for level in levels
            for n, layers in enumerate(acl)
        )
    )
    notes.index()


@pytest.fixture(scope="module")
def api(runtime: Runtime) -> Iterator[TestClient]:
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """The address of an application at a port, as a server of its own."""
    port = free_port()
    serving = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", log_config=None, **options))
    thread = threading.Thread(target=serving.run)
    thread.start()
    while not serving.started:
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port}"
    serving.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def address(runtime: Runtime) -> Iterator[str]:
    with served(create_app(runtime)) as found:
        yield found


@pytest.fixture
def token(runtime: Runtime) -> Callable[..., str]:
    """A token of ann, with changes."""
    return lambda **changes: tokens.issue_token(runtime.settings, replace(ACME, **changes), hours=1)


@pytest.fixture
def ask(api: TestClient, token: Callable[..., str]) -> Ask:
    """Post a question of ann, changed as the caller says."""

    def post(
        text: str = "mooring lines", project: Any = None, *, k: int | None = None, **changes: Any
    ) -> Any:
        body = {
            "project_id": str(project or project_id(ACME.tenant, "berth")),
            "query_text": text,
            **({} if k is None else {"top_k": k}),
        }
        headers = {"Authorization": f"Bearer {token(**changes)}"}
        return api.post("/api/v1/rag/query", json=body, headers=headers)

    return post
