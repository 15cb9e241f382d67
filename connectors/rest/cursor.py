"""Position of a sync of a REST service: the time since when changes are listed, and the page of that list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from connectors.rest.client import Place
from connectors.rest.document import Item
from connectors.web.division import Retries, updated_retries
from pipeline.documents import Problem

MOST_SEEN = 2000
"""Most records that a cursor remembers from the time before the last change; others are read once more."""
CLOCK_SKEW = timedelta(minutes=1)
"""Time by which a change may be ahead of the service's clock."""

Mark = tuple[str, int]
"""Fingerprint of a record, and its time of change in epoch seconds."""


@dataclass(frozen=True, kw_only=True)
class RestCursor:
    """Position of a sync: the time since when changes are listed, and the page of that list."""

    selection: str
    since: datetime | None = None
    """Newest change of all lists that were read to their end; None before the first one."""
    place: Place = None
    """Position of the page that is being read."""
    began: datetime | None = None
    """Time of the service when the list was begun; None between two lists."""
    newest: datetime | None = None
    """Newest change in the list so far."""
    done: tuple[str, ...] = ()
    """Ids of the page that were read already."""
    seen: Mapping[str, Mark] = field(default_factory=dict)
    """Records that were read and may be listed again, since they changed shortly before `since`."""
    restarts: int = 0
    """Times that the list began anew."""
    stumbled: bool = False
    """True if the previous sync ended with an error at this position that a single item may cause."""
    retries: Retries = field(default_factory=dict)
    """Retries of items for which the service fails."""

    @property
    def upto(self) -> datetime | None:
        """Time up to which the list, once it is at its end, has all changes; None if it has none."""
        return min(self.newest, self.began) if self.newest and self.began else None

    def at_end(self, overlap: timedelta) -> Self:
        """The cursor behind a list that was read to its end."""
        # What changed while the list was read may be missing in it, so the next one begins where this one began.
        since = max(filter(None, (self.since, self.upto)), default=None)
        seen = recent(self.seen, since - overlap if since else None)
        return replace(self, since=since, place=None, began=None, newest=None, done=(), seen=seen, restarts=0)


def recent(seen: Mapping[str, Mark], since: datetime | None) -> dict[str, Mark]:
    """Records that changed since then, at most MOST_SEEN, the newest."""
    horizon = int(since.timestamp()) if since else 0
    times = sorted((mark[1], item_id) for item_id, mark in seen.items() if mark[1] >= horizon)
    return {item_id: seen[item_id] for _, item_id in times[-MOST_SEEN:]}


class Progress:
    """Records of one answer that were read, for the cursor."""

    def __init__(self, cursor: RestCursor, now: datetime, overlap: timedelta) -> None:
        self._cursor = cursor
        self._latest = now + CLOCK_SKEW
        self._overlap = overlap
        self._seen, self._done = dict(cursor.seen), dict.fromkeys(cursor.done)

    def knows(self, item_id: str, mark: str, changed: datetime | None) -> bool:
        """Whether this state of a record was read already, as all that changed before the time asked for."""
        since = self._cursor.since
        if since and changed and changed < since - self._overlap:
            return True
        return item_id in self._done or bool(
            mark and item_id in self._seen and self._seen[item_id][0] == mark
        )

    def add(self, item: Item, changed: datetime | None, problem: Problem | None) -> None:
        """Note a record as read; a time in the future does not move the cursor."""
        cursor, newest = self._cursor, self._cursor.newest
        if changed:
            self._seen[item.id] = (item.mark, int(changed.timestamp()))
            newest = max(filter(None, (newest, changed if changed <= self._latest else None)), default=None)
        self._done[item.id] = None
        retries = updated_retries(cursor.retries, [item.id], [problem] if problem else [])
        self._cursor = replace(cursor, newest=newest, stumbled=False, retries=retries)

    def cursor(self) -> RestCursor:
        """The cursor behind these records."""
        cursor, seen = self._cursor, self._seen
        if len(seen) > MOST_SEEN:
            seen = recent(seen, cursor.upto - self._overlap if cursor.upto else None)
        return replace(cursor, seen=seen, done=tuple(self._done))
