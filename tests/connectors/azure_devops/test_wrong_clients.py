"""Tests of the tests: a connector that falls into a trap must come to another result on the fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from connectors.azure_devops.client import BoardsClient, FeedPage
from connectors.azure_devops.document import WorkItem
from connectors.azure_devops.sdk import sdk_models
from pipeline.errors import ConfigurationError
from tests.connectors.azure_devops.world import Store, source_for, truth
from tests.fakes.azure_devops import FakeAzureDevOps


class IgnoresTheToken(BoardsClient):
    """Begins at the start of the feed each time."""

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:  # noqa: ARG002 (ignoring it is what is wrong)
        return replace(super().feed(project, start=start), last=True)


class StopsAtTheFirstBatch(BoardsClient):
    """Takes one page of the feed for the whole."""

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        return replace(super().feed(project, token=token, start=start), last=True)


class BelievesTheLibrary(BoardsClient):
    """Reads the attributes of the library's batch, all of which stay None."""

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:  # noqa: ARG002 (ignoring it is what is wrong)
        batch = self._call(
            "reading", "read_reporting_revisions_get", project=project, continuation_token=token
        )
        assert batch.is_last_batch is None, "the library has been mended: read its attributes"
        return FeedPage(deleted=batch.values or {}, token=batch.continuation_token, last=True)


class CountsByItsOwnClock(BoardsClient):
    """Asks for what changed since a time of its own instead of behind the token."""

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:  # noqa: ARG002 (ignoring it is what is wrong)
        return super().feed(project, start=datetime.now(UTC) - timedelta(minutes=10))


class ForgetsTombstones(BoardsClient):
    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        page = super().feed(project, token=token, start=start)
        return replace(page, deleted={n: deleted for n, deleted in page.deleted.items() if not deleted})


class DropsNulls(BoardsClient):
    """Pairs the ids asked for with what came, as if nothing were missing."""

    def items(self, ids: Sequence[int], fields: Sequence[str] = ()) -> dict[int, WorkItem]:
        found = super().items(ids, fields)
        came = [found[n] for n in ids if n in found]
        return {n: replace(item, id=n) for n, item in zip(ids, came, strict=False)}


class TakesTheProjectOfThePathForACondition(BoardsClient):
    def query(self, project: str, wiql: str) -> list[int]:
        return super().query(project, wiql.replace(f"[System.TeamProject] = '{project}' AND ", ""))


class AsksWithDatePrecision(BoardsClient):
    def _query(self, project: str, wiql: str) -> Any:
        return self._call(
            "asking",
            "query_by_wiql",
            sdk_models().Wiql(query=wiql),
            team_context=sdk_models().TeamContext(project=project),
        )


def _later(fake: FakeAzureDevOps, client: type[BoardsClient]) -> tuple[Store, set[str]]:
    """A sound first walk, many changes, then a sync by the variant: the store, and what that sync brought."""
    fake.limits.feed_most = 20
    fake.bulk("Web", 60)
    store = Store()
    store.sync(source_for(fake))
    fake.advance(days=1)
    for n in range(10, 50):
        fake.edit(n, title=f"edited {n}")
    fake.delete(50)
    pages = list(source_for(fake, client=client).pages(store.cursor))
    store.take(pages)
    return store, {d.external_id for page in pages for d in page.documents}


def test_the_sound_connector_comes_to_the_truth(services: FakeAzureDevOps) -> None:
    store, brought = _later(services, BoardsClient)

    assert store.seen() == truth(services)
    assert brought == {str(n) for n in range(10, 50)}


@pytest.mark.parametrize(
    "variant",
    [IgnoresTheToken, StopsAtTheFirstBatch, BelievesTheLibrary, CountsByItsOwnClock, ForgetsTombstones],
)
def test_a_wrong_reading_of_the_feed_is_seen(services: FakeAzureDevOps, variant: type[BoardsClient]) -> None:
    store, brought = _later(services, variant)

    assert store.seen() != truth(services) or brought != {str(n) for n in range(10, 50)}


def test_dropped_nulls_are_seen(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 6)
    services.forbid(3)
    store = Store()

    store.sync(source_for(services, client=DropsNulls))

    assert store.seen() != truth(services)


def test_other_projects_in_the_list_are_seen(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 6)
    services.bulk("Other", 6)

    listing = source_for(services, client=TakesTheProjectOfThePathForACondition).ids()

    assert listing.ids != set(truth(services))


def test_date_precision_is_seen(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 6)
    wiql = "[System.ChangedDate] >= '2025-01-01T10:00:00Z'"
    assert len(source_for(services, wiql=wiql).ids().ids) == 6

    with pytest.raises(ConfigurationError):
        source_for(services, wiql=wiql, client=AsksWithDatePrecision).ids()
