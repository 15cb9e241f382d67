"""How large finished work was and how long it took, for one item and for several like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from statistics import median
from typing import Any

LEAST = 3
"""A median of fewer items says nothing."""
LONGEST_DAYS = 7300
"""An item that seems to have taken longer has a wrong date."""
LEAST_AMOUNT, MOST_AMOUNT = 0.01, 20_000
"""Of points or hours that an item can have taken."""
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What is known of an item's work; at least one of these."""

    points: float | None = None
    """What it took; the others likewise."""
    estimated_points: float | None = None
    hours: float | None = None
    estimated_hours: float | None = None
    days: int | None = None
    """Calendar days from start to end, at least 1."""

    @property
    def size(self) -> float | None:
        """In points: what it took, else what it was thought to take."""
        return self.estimated_points if self.points is None else self.points

    @property
    def text(self) -> str:
        """`took 21 points, estimated 13; 12 days`."""
        known = self._known()
        took = next((_counted(took, unit) for took, _, unit in known if took is not None), "")
        expected = next(
            (_counted(estimated, unit) for _, estimated, unit in known if estimated is not None), ""
        )
        if known and None not in known[0]:
            expected = f"{known[0][1]:g}"
        days = "" if self.days is None else _counted(self.days, "day")
        work = ", ".join(
            f"{verb} {amount}" for verb, amount in (("took", took), ("estimated", expected)) if amount
        )
        return f"{work}; {days}" if work and days else work or f"done after {days}"

    def _known(self) -> list[tuple[float | None, float | None, str]]:
        """What it took, its estimate and their unit: the unit of which both are known first."""
        known = [
            (took, estimated, unit)
            for took, estimated, unit in (
                (self.points, self.estimated_points, "point"),
                (self.hours, self.estimated_hours, "hour"),
            )
            if took is not None or estimated is not None
        ]
        # What is known of both sides says most; each unit alone comes behind.
        return sorted(known, key=lambda pair: pair[0] is None or pair[1] is None)


def effort_of(metadata: Mapping[str, Any], created_at: datetime | None = None) -> Effort | None:
    """What an item's metadata tell of its work; None if they tell nothing.

    Args:
        metadata: of a document of kind work, as connectors write it; values of another type are left aside.
        created_at: where its days begin if no start of the work is known.
    """
    points, hours = _amount(metadata, "actual_points"), _amount(metadata, "actual_hours")
    found = Effort(
        points=points,
        estimated_points=_amount(metadata, "estimated_points", "story_points"),
        hours=hours,
        estimated_hours=_amount(metadata, "estimated_hours"),
        days=_days(
            _moment(metadata, "started_at") or created_at, _moment(metadata, "resolved_at", "closed_at")
        ),
    )
    return None if found == Effort() else found


def effort_of_similar(efforts: Sequence[Effort]) -> dict[str, Any] | None:
    """`{text, n, median_days, median_points}` of at least three items; None if fewer tell their days or points."""
    days = [effort.days for effort in efforts if effort.days is not None]
    points = [effort.size for effort in efforts if effort.size is not None]
    of_days = median(days) if len(days) >= LEAST else None
    of_points = median(points) if len(points) >= LEAST else None
    if of_days is None and of_points is None:
        return None
    n, middle = (
        (len(points), _counted(of_points or 0, "point"))
        if of_days is None
        else (len(days), _counted(of_days, "day"))
    )
    number = WORDS[n] if n < len(WORDS) else str(n)
    text = f"{number} like it: median {middle} (n = {n})"
    return {"text": text, "n": n, "median_days": of_days, "median_points": of_points}


def overran(effort: Effort) -> float | None:
    """What it took as a share of its estimate, 2.0 for twice as much; None unless both are known in one unit."""
    for took, estimated in ((effort.points, effort.estimated_points), (effort.hours, effort.estimated_hours)):
        if took is not None and estimated is not None:
            return took / estimated
    return None


def _amount(metadata: Mapping[str, Any], *keys: str) -> float | None:
    """The first of these numbers that can be one: trackers write 0 for what nobody filled in."""
    values = (metadata.get(key) for key in keys)
    numbers = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return next((v for v in numbers if LEAST_AMOUNT <= v <= MOST_AMOUNT), None)


def _moment(metadata: Mapping[str, Any], *keys: str) -> datetime | None:
    for key in keys:
        try:
            moment = datetime.fromisoformat(str(metadata.get(key)))
        except ValueError:
            continue
        # A day away from the calendar's ends, where another zone has no such day.
        if moment.tzinfo is not None and MINYEAR < moment.year < MAXYEAR:
            return moment
    return None


def _days(start: datetime | None, end: datetime | None) -> int | None:
    if start is None or end is None or end < start:
        return None
    days = max(1, (end.astimezone(UTC).date() - start.astimezone(UTC).date()).days)
    return days if days <= LONGEST_DAYS else None


def _counted(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
