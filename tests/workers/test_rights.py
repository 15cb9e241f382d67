"""Who sees what: whatever a caller asks, by whichever way, they are told of documents that are for them alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.access import LEVELS, Caller
from pipeline.documents import Document, Json, Kind
from pipeline.enrichment.degradation import CACHED
from pipeline.errors import NotFound
from pipeline.ledger import project_id, sources, tenant_id
from pipeline.search import SearchRequest
from pipeline.search.records import Mode
from tests.conftest import Addresses
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.installed import installed
from workers.app import explain
from workers.app.enrichment import job
from workers.app.feedback import mark_as
from workers.app.search import document_as, retriever, search_as, to_json, visible_filter
from workers.client import Client
from workers.local import embedded
from workers.runtime import Runtime

CONFIG = """
rag:
  tenant: acme
  embedding: {provider: hashing, dimensions: 32}
  retrieval: {minSimilarity: 0, candidates: 500, maxTopK: 500, cache: {maxEntries: 10000}}
"""
TENANTS, PROJECTS, EACH = ("acme", "evil"), ("default", "berth", "quay"), 40
SUBJECTS, GROUPS = ("ann", "bob"), ("board", "staff", "crew")
NAMES = (*(f"user:{one}" for one in SUBJECTS), *(f"group:{one}" for one in GROUPS), "nobody", "user:", "*")
ODD: tuple[Any, ...] = (
    "user:ann", ["user:ann"], {"user:ann": []}, None, [[["user:ann"]]], [["user:ann"], "user:ann"], 1,
)  # fmt: skip
"""What is no list of layers; or a layer that is none."""


@dataclass(frozen=True)
class Truth:
    """A document, with all rights that count at this moment."""

    id: UUID
    mark: str
    """Its id at its source, and a word of its text and its title."""
    tenant: str
    project: str
    levels: tuple[str, ...]
    layers: tuple[frozenset[str], ...]

    def with_rights(self, rights: Json) -> Truth:
        """Also those of another text."""
        acl = rights["metadata"].get("acl", [])
        layers = acl if isinstance(acl, list) else [[]]
        names = (
            frozenset(name for name in layer if isinstance(name, str))
            if isinstance(layer, list)
            else frozenset[str]()
            for layer in layers
        )
        return replace(self, levels=(*self.levels, rights["security_level"]), layers=(*self.layers, *names))

    def open_to(self, caller: Caller, projects: tuple[str, ...] = ()) -> bool:
        names = {f"user:{caller.subject}", *(f"group:{one}" for one in caller.groups)}
        mine, highest = {"default", *caller.projects}, LEVELS.index(caller.level)
        return (
            self.tenant == caller.tenant_name
            and bool({"*", self.project} & mine)
            and (not projects or self.project in projects)
            and all(one in LEVELS[: highest + 1] for one in self.levels)
            and all(names & layer for layer in self.layers)
        )


class World:
    """Two tenants with documents of all rights, in one database."""

    def __init__(self, runtime: Runtime) -> None:
        self.parts = runtime
        self.documents: list[Truth] = []

    def told(self, answer: object) -> set[str]:
        """Marks of documents that an answer tells, however."""
        return set(re.findall(r"mark\d+x", json.dumps(answer, default=str)))

    def open_to(self, caller: Caller, *projects: str) -> set[str]:
        return {one.mark for one in self.documents if one.open_to(caller, projects)}


def any_rights(rng: random.Random) -> Json:
    """Many are open to all, some have an `acl` of no good form."""
    count = rng.choice((0, 0, 1, 1, 2, 3))
    layers = [rng.sample(NAMES, rng.choice((0, 1, 1, 2, 3, 3, 4))) for _ in range(count)]
    acl = rng.choice(ODD) if rng.random() < 0.1 else layers
    level = rng.choice((*LEVELS[:2], *LEVELS, "secret"))
    return {"security_level": level, "metadata": {} if acl == [] else {"acl": acl}}


def text_of(one: Truth, rights: Json, more: str = "") -> Document:
    text = f"Mooring lines, {one.mark}. They are checked before each tide.{more}"
    kind = [*Kind][int(one.mark[4:-1]) % 3]
    return document(one.mark, text, title=f"Lines of {one.mark}", kind=kind, **rights)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, shared_addresses: Addresses, servers: embedded.Servers
) -> Iterator[World]:
    with installed(tmp_path_factory.mktemp("rights"), shared_addresses, servers, CONFIG) as runtime:
        made, rng, changed = World(runtime), random.Random(15), []
        for place, (tenant, project) in enumerate((t, p) for t in TENANTS for p in PROJECTS):
            own = tenant_id(tenant)
            ours = project_id(own, project)
            with runtime.database.tenant(own) as connection:
                sources.ensure_tenant(connection, own, tenant, ours, project)
            notes = SourceLedger(runtime.database, own, ours, f"notes-{project}")
            marks = [f"mark{place * EACH + n}x" for n in range(EACH)]
            plain = [Truth(notes.id(mark), mark, tenant, project, (), ()) for mark in marks]
            first = [(one, any_rights(rng)) for one in plain]
            notes.admit(*(text_of(one, rights) for one, rights in first))
            notes.index()
            made.documents += [one.with_rights(rights) for one, rights in first]
            changed.append(notes)
        # Of some a version with other rights is on its way.
        for place, notes in enumerate(changed):
            for n in range(place * EACH, (place + 1) * EACH, 4):
                one, rights = made.documents[n], any_rights(rng)
                notes.admit(text_of(one, rights, " Twice."))
                made.documents[n] = one.with_rights(rights)
        yield made


callers = st.builds(
    lambda tenant, **rights: Caller(tenant=tenant_id(tenant), tenant_name=tenant, **rights),
    st.sampled_from(TENANTS),
    subject=st.sampled_from((*SUBJECTS, "*", "nobody")),
    projects=st.sampled_from(((), ("berth",), ("quay", "berth"), ("*",), ("nowhere",))),
    permissions=st.just(frozenset({"read", "write"})),
    level=st.sampled_from(LEVELS),
    groups=st.lists(st.sampled_from((*GROUPS, "user:ann", "*")), unique=True, max_size=4).map(tuple),
)
often = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.req("001-115", "001-117", "001-118", "001-119", "001-120", "001-121")
@often
@given(caller=callers, pick=st.randoms(use_true_random=False))
def test_a_caller_is_told_of_what_is_theirs_and_of_nothing_else(
    world: World, caller: Caller, pick: random.Random
) -> None:
    runtime, mine = world.parts, world.open_to(caller)
    for mode in get_args(Mode):
        request = SearchRequest(
            text="mooring lines", mode=mode, k=500, min_similarity=-2, explain=True, trace=mode == "hybrid"
        )
        found = search_as(runtime, caller, request)
        hits = (*found.hits, *found.beyond, *found.below)
        assert world.told(to_json(runtime, caller.tenant, replace(found, hits=hits))) == mine, mode
        # What is remembered for level 2 was given to somebody with just these rights.
        limited = replace(request, filter=visible_filter(runtime, caller), trace=False)
        kept = retriever(runtime, caller.tenant).search(limited, level=CACHED)
        assert world.told(to_json(runtime, caller.tenant, kept)) <= mine
    shared = search_as(runtime, caller, replace(request, mode="keyword"), ["default"])
    assert world.told(to_json(runtime, caller.tenant, shared)) == world.open_to(caller, "default")
    for one in pick.sample(world.documents, 4):
        seen = one.mark in mine
        assert reads(world, caller, one) is seen
        assert marks(world, caller, one) is seen
        if one.tenant == caller.tenant_name:
            facts = explain.find(runtime, caller.tenant, str(one.id))
            assert explain.why_visible(caller, facts)["visible"] is seen


def reads(world: World, caller: Caller, one: Truth) -> bool:
    try:
        return world.told(document_as(world.parts, caller, one.id)) == {one.mark}
    except NotFound:
        return False


def marks(world: World, caller: Caller, one: Truth) -> bool:
    """Whether they may say something of it; if not, it looks like one that is nowhere."""
    said = {"item": "which lines", "verdict": "useful", "project": None, "source": None}

    def told(ref: UUID) -> str:
        try:
            mark_as(world.parts, caller, {**said, "ref": str(ref)})
        except NotFound as error:
            return str(error).replace(str(ref), "it")
        mark_as(world.parts, caller, {**said, "ref": str(ref), "verdict": "undo"})
        return ""

    unknown = told(one.id)
    assert not unknown or unknown == told(UUID(int=one.id.int ^ 1))
    return not unknown


@pytest.fixture(scope="module")
def clients(world: World) -> dict[str, Client]:
    where = world.parts.addresses.database
    return {one: Client(where, tenant=one, database=world.parts.database) for one in TENANTS}


def enriched(world: World, client: Client, request: Json, caller: Caller | None = None) -> Json:
    """As a worker answers what the client asks."""
    asked = client.checked(request, None, (), caller)
    place = project_id(client.tenant, asked["project"])
    return job.enricher(world.parts, client.tenant, place)(asked)


@pytest.mark.req("001-115")
@settings(often, max_examples=30)
@given(caller=callers, wide=st.booleans(), injected=st.sampled_from(NAMES))
def test_step_4_tells_a_caller_of_what_is_theirs(
    world: World, clients: dict[str, Client], caller: Caller, wide: bool, injected: str
) -> None:
    client = clients[caller.tenant_name]
    request = {
        "pbi": {"id": "PBI-1", "title": "Check mooring lines before each tide"},
        "topK": 20,
        "filters": {"readers": [injected, "group:board"], "security_levels": [*LEVELS, "secret"]},
        "project": "default",
        "projects": ["*"] * wide,
    }
    told = world.told(enriched(world, client, request, caller))
    mine = world.open_to(caller) if wide else world.open_to(caller, "default")
    assert told <= mine
    assert bool(told) is bool(mine)
    # Where nobody says who asks, it is what is open to all.
    told = world.told(enriched(world, client, request))
    somebody = replace(caller, subject="?", projects=("*",), level="internal", groups=())
    assert told
    assert told <= world.open_to(somebody)


def test_who_has_other_rights_asks_another_question(world: World, clients: dict[str, Client]) -> None:
    """So no answer is given again to somebody with fewer: the ledger's and a process's memory go by the question."""
    base = Caller(tenant=tenant_id("acme"), tenant_name="acme", subject="ann", projects=("berth",))
    changes: tuple[Json, ...] = (
        {}, {"subject": "bob"}, {"level": "restricted"}, {"groups": ("board",)}, {"groups": ("staff", "board")},
    )  # fmt: skip
    ours = [replace(base, **change) for change in changes]
    client, pbi = clients["acme"], {"pbi": {"title": "Check mooring lines"}}
    made = [client.submit(pbi, caller=caller) for caller in ours]
    assert len({client.submit(pbi), *made}) == len(ours) + 1
    assert [client.submit(pbi, caller=caller) for caller in ours] == made
    where, database = world.parts.addresses.database, world.parts.database
    for caller, one in zip(ours, made, strict=True):
        their = Client(where, tenant="acme", database=database, caller=caller)
        assert their.submit(pbi) == their.job(one).id == one
        for asker, other in zip(ours, made, strict=True):
            more = {*asker.readers, *asker.levels} - {*caller.readers, *caller.levels}
            if more:
                with pytest.raises(NotFound):
                    their.result(other)
