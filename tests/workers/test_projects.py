"""A request of Step 4 finds what its project has and what the tenant shares, and nothing of any other project."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis

from pipeline.access import Caller
from pipeline.documents import Json
from pipeline.embedding import EmbedderLimits
from pipeline.errors import EmbedderUnavailable, Forbidden, NotFound
from pipeline.ledger import sources
from pipeline.search import SearchRequest
from pipeline.search.records import Filter
from tests.conftest import Addresses, Copy
from tests.fakes.tcp_proxy import TcpProxy
from tests.workers.indexed import index
from tests.workers.installed import installed
from workers import step4_file
from workers.app import search, status
from workers.app.enrichment import job as enriching
from workers.app.ingestion import sync
from workers.app.ingestion.sync import configured_sources
from workers.app.questions import searches
from workers.cli.search import SearchOptions
from workers.client import Client
from workers.local import embedded
from workers.runtime import Runtime
from workers.settings import load
from workers.step4_file import ProjectScope

PROJECTS = ("shop", "billing", "shared")
CONFIG = """
rag:
  embedding: {provider: hashing}
  retrieval: {minSimilarity: 0}
  sources:
"""
PBI = {
    "id": "PBI-9",
    "title": "Pay an invoice by card",
    "description": "A customer pays an open invoice by card.",
}


def source(project: str, named: str) -> str:
    return f"""
    - {{name: {project}-pages, type: markdown, paths: ['./{project}/**/*.md'], project: {named}, autoIndex: false}}
    - {{name: {project}-items, type: pbi_json, paths: ['./{project}/items.json'], project: {named}, autoIndex: false}}
