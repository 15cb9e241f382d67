"""A work item that the service fails over is isolated, named and read again later; all others come in."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from connectors.azure_devops.client import BATCH
from connectors.web import division
from pipeline.errors import RateLimited, SourceUnavailable
from tests.connectors.azure_devops.world import Store, batch_with, source_for, truth
from tests.connectors.worlds import Clock
from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests
from tests.fakes.server import Fault

FAULTS: dict[str, Callable[[], Fault]] = {
    "500": lambda: Fault.status(500, body='{"message": "secret text"}', content_type="application/json"),
    "502": lambda: Fault.status(502),
    "503 without a time": lambda: Fault.status(503),
    "reset": Fault.reset,
    "cut body": Fault.cut_body,
    "truncated JSON": Fault.truncated,
    "an item of another shape": lambda: Fault.status(
        200, body='{"value": [{"id": 107, "relations": [null]}]}', content_type="application/json"
    ),
    "null": lambda: Fault.status(200, body="null", content_type="application/json"),
}


def _batches(fake: FakeAzureDevOps) -> list[list[int]]:
    return [json.loads(s.body)["ids"] for s in fake.log if s.path.lower().endswith("/workitemsbatch")]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass for what is read again."""
    clock = Clock()
    monkeypatch.setattr("connectors.web.division.time.time", clock)

    def passes(seconds: float) -> None:
        clock.now += seconds

    return passes


@pytest.mark.parametrize("kind", FAULTS)
def test_an_item_that_fails_in_every_batch_is_named_and_the_others_come(
    services: FakeAzureDevOps, kind: str
) -> None:
    services.bulk("Web", BATCH + 10)
    services.faults.next(FAULTS[kind](), when=batch_with(107), times=None)
    store = Store()

    errors = store.sync_through(services, Clock())

    assert len(errors) == 1, "the first failure is told, and waited for, as any other"
    assert isinstance(errors[0], SourceUnavailable)
    assert set(store.documents) == {str(n) for n in range(1, BATCH + 11)} - {"107"}
    (problem,) = store.failed
    assert problem.external_id == "107"
    assert problem.url.endswith("/_workitems/edit/107")
    assert "Azure DevOps" in problem.reason
    assert "secret" not in problem.reason
    assert store.deleted == []


def test_two_in_a_batch_cost_few_requests(services: FakeAzureDevOps) -> None:
    services.bulk("Web", BATCH)
    services.faults.next(Fault.status(500), when=batch_with(3, 150), times=None)
    store = Store()

    store.sync_through(services, Clock())

    assert [p.external_id for p in store.failed] == ["3", "150"]
    assert "answered 500" in store.failed[0].reason
    assert len(store.documents) == BATCH - 2
    assert len(_batches(services)) < 2 + 2 * 2 * 8 + 3


def test_a_service_that_fails_as_a_whole_names_no_item(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 30)
    services.faults.next(
        Fault.status(500), when=lambda seen: seen.path.lower().endswith("/workitemsbatch"), times=None
    )
    store = Store()

    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            store.sync(source_for(services))

    assert (store.failed, store.deleted, store.documents) == ([], [], {})
    assert len(_batches(services)) <= 1 + 2 + 2
    services.faults.clear()
    store.sync(source_for(services))
    assert store.seen() == truth(services)


def test_a_service_that_fails_over_all_items_is_ill_though_it_answers_for_none(
    services: FakeAzureDevOps,
) -> None:
    services.bulk("Web", 60)
    services.faults.next(Fault.status(500), when=batch_with(*range(1, 61)), times=None)
    store = Store()

    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            store.sync(source_for(services))

    assert (store.failed, store.documents) == ([], {})
    assert len(_batches(services)) < 40


def test_more_than_some_culprits_are_an_illness_of_the_service(
    services: FakeAzureDevOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "MOST_CULPRITS", 3)
    services.bulk("Web", 60)
    services.faults.next(Fault.status(500), when=batch_with(50, 52, 54, 56), times=None)
    store = Store()

    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            store.sync(source_for(services))

    assert store.failed == []


