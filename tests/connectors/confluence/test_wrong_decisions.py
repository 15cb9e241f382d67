"""Tests of the tests: a connector with one wrong decision ends with another store than the right one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from connectors import ProtectedSource
from connectors.confluence import client
from pipeline.documents import Json
from pipeline.errors import LarderError
from tests.connectors.confluence.world import Store, confluence, source_for, truth
from tests.fakes.confluence import FakeConfluence

RIGHT_ADDRESS = client.next_address


def _host_root(base: str, payload: Json) -> str | None:
    """Drops the context path of the next link, as the library does."""
    link = payload["_links"].get("next")
    return None if link is None else base.removesuffix("/wiki") + str(link)


def _encoded_again(base: str, payload: Json) -> str | None:
    link = RIGHT_ADDRESS(base, payload)
    return None if link is None else link.replace("%", "%25")


def _fewer_is_the_end(payload: Json, asked: int) -> bool:
    return len(payload["results"]) < asked


def _our_clock(_before: datetime | None, _row: datetime | None) -> datetime | None:
    return datetime.now(UTC)


def _from_the_start(*_stored: object) -> None:
    return None


WRONG: dict[str, Mapping[str, object]] = {
    "the next link loses the context": {"client.next_address": _host_root},
    "the next link is encoded twice": {"client.next_address": _encoded_again},
    "fewer than asked for is the end": {"client.is_last": _fewer_is_the_end},
    "no overlap": {"source.OVERLAP": timedelta(0)},
    "a time that is late in some zones": {"source.FARTHEST_WEST": timedelta(hours=-6)},
    "our clock": {"source.reached": _our_clock},
    "the cursor is ignored": {"source.read_cursor": _from_the_start},
    "no look whether the list moved": {"client.ROWS_AGAIN": 0},
}
"""Module and name below `connectors.confluence` -> what stands there instead."""
KIND = {
    "no look whether the list moved": "server",
}


def _small(fake: FakeConfluence) -> ProtectedSource:
    return source_for(fake, page_size=5)


def _life(fake: FakeConfluence) -> tuple[object, object, int]:
    """Syncs with changes between; what is in the store, what should be, and documents read.

    Both sides give a tenth of the usual at once: 62 pages are as many answers and reads as 620.
    """
    fake.most_rows = 20
    made = []
    for n in range(62):
        made.append(fake.add_page("ENG", f"Page {n}", "<p>x</p>"))
        fake.advance(seconds=70)
    fake.advance(days=1)
    store = Store()
    tripped = iter([True])

    def trash_behind_the_reader(seen: object) -> None:
        if "created asc" in getattr(seen, "target", "").replace("+", " ") and next(tripped, False):
            for page in made[:5]:
                fake.trash(page)

    fake.on_request(trash_behind_the_reader)
    try:
        store.sync(_small(fake))
        fake.on_request(None)
        fake.edit(made[53], "<p>a day later</p>")
        fake.advance(minutes=1)
        store.sync(_small(fake))
        fake.hide_from_index(minutes=5)
        fake.edit(made[50], "<p>late</p>")
        fake.hide_from_index(minutes=0)
        fake.advance(minutes=1)
        fake.edit(made[51], "<p>early</p>")
        store.sync(_small(fake))
        fake.advance(seconds=5)
        fake.edit(made[52], "<p>same minute</p>")
        fake.advance(minutes=1)
        fake.edit(made[51], "<p>again</p>")
        store.sync(_small(fake))
        fake.advance(minutes=8)
        for page in made[:5]:
            store.documents.pop(page, None)
        store.sync(_small(fake))
    except LarderError as error:
        return error, truth(fake), len(store.read)
    return store.seen(), truth(fake), len(store.read)


@pytest.mark.parametrize("kind", ["cloud", "server"])
def test_the_right_decisions_end_with_the_truth(kind: str) -> None:
    with confluence(kind) as fake:
        fake.add_space("ENG")
        store, expected, read = _life(fake)

    assert store == expected
    assert read < 66


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_decision_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, wrong in WRONG[name].items():
        monkeypatch.setattr(f"connectors.confluence.{place}", wrong)
    with confluence(KIND.get(name, "cloud")) as fake:
        fake.add_space("ENG")
        store, expected, read = _life(fake)

    assert store != expected or read > 100
