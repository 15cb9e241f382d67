"""Whoever asks, by whatever address: nothing of another tenant, project, level or reader comes back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.access import LEVELS, Caller
from pipeline.database.vector_stores import StoreOptions
from pipeline.ledger import project_id, tenant_id
from pipeline.search.stores import FloatVector, Neighbour, Scope, outbox
from pipeline.search.stores.memory import MemoryStore
from pipeline.search.stores.registry import VectorStores
from tests.conftest import Addresses
from tests.ledger import Ledger, of_connection, of_tenant
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.api.conftest import ACME, CONFIG
from tests.workers.api.test_query import BERTH
from tests.workers.cli.conftest import runner, variables
from workers.api.agents import Tools
from workers.app.enrichment import job
from workers.local import embedded
from workers.runtime import Runtime

EXAMPLES = int(os.environ.get("LARDER_CASES", "30"))
"""Callers with a question each; every one asks by 15 ways."""
READERS = {
    0: [],
    1: [{"user:ann"}],
    2: [{"group:harbour"}],
    3: [{"user:ann", "group:harbour"}, {"group:board"}],
}
"""As the documents of `conftest` are made: number of a document -> layers of who may read it."""
SHOWN = re.compile(r"Mooring lines of (\w+) (\w+), (\w+) (\d)")

callers = st.builds(
    Caller,
    tenant=st.just(ACME.tenant),
    tenant_name=st.just("acme"),
    subject=st.sampled_from(["ann", "bob"]),
    projects=st.sets(st.sampled_from(["berth", "empty", "*"])).map(tuple),
    permissions=st.just(frozenset({"admin"})),
    level=st.sampled_from(LEVELS),
    groups=st.sets(st.sampled_from(["harbour", "board"])).map(tuple),
)


def may_see(caller: Caller, tenant: str, project: str, level: str, number: int) -> bool:
    """The rule, said once more in other words."""
    names = {f"user:{caller.subject}"} | {f"group:{name}" for name in caller.groups}
    return (
        tenant == "acme"
        and (project == "default" or bool({project, "*"} & {*caller.projects}))
        and LEVELS.index(level) <= LEVELS.index(caller.level)
        and all(layer & names for layer in READERS[number])
    )


def check(caller: Caller, said: str, asked: str) -> int:
    """Every document that an answer shows is one that the caller may see; how many there are."""
    shown = SHOWN.findall(said)
    for tenant, project, level, number in shown:
        assert may_see(caller, tenant, project, level, int(number)), (
            asked,
            caller,
            tenant,
            project,
            level,
            number,
        )
    assert "evil" not in said, (asked, caller)
    return len(shown)


def of_name(runtime: Runtime, tenant: str) -> Ledger:
    return Ledger(of_tenant(runtime.database, tenant_id(tenant)))


class Liar(MemoryStore):
    """A vector store that answers with chunks of everybody, twice some, never all, and some that never were."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__()
        self.ids, self.random, self.asked = ids, Random(7), 0

    def near(self, _vector: FloatVector, n: int, _scope: Scope) -> list[Neighbour]:
        self.asked += 1
        told = self.random.choices(self.ids, k=2 * len(self.ids))
        told = [one for one in told if self.random.random() > 0.1]
        told += [f"{uuid4()}:0", "no id", f"{told[0].partition(':')[0]}:7"]
        similarities = [self.random.choice([1.0, 0.0, float("nan"), 1e9]) for _ in told]
        return [*map(Neighbour, told, similarities)][: n if self.asked % 2 else None]


