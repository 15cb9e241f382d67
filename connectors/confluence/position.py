"""Where a walk stands: the cursor as a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self

from connectors.documents.values import parse_time
from pipeline.documents import Cursor, Json


@dataclass(frozen=True, kw_only=True)
class Position:
    """First all pages in the order of their creation, which no edit disturbs; then what changed."""

    selection: str
    """A hash of what is read; a position in another selection is none."""
    walking: bool = False
    """The first walk is not over."""
    created: datetime | None = None
    """First walk: of the last page read."""
    read_then: frozenset[str] = frozenset()
    """First walk: ids of the pages read that were created in the same minute as the last one."""
    admitted: int = 0
    until: datetime | None = None
    """Creation of the last page within the cap, if the cap was met; later ones are passed over."""
    at: datetime | None = None
    """The newest change dealt with. During the first walk: what was the newest when it began."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """`id:version` of what was dealt with in the last minutes before `at`, with its time in epoch seconds."""

    @classmethod
    def read(cls, cursor: Cursor | None, selection: str) -> Self | None:
        """The position a cursor holds; None if there is none, or it is of another selection."""
        if not cursor or cursor.get("selection") != selection:
            return None
        seen = cursor.get("seen")
        return cls(
            selection=selection,
            walking=bool(cursor.get("walking")),
            created=parse_time(cursor.get("created")),
            read_then=frozenset(map(str, cursor.get("read_then") or ())),
            admitted=int(cursor.get("admitted") or 0),
            until=parse_time(cursor.get("until")),
            at=parse_time(cursor.get("at")),
            seen={str(k): int(v) for k, v in seen.items()} if isinstance(seen, Mapping) else {},
        )

    def to_json(self) -> Json:
        """What `read` reads."""
        times = {"at": self.at, "until": self.until, "created": self.created}
        found: Json = {"selection": self.selection, "seen": dict(sorted(self.seen.items()))}
        found |= {name: moment.isoformat() for name, moment in times.items() if moment}
        if self.walking:
            found |= {"walking": True, "read_then": sorted(self.read_then), "admitted": self.admitted}
        return found

    def horizon(self, overlap: timedelta) -> datetime | None:
        """From here on changes are looked at once more, because search may show them late."""
        return minute(self.at - overlap) if self.at else None

    def having_seen(self, rows: Iterable[tuple[str, datetime | None]], overlap: timedelta) -> Self:
        """With these rows dealt with; what lies before the horizon is forgotten."""
        now = int(self.at.timestamp()) if self.at else 0
        seen = {**self.seen, **{key: _seconds(moment, now) for key, moment in rows}}
        horizon = self.horizon(overlap)
        since = horizon.timestamp() if horizon else 0
        return replace(self, seen={key: at for key, at in seen.items() if at >= since})


def minute(moment: datetime) -> datetime:
    """The beginning of its minute."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def _seconds(moment: datetime | None, otherwise: int) -> int:
    return int(moment.timestamp()) if moment else otherwise
