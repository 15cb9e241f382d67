"""The search index of a fake Confluence: what it knows may be older than what is there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.fakes.confluence_records import Content


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the search index knows of a content; older than the content while the index lags."""

    id: str
    kind: str
    title: str
    text: str
    space: str
    parent: str | None
    container: str | None
    labels: frozenset[str]
    creator: str
    created: datetime
    when: datetime


def entry_of(content: Content) -> Entry:
    """What the index keeps of a content."""
    return Entry(
        id=content.id,
        kind=content.kind,
        title=content.title,
        text=content.body,
        space=content.space,
        parent=content.parent,
        container=content.container,
        labels=frozenset(content.labels),
        creator=content.creator,
        created=content.created,
        when=content.when,
    )


class SearchIndex:
    """Entries by id, and changes that wait for their time."""

    def __init__(self) -> None:
        self.lag = timedelta()
        self._entries: dict[str, Entry] = {}
        self._waiting: list[tuple[datetime, str, Entry | None]] = []

    def put(self, key: str, entry: Entry | None, now: datetime) -> None:
        """A change; None takes the entry out."""
        # A later change never overtakes an earlier one of the same content.
        at = max([now + self.lag, *(at for at, waiting, _ in self._waiting if waiting == key)])
        if at > now:
            self._waiting.append((at, key, entry))
            self._waiting.sort(key=lambda item: item[0])
        else:
            self._apply(key, entry)

    def entries(self, now: datetime) -> list[Entry]:
        """All that search finds at this time."""
        while self._waiting and self._waiting[0][0] <= now:
            _, key, entry = self._waiting.pop(0)
            self._apply(key, entry)
        return list(self._entries.values())

    def _apply(self, key: str, entry: Entry | None) -> None:
        if entry is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