@pytest.fixture
def liar(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    """The active store, which lies; besides there are a deleted document, and one whose text was another an hour ago."""
    notes = SourceLedger(runtime.database, ACME.tenant, BERTH, "notes-ghost")
    ghosts = ("public-6", "public-7")
    notes.admit(*(document(name, f"Mooring lines of evil {name}, public 0.") for name in ghosts))
    notes.index()
    notes.set("public-6", hidden=True)
    notes.admit(document("public-7", "Mooring lines of acme berth, public 0."))
    notes.index()
    ids = [
        outbox.point_id(*row)
        for tenant in ("acme", "evil")
        for row in of_name(runtime, tenant).chunks.values("document_id", "ord")
    ]
    lying = Liar(ids)
    with runtime.database.control() as connection:
        outbox.register(connection, "memory", preferred=True)
        of_connection(connection).stores.set(status="ready", active=True)
    made = VectorStores(runtime.database, {"memory": StoreOptions("memory")}, opener=lambda _: lying)
    monkeypatch.setitem(runtime.__dict__, "stores", made)
    yield lying
    with runtime.database.control() as connection:
        outbox.drop(connection, "memory")
    for name in ghosts:
        notes.chunks.clear(notes.id(name))
    notes.documents.set({"source_id": notes.source}, deleted=True, hidden=True)


@pytest.mark.req("001-115", "001-117", "001-119", "001-120", "001-121")
def test_nothing_foreign_comes_back_by_any_address(
    runtime: Runtime, api: TestClient, token: Callable[..., str]
) -> None:
    hold_by_any_address(runtime, api, token)


@pytest.mark.req("001-013", "001-118")
def test_a_vector_store_that_lies_changes_nothing_of_that(
    runtime: Runtime, api: TestClient, token: Callable[..., str], liar: Liar
) -> None:
    hold_by_any_address(runtime, api, token)
    assert liar.asked > EXAMPLES
    answer = api.post(
        "/api/v1/search",
        json={"text": "mooring lines", "mode": "vector"},
        headers={"Authorization": f"Bearer {token()}"},
    )
    assert answer.json()["store"] == "memory"


def hold_by_any_address(runtime: Runtime, api: TestClient, token: Callable[..., str]) -> None:
    """Callers of all rights ask by every way."""
    every = [
        key
        for tenant in ("acme", "evil")
        for key in of_name(runtime, tenant).documents.values("id", deleted=False)
    ]
    places = [project_id(tenant_id(t), p) for t in ("acme", "evil") for p in ("default", "berth", "empty")]
    cases = shown = 0

    @given(
        caller=callers,
        words=st.sampled_from(
            ["mooring lines", "evil berth confidential", "tide", "checked before each tide"]
        ),
        mode=st.sampled_from(["hybrid", "vector", "keyword"]),
        document=st.sampled_from(every),
        place=st.sampled_from(places),
    )
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def hold(caller: Caller, words: str, mode: str, document: Any, place: Any) -> None:
        nonlocal cases, shown
        headers = {"Authorization": f"Bearer {token(**vars(caller))}"}

        def ask(method: str, path: str, body: Any = None) -> str:
            return str(api.request(method, f"/api/v1{path}", json=body, headers=headers).text)

        question = {"text": words, "k": 50, "mode": mode, "explain": True}
        answers = {
            "query": ask("POST", "/rag/query", {"project_id": str(place), "query_text": words, "top_k": 50}),
            "search": ask("POST", "/search", question),
            "one": ask("POST", "/search", {**question, "projects": [str(place)]}),
            "document": ask("GET", f"/documents/{document}"),
            "sources": ask("GET", "/sources"),
            "runs": ask("GET", "/sources/notes-berth/runs"),
            "projects": ask("GET", "/projects"),
            "feedback": ask("POST", "/feedback", {"item": "a b", "ref": str(document), "verdict": "undo"}),
            "delete": ask("DELETE", f"/knowledge/documents/{document}"),
            "job": ask("GET", f"/enrich/{uuid4()}"),
        }
        tools = Tools(runtime, lambda _context: caller)
        context: Any = None
        calls: dict[str, Callable[[], str]] = {
            "tool search": lambda: tools.search_knowledge(words, context, limit=20),
            "tool project": lambda: tools.search_knowledge(words, context, limit=20, project=str(place)),
            "tool document": lambda: tools.get_document(document, context),
            "tool explain": lambda: tools.explain_result(words, document, context),
        }
        for name, call in calls.items():
            try:
                answers[name] = call()
            except Exception as error:  # noqa: BLE001 (whatever it says is shown, too)
                answers[name] = str(error)
        item = {"id": "PBI-1", "title": words, "project": str(place)}
        for one in json.loads(ask("POST", "/enrich", {"pbi": item})).get("jobs", []):
            job.run(runtime, caller.tenant, UUID(one["id"]))
            answers["step 4"] = ask("GET", f"/enrich/{one['id']}")
        for name, said in answers.items():
            shown += check(caller, said, name)
        cases += len(answers)

    hold()
    assert cases >= 14 * EXAMPLES / 2
    assert shown > 5 * EXAMPLES, "there was something to see"


@pytest.mark.req("001-118")
def test_commands_of_one_tenant_neither_tell_nor_change_what_is_of_another(
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_addresses: Addresses,
    servers: embedded.Servers,
) -> None:
    """On the command line all of a tenant is seen, and nothing of another, whatever is named."""

    def texts(tenant: str) -> set[str]:
        return set(of_name(runtime, tenant).chunks.values("content"))

    run = runner(tmp_path, monkeypatch, variables(shared_addresses, servers), CONFIG)
    (theirs, *_), before = (
        of_name(runtime, "acme").documents.values("id", external_id="public-0"),
        texts("acme"),
    )
    berth = str(project_id(ACME.tenant, "berth"))
    for command, code in {
        ("search", "mooring lines acme", "-k", "50"): 0,
        ("search", "mooring lines acme", "--project", berth): 0,
        ("explain", str(theirs)): 1,
        ("explain", "internal-3 of acme"): 1,
        ("why-visible", "ann", str(theirs)): 1,
        ("feedback", "how are lines checked", str(theirs), "useful"): 2,
        ("feedback", "--list"): 0,
        ("audit", "list"): 0,
        ("clear", "--yes"): 0,
    }.items():
        said = run(*command, "--json", LARDER_TENANT="evil")
        assert said.exit_code == code, (command, said.output)
        shown = {tenant for tenant, *_ in SHOWN.findall(said.stdout)}
        assert shown == ({"evil"} if "-k" in command else set()), command
    assert texts("evil") == set(), "what was cleared"
    assert texts("acme") == before != set()
