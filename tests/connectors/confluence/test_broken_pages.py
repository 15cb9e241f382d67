"""A page that Confluence cannot show does not take others with it."""

from __future__ import annotations

import pytest

from connectors.web.answers import ServerFault
from pipeline.errors import SourceUnavailable
from tests.connectors.confluence.world import Store, source_for, truth
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault


def test_a_broken_page_in_a_batch_is_a_failed_item_with_its_address_and_the_rest_comes(
    fake: FakeConfluence,
) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(60)]
    fake.break_page(made[7])
    fake.break_page(made[55])
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == set(made) - {made[7], made[55]}
    assert [p.external_id for p in store.failed] == [made[7], made[55]]
    assert store.failed[0].url.startswith(fake.base)
    assert "Page 7" in store.failed[0].reason
    assert len(fake.requests()) < 60


def test_a_mended_page_comes_with_the_daily_walk(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.break_page(page)
    store = Store()
    store.sync(source_for(fake))
    fake.mend_page(page)

    assert store.reconcile(source_for(fake)) == [page]
    assert store.seen() == truth(fake)


def test_a_broken_comment_fails_its_page_only(fake: FakeConfluence) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(10)]
    fake.break_page(fake.comment(made[3], "<p>y</p>"))
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == set(made) - {made[3]}
    assert [p.external_id for p in store.failed] == [made[3]]


def test_a_restricted_broken_page_is_not_named(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Secret plan", "<p>x</p>", restricted_to=[("user", "bot")])
    fake.break_page(page)
    store = Store()

    store.sync(source_for(fake, include_restricted=False))

    assert store.failed == []


def test_a_service_that_is_ill_as_a_whole_stops_the_sync_instead_of_failing_every_page(
    fake: FakeConfluence,
) -> None:
    for n in range(10):
        fake.add_page("ENG", f"Page {n}", "<p>x</p>")
    fake.faults.next(Fault.status(500), when=lambda seen: "id in" in seen.first("cql"), times=None)
    store = Store()

    with pytest.raises(ServerFault):
        store.sync(source_for(fake))
    assert store.failed == []
    assert len(fake.requests()) < 10


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_fails_is_no_broken_page(fake: FakeConfluence, status: int) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    fake.faults.next(Fault.status(status), when=lambda seen: "id in" in seen.first("cql"))
    store = Store()

    with pytest.raises(SourceUnavailable):
        store.sync(source_for(fake))
    store.sync(source_for(fake))

    assert store.seen() == truth(fake)