def test_who_is_asked_to_wait_divides_nothing(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 30)
    services.faults.next(Fault.status(500), when=batch_with(7))
    services.faults.next(too_many_requests("7"), when=batch_with(7), times=None)
    store = Store()

    for _ in range(2):
        with pytest.raises((SourceUnavailable, RateLimited)):
            store.sync(source_for(services, clock=Clock()))

    assert len(_batches(services)) == 2
    assert store.failed == []


def test_it_is_read_again_with_growing_pauses_and_comes_when_it_heals(
    services: FakeAzureDevOps, later: Callable[[float], None]
) -> None:
    services.bulk("Web", 30)
    services.faults.next(Fault.status(500), when=batch_with(7), times=None)
    store = Store()
    store.sync_through(services, Clock())
    tried = []
    for minute in range(0, 240, 10):
        before = len(store.failed)
        store.sync(source_for(services))
        tried += [minute] * (len(store.failed) - before)
        later(600)

    assert tried == [10, 30, 70, 150]
    services.faults.clear()
    later(86_400)
    assert store.sync(source_for(services)) == ["7"]
    assert store.seen() == truth(services)
    assert store.sync(source_for(services)) == []
    assert store.cursor is not None
    assert "retries" not in store.cursor


def test_an_edit_that_heals_it_ends_the_tries(
    services: FakeAzureDevOps, later: Callable[[float], None]
) -> None:
    services.bulk("Web", 30)
    services.faults.next(Fault.status(500), when=batch_with(7), times=None)
    store = Store()
    store.sync_through(services, Clock())
    services.faults.clear()
    services.edit(7, title="mended")

    assert store.sync(source_for(services)) == ["7"]
    later(86_400)
    assert store.sync(source_for(services)) == []


def test_what_the_feed_names_is_divided_too(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 30)
    store = Store()
    store.sync(source_for(services))
    for n in (5, 6, 7, 8):
        services.edit(n, title="changed")
    services.faults.next(Fault.status(500), when=batch_with(7), times=None)

    store.sync_through(services, Clock())

    assert [p.external_id for p in store.failed] == ["7"]
    assert {i for i, d in store.documents.items() if d.title == "changed"} == {"5", "6", "8"}
    assert "7" in store.documents, "what was known of it stays"


def test_the_id_walk_keeps_it_and_shows_the_versions_of_the_others(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 30)
    services.faults.next(Fault.status(500), when=batch_with(7), times=None)

    listing = source_for(services).ids()

    assert listing.complete
    assert listing.ids == {str(n) for n in range(1, 31)}
    assert listing.ids - set(listing.versions) == {"7"}


def test_reading_by_ids_brings_the_others(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 30)
    services.faults.next(Fault.status(500), when=batch_with(7), times=None)
    store = Store()

    store.take(source_for(services).read(["6", "7", "8"]))

    assert set(store.documents) == {"6", "8"}
    assert [p.external_id for p in store.failed] == ["7"]


def test_comments_that_cannot_be_had_fail_their_item_alone(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 5)
    for n in (2, 3, 4):
        services.comment(n, "word")
    services.faults.next(
        Fault.status(500), when=lambda seen: seen.path.lower().endswith("/3/comments"), times=None
    )
    store = Store()

    store.sync_through(services, Clock())

    assert set(store.documents) == {"1", "2", "4", "5"}
    assert [p.external_id for p in store.failed] == ["3"]
    assert "comments" in store.failed[0].reason


def test_an_item_at_the_other_end_of_a_link_harms_none_that_leads_there(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    elsewhere = services.add_item("Other", "Bug", "Broken")
    services.link(1, elsewhere)
    services.faults.next(Fault.status(500), when=batch_with(elsewhere), times=None)
    store = Store()

    store.sync_through(services, Clock())

    assert set(store.documents) == {"1", "2", "3"}
    assert store.failed == []


def test_check_tells_of_the_newest_item_and_calls_the_service_well(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    services.faults.next(Fault.status(500), when=batch_with(3), times=None)

    wrong = [f for f in source_for(services).check() if not f.ok]

    assert [f.subject for f in wrong] == ["contents of Web"]
    assert "work item 3" in wrong[0].detail
