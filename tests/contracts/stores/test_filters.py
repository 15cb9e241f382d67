"""Which documents a store must leave out of both arms."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from pipeline.documents import Kind, SourceType
from pipeline.search.records import Filter
from tests.contracts.stores.stock import (
    EMBEDDER,
    PROJECT_A,
    PROJECT_B,
    InLedger,
    ask,
    by_words,
    contents,
    put,
)

DAY = [datetime(2025, 1, day, tzinfo=UTC) for day in range(1, 10)]


@pytest.fixture
def library(store: InLedger) -> InLedger:
    """Four documents that differ in everything a filter can ask for."""
    put(store, "kestrel one", title="one", source_type=SourceType.PBI, kind=Kind.WORK, tags=("api", "urgent"),
        metadata={"team": "red", "points": 3, "done": True, "area": {"path": "x"}},
        project_id=PROJECT_A, created_at=DAY[0], updated_at=DAY[5])  # fmt: skip
    put(store, "kestrel two", title="two", source_type=SourceType.CONFLUENCE, kind=Kind.DECISION, tags=("api",),
        metadata={"team": "blue", "points": 1, "done": False}, project_id=PROJECT_A, created_at=DAY[2])  # fmt: skip
    put(store, "kestrel three", title="three", source_type=SourceType.TEXT, kind=Kind.REFERENCE,
        metadata={"team": None, "points": "3"}, project_id=PROJECT_B,
        created_at=DAY[7], updated_at=DAY[7])  # fmt: skip
    put(
        store, "kestrel four", title="four", source_type=SourceType.TEXT, kind=Kind.DECISION, tags=("urgent",)
    )
    return store


FILTERS: list[tuple[Filter, set[str]]] = [
    (Filter(), {"one", "two", "three", "four"}),
    (Filter(source_types=(SourceType.PBI,)), {"one"}),
    (Filter(source_types=(SourceType.TEXT, SourceType.CONFLUENCE)), {"two", "three", "four"}),
    (Filter(source_types=(SourceType.AZURE_DEVOPS,)), set()),
    (Filter(kinds=(Kind.DECISION,)), {"two", "four"}),
    (Filter(kinds=(Kind.WORK, Kind.REFERENCE)), {"one", "three"}),
    (Filter(tags=("api",)), {"one", "two"}),
    (Filter(tags=("api", "urgent")), {"one"}),
    (Filter(tags=("ap",)), set()),
    (Filter(since=DAY[5]), {"one", "three"}),
    (Filter(since=DAY[1]), {"one", "two", "three"}),
    (Filter(until=DAY[5]), {"two"}),
    (Filter(until=DAY[7]), {"one", "two"}),
    (Filter(since=DAY[2], until=DAY[6]), {"one", "two"}),
    (Filter(metadata=(("team", "red"),)), {"one"}),
    (Filter(metadata=(("team", None),)), {"three"}),
    (Filter(metadata=(("points", 3),)), {"one", "three"}),
    (Filter(metadata=(("points", "3"),)), {"one", "three"}),
    (Filter(metadata=(("points", 1),)), {"two"}),
    (Filter(metadata=(("done", True),)), {"one"}),
    (Filter(metadata=(("done", 1),)), set()),
    (Filter(metadata=(("area", {"path": "x"}),)), {"one"}),
    (Filter(metadata=(("area", {}),)), set()),
    (Filter(metadata=(("area", "path"),)), set()),
    (Filter(metadata=(("team", "red"), ("points", 1))), set()),
    (Filter(metadata=(("absent", "x"),)), set()),
    (Filter(projects=(PROJECT_A,)), {"one", "two"}),
    (Filter(projects=(PROJECT_A, PROJECT_B)), {"one", "two", "three"}),
    (Filter(projects=(UUID(int=0xC),)), set()),
    (Filter(projects=(PROJECT_A,), kinds=(Kind.DECISION,)), {"two"}),
    (
        Filter(tags=("urgent",), metadata=(("team", "red"),), since=DAY[0], source_types=(SourceType.PBI,)),
        {"one"},
    ),
    (Filter(tags=("urgent",), projects=(PROJECT_B,)), set()),
]


@pytest.mark.req("003-017", "001-032")
@pytest.mark.parametrize(("condition", "titles"), FILTERS)
def test_filters_hold_in_both_arms(library: InLedger, condition: Filter, titles: set[str]) -> None:
    vector = ask(library, "kestrel", keywords=False, filter=condition)
    assert {c.document.title for c in vector} == titles
    assert {c.document.title for c in by_words(library, "kestrel", filter=condition)} == titles
    assert {c.document.title for c in ask(library, "kestrel", filter=condition)} == titles


def test_excluded_documents_do_not_come(library: InLedger) -> None:
    own = next(c.document for c in ask(library, "kestrel one") if c.document.title == "one")
    rest = ask(library, "kestrel one", filter=Filter(exclude=(own.id, uuid4())))
    assert {c.document.title for c in rest} == {"two", "three", "four"}
    assert own.id not in {
        c.document.id for c in by_words(library, "kestrel", filter=Filter(exclude=(own.id,)))
    }


def test_filters_are_applied_before_the_best_are_taken(store: InLedger) -> None:
    """Filtering afterwards would leave nothing here: the thirty best all belong to somebody else."""
    for _ in range(30):
        put(store, "kestrel falcon", project_id=PROJECT_A)
    put(store, "kestrel otter badger", project_id=PROJECT_B)
    condition = Filter(projects=(PROJECT_B,))
    for found in (
        ask(store, "kestrel falcon", keywords=False, candidates=5, filter=condition),
        by_words(store, "kestrel falcon", candidates=5, filter=condition),
    ):
        assert contents(found) == ["kestrel otter badger"]


def test_filtered_documents_stay_filtered_when_the_other_arm_finds_them(store: InLedger) -> None:
    put(store, "kestrel", kind=Kind.WORK)
    put(store, "otter", kind=Kind.DECISION)
    found = ask(store, "kestrel", vector=EMBEDDER.embed_query("otter"), filter=Filter(kinds=(Kind.DECISION,)))
    assert contents(found) == ["otter"]
