"""Queries over work items, and listing more of them than one query may find."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from connectors.azure_devops.faults import TooManyHits
from connectors.azure_devops.selection import literal

LARGEST_ID = 2**31 - 1
MOST_HITS = 20_000
"""More are an error, whatever would be read of them. So many neighbouring ids are never too many."""

_TIMED = re.compile(r"""['"]\s*\d{4}-\d{1,2}-\d{1,2}[T ]\s*\d{1,2}:""")


def select(parts: Sequence[str]) -> str:
    """The query for the ids of all items that fulfil every part, ascending."""
    return f"SELECT [System.Id] FROM WorkItems WHERE {' AND '.join(parts)} ORDER BY [System.Id] ASC"


def nothing(project: str) -> str:
    """A query without hits."""
    return select([f"[System.TeamProject] = {literal(project)}", "[System.Id] < 1"])


def among(ids: Sequence[int]) -> str:
    """The condition to be one of these."""
    return f"[System.Id] IN ({', '.join(map(str, ids))})"


def timed(wiql: str) -> bool:
    """Whether a date has a time of day with it: the service takes it only if told so beside the query."""
    return bool(_TIMED.search(wiql))


def ranges(find: Callable[[Sequence[str]], list[int]], above: int) -> Iterator[list[int]]:
    """All ids above a given one, ascending, in as many queries as it takes; ends only at the proven end.

    `find` runs a query with these further conditions. One query mostly does. If it finds too many, a closed
    stretch of ids is asked for instead, then the open rest again.

    Raises:
        TooManyHits: even for a single id.
    """
    width = MOST_HITS
    while True:
        try:
            yield sorted(find([f"[System.Id] > {above}"]))
        except TooManyHits:
            pass
        else:
            return
        found, width = _stretch(find, above, width)
        above += width
        yield found
        if len(found) < MOST_HITS // 2:  # ids are spread thin: other projects have those in between
            width *= 2


def _stretch(find: Callable[[Sequence[str]], list[int]], above: int, width: int) -> tuple[list[int], int]:
    """The ids of the next stretch, and how wide it could be."""
    while True:
        try:
            return sorted(
                find([f"[System.Id] > {above}", f"[System.Id] <= {min(above + width, LARGEST_ID)}"])
            ), width
        except TooManyHits:
            if width <= 1:
                raise
            width //= 2