"""


def write(folder: Path, project: str) -> None:
    """An item, a decision and a page; all three tell in their titles whose they are."""
    words = f"{PBI['title']}. {PBI['description']}"
    files = {
        f"{project}/adr/0001-card.md": f"# {project} decision: {words}\n\n## Status\n\nAccepted\n\n## Decision\n\n{words} only.\n",
        f"{project}/pages/card.md": f"# {project} page: {words}\n\n{words}: how to do it.\n",
        f"{project}/items.json": json.dumps(
            {"pbis": [{"id": f"{project}-1", "title": f"{project} item: {words}", "description": words}]}
        ),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


@pytest.fixture(scope="module")
def indexed(
    tmp_path_factory: pytest.TempPathFactory, copy_of: Copy, pristine: str, servers: embedded.Servers
) -> Iterator[tuple[Path, str]]:
    """A folder of three projects that have the same three documents, all of which fit the question; its database."""
    folder = tmp_path_factory.mktemp("projects")
    for project in PROJECTS:
        write(folder, project)
    config = CONFIG + "".join(source(project, project) for project in PROJECTS)
    with copy_of(pristine) as made:
        with installed(folder, made, servers, config) as runtime:
            sync.register(runtime)
            index(runtime)
        yield folder, made.name


@pytest.fixture
def addresses(indexed: tuple[Path, str], copy_of: Copy) -> Iterator[Addresses]:
    with copy_of(indexed[1]) as made:
        yield made


@pytest.fixture
def runtime(
    tmp_path: Path,
    indexed: tuple[Path, str],
    addresses: Addresses,
    servers: embedded.Servers,
    broker: redis.Redis,
) -> Iterator[Runtime]:
    """The three projects, for one test to change."""
    shutil.copytree(indexed[0], tmp_path, dirs_exist_ok=True)
    config = (tmp_path / "larder.yaml").read_text(encoding="utf-8")
    with installed(tmp_path, addresses, servers, config) as made:
        yield made


@pytest.fixture
def client(addresses: Addresses, servers: embedded.Servers) -> Iterator[Client]:
    with Client(addresses.app, project="shop") as made:
        yield made


Ask = Callable[..., Json]


@pytest.fixture
def ask(runtime: Runtime, client: Client) -> Ask:
    """`ask(request, project=..., projects=...)`: from the client to the answer, through the ledger."""

    def through(request: Json | None = None, **where: Any) -> Json:
        job = client.submit(request or PBI, **where)
        enriching.run(runtime, runtime.settings.tenant_id, job)
        return client.result(job)

    return through


SECTIONS = ("similar_work", "past_decisions", "technical_docs")


def owners(answer: Json) -> dict[str, set[str]]:
    """Whose documents each section shows: the first word of their titles."""
    shown = {name: {one["title"].split()[0] for one in answer[name]} for name in (*SECTIONS, "citations")}
    assert {one["title"].split()[0] for one in answer["likely_duplicates"]} <= shown["similar_work"]
    return shown


def all_of(*projects: str) -> dict[str, set[str]]:
    return {name: set(projects) for name in (*SECTIONS, "citations")}


def test_a_request_finds_its_project_and_what_is_shared_in_every_section(ask: Ask) -> None:
    found = ask()
    assert owners(found) == all_of("shop", "shared")
    assert "billing" not in json.dumps(found)
    assert found["project"] == "shop"
    assert found["degradation_level"] == 0


@pytest.mark.parametrize(
    ("request_", "where", "project", "seen"),
    [
        ({"pbi": PBI, "project": "billing"}, {}, "billing", ("billing", "shared")),
        ({"pbi": PBI, "projectId": "billing"}, {}, "billing", ("billing", "shared")),
        ({**PBI, "project": "billing"}, {}, "billing", ("billing", "shared")),
        ({"pbi": {**PBI, "project": "shop"}, "project": "billing"}, {}, "billing", ("billing", "shared")),
        ({"pbi": PBI, "project": "shop"}, {"project": "billing"}, "billing", ("billing", "shared")),
        ({**PBI, "project": {"key": "billing"}}, {}, "shop", ("shop", "shared")),
        (PBI, {"project": "default"}, "default", ("shared",)),
        (PBI, {"project": "nowhere"}, "nowhere", ("shared",)),
        (PBI, {"projects": ["billing"]}, "shop", PROJECTS),
        ({"pbi": PBI, "projects": ["billing", "nowhere"]}, {}, "shop", PROJECTS),
        (PBI, {"project": "nowhere", "projects": ["*"]}, "nowhere", PROJECTS),
    ],
)
def test_where_the_project_is_named_and_crossing_is_asked_for(
    ask: Ask, request_: Json, where: Json, project: str, seen: tuple[str, ...]
) -> None:
    found = ask(request_, **where)
    assert (owners(found), found["project"]) == (all_of(*seen), project)


@pytest.mark.parametrize(
    ("ident", "seen"),
    [("shop-1", {"billing", "shared"}), ("billing-1", {*PROJECTS}), ("shared-1", {"shop", "billing"})],
)
def test_another_projects_item_of_the_same_id_is_not_the_item_itself(
    ask: Ask, ident: str, seen: set[str]
) -> None:
    """What is shared is where items are whose sources name no project."""
    assert owners(ask({**PBI, "id": ident}, projects=["*"]))["similar_work"] == seen


def test_an_id_names_a_project_as_its_name_does(ask: Ask, runtime: Runtime) -> None:
    (billing,) = {
        one.project_id for one in configured_sources(runtime.settings).values() if one.project == "billing"
    }
    assert owners(ask(project=str(billing))) == all_of("billing", "shared")


def test_an_installation_without_projects_is_as_before(
    tmp_path: Path, copy_of: Copy, pristine: str, servers: embedded.Servers
) -> None:
    write(tmp_path, "all")
    config = CONFIG + source("all", "''").replace(" project: '',", "")
    with copy_of(pristine) as empty, installed(tmp_path, empty, servers, config) as made:
        sync.register(made)
        index(made)
        for project in (None, made.settings.project_id):
            assert owners(enriching.enricher(made, made.settings.tenant_id, project)({"pbi": PBI})) == all_of(
                "all"
            )
        assert step4_file.notices(made, backlog_of(tmp_path, PBI), ProjectScope()) == []


# At other levels, and what is remembered -----------------------------------------------------------


class Away:
    """An embedder whose service does not answer."""

    dimensions = 384
    limits = EmbedderLimits()

    def count_tokens(self, text: str) -> int:
        return len(text)

    def embed_query(self, _text: str) -> Any:
        raise EmbedderUnavailable("the provider does not answer")


def test_words_alone_stay_within_the_project_too(ask: Ask, runtime: Runtime) -> None:
    runtime.__dict__["embedder"] = Away()
    found = ask()
    assert (owners(found), found["degradation_level"]) == (all_of("shop", "shared"), 3)


def test_no_answer_of_another_project_is_given_again(ask: Ask, runtime: Runtime, client: Client) -> None:
    everywhere, own = ask(projects=["*"]), ask()
    assert owners(everywhere) == all_of(*PROJECTS)
    assert owners(own) == all_of("shop", "shared")
    assert client.submit(PBI) == client.submit({"pbi": PBI, "scores": {}, "project": "shop"})
    assert (
        len({client.submit(PBI), client.submit(PBI, project="billing"), client.submit(PBI, projects=["*"])})
        == 3
    )


def test_searches_that_are_remembered_keep_projects_apart(runtime: Runtime) -> None:
    """The second time the store is asked for less: the same words, and another filter."""
    enrich = enriching.enricher(runtime, runtime.settings.tenant_id)
    for _ in range(2):
        assert owners(enrich({"pbi": PBI, "project": "shop", "projects": ["*"]})) == all_of(*PROJECTS)
        assert owners(enrich({"pbi": PBI, "project": "shop"})) == all_of("shop", "shared")
        assert owners(enrich({"pbi": PBI, "project": "billing"})) == all_of("billing", "shared")


def test_without_the_store_only_the_answer_for_the_same_projects_is_left(
    addresses: Addresses, runtime: Runtime
) -> None:
    with TcpProxy.to(addresses.app) as proxy, Client(proxy.url(addresses.app), project="shop") as client:
        for projects in ([], ["*"]):
            job = client.submit({"pbi": PBI, "scores": {}}, projects=projects)
            enriching.run(runtime, runtime.settings.tenant_id, job)
            client.enrich(PBI, {}, projects=projects)
        proxy.cut()
        own, everywhere = client.enrich(PBI, {}), client.enrich(PBI, {}, projects=["*"])
        assert {own["degradation_level"], everywhere["degradation_level"]} == {2}
        assert owners(own) == all_of("shop", "shared")
        assert owners(everywhere) == all_of(*PROJECTS)
        with pytest.raises(Exception, match="database"):
            client.enrich(PBI, {}, project="billing")


def test_switched_off_and_prepared_answers_name_the_project(runtime: Runtime, tmp_path: Path) -> None:
    runtime.rag = runtime.rag.model_copy(update={"enabled": False})
    assert (
        enriching.enricher(runtime, runtime.settings.tenant_id)({"pbi": PBI, "project": "shop"})["project"]
        == "shop"
    )
    read = backlog_of(tmp_path, PBI, {**PBI, "project": "billing"})
    made = step4_file.enrich(runtime, read, scope=ProjectScope(), timeout=5, tell=lambda _outcome: None)
    assert [item["context"]["project"] for item in made.items] == ["default", "billing"]


# Sources that move ---------------------------------------------------------------------------------


def test_a_source_that_changes_its_project_takes_its_documents_along(
    ask: Ask, runtime: Runtime, tmp_path: Path
) -> None:
    assert owners(ask()) == all_of("shop", "shared")
    text = (tmp_path / "larder.yaml").read_text().replace("project: billing", "project: shop")
    (tmp_path / "larder.yaml").write_text(text)
    moved = Runtime(load(tmp_path / "larder.yaml", {}), runtime.addresses)
    sync.register(moved)
    with moved.database.tenant(moved.settings.tenant_id) as connection:
        assert list(sources.projects(connection).values()) == ["default", "shop"]
    moved.close()
    assert owners(ask()) == all_of(*PROJECTS)


# What a person is told -----------------------------------------------------------------------------


def backlog_of(folder: Path, *items: Json) -> step4_file.BacklogFile:
    (folder / "step-3.json").write_text(json.dumps({"scored_pbis": list(items)}))
    return step4_file.read_backlog(folder / "step-3.json")


OUTSIDE = "are left out; --projects '*' asks all"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), [f"project default: documents of other projects (billing, shop) {OUTSIDE}"]),
        (("shop",), [f"project shop: documents of other projects (billing) {OUTSIDE}"]),
        (("shop,billing",), []),
        (("shop", "billing"), []),
        (("*",), []),
        (("shop", "*"), []),
        (
            ("shpo",),
            [
                "project 'shpo' holds no documents; there are billing, default, shop",
                f"project shpo: documents of other projects (billing, shop) {OUTSIDE}",
            ],
        ),
        (
            ("shop", "bling"),
            [
                "project 'bling' holds no documents; there are billing, default, shop",
                f"project shop: documents of other projects (billing) {OUTSIDE}",
            ],
        ),
    ],
)
def test_what_is_left_out_and_what_holds_nothing_is_said(
    runtime: Runtime, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    assert step4_file.notices(runtime, backlog_of(tmp_path, PBI), ProjectScope.parse(words)) == said


def test_projects_that_the_items_of_a_file_name_are_told_of(runtime: Runtime, tmp_path: Path) -> None:
    read = backlog_of(tmp_path, PBI, {**PBI, "project": "billing"}, {**PBI, "project": "billing"})
    assert step4_file.notices(runtime, read, ProjectScope()) == [
        f"project default: documents of other projects (billing, shop) {OUTSIDE}",
        f"project billing: documents of other projects (shop) {OUTSIDE}",
    ]


@pytest.mark.req("001-120")
def test_a_search_is_restricted_to_projects_where_some_are_named(runtime: Runtime) -> None:
    def found(*projects: str) -> set[str]:
        wanted = SearchOptions(project=list(projects))
        request = SearchRequest(
            text="pay an open invoice by card",
            k=20,
            filter=searches.filter_of(runtime, vars(wanted)),
        )
        return {
            hit.document.title.split()[0]
            for hit in search.search(runtime, runtime.settings.tenant_id, request, by="ann").hits
        }

    assert found() == set(PROJECTS)
    assert found("billing") == {"billing"}
    assert found("billing", "shop") == {"billing", "shop"}
    assert found("default") == found("shared") == {"shared"}
    assert found("nowhere") == set()


class Nobody(Caller):
    """A caller of whom a fault has left no right at all."""

    @property
    def search_filter(self) -> Filter:
        return Filter(security_levels=(), readers=(), projects=())

    @property
    def own_projects(self) -> tuple[UUID, ...]:
        return ()


def test_who_has_no_right_finds_nothing_by_any_door(runtime: Runtime) -> None:
    """An empty list is none, and never all: by search, document, changes, listings and Step 4."""
    settings = runtime.settings
    nobody = Nobody(tenant=settings.tenant_id, tenant_name=settings.tenant, subject="x", projects=("*",))
    request = SearchRequest(text="pay an open invoice by card", k=20)
    everything = search.search(runtime, nobody.tenant, request, by="ann").hits
    assert len(everything) == 9
    assert search.search_as(runtime, nobody, request).hits == []
    with pytest.raises(NotFound):
        search.document_as(runtime, nobody, everything[0].document.id)
    assert (status.changes_of(runtime, nobody), status.sources_of(runtime, nobody)) == ([], [])
    assert status.projects_of(runtime, nobody) == {}
    with Client(runtime.addresses.database, project="shop", settings=settings, caller=nobody) as made:
        assert made.search("pay an open invoice by card")["results"] == []
        with pytest.raises(Forbidden):
            made.submit({"pbi": PBI})
    asked = {"pbi": PBI, "project": "shop", "filters": {"security_levels": [], "readers": []}}
    answer = enriching.enricher(runtime, nobody.tenant)(asked)
    assert not any(answer[section] for section in ("similar_work", "past_decisions", "technical_docs"))
