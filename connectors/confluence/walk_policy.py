"""The few decisions a walk stands or falls with, each one function, so that tests can put a wrong one in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pipeline.documents import Cursor, Json

UNKNOWN_ZONE = timedelta(hours=26)
"""No two places on earth are further apart."""
ROWS_AGAIN = 3
"""Rows of the answer before that are asked for once more, to see that the list did not move in between."""


def next_address(base: str, payload: Json) -> str | None:
    """The whole address of the next answer on Cloud; None at the end.

    v1 leaves the context path out of its links and v2 does not. The host is always ours: what an answer
    calls its base may be a public name that is not to be contacted.
    """
    link = (payload.get("_links") or {}).get("next")
    if not isinstance(link, str) or not link:
        return None
    parts = urlsplit(base)
    if "://" in link:
        found = urlsplit(link)
        link = f"{found.path}?{found.query}"
    link = link if link.startswith("/") else f"/{link}"
    context = parts.path
    above, _, last = context.rpartition("/")
    if last and link.startswith(f"/{last}/"):
        link = above + link  # Atlassian's gateway puts a path of its own before that of Cloud
    elif context and not link.startswith(f"{context}/"):
        link = context + link
    return f"{parts.scheme}://{parts.netloc}{link}"


def is_last(payload: Json, _asked: int) -> bool:
    """Whether the list ends here; few rows are no end, because the service lowers limits silently."""
    return not (payload.get("_links") or {}).get("next")


def next_start(start: int, rows: Sequence[Json], _payload: Json) -> int:
    """Where the next answer of a Server begins; its own count may be too small."""
    return start + len(rows)


def since_clause(field: str, literal: str) -> str:
    """With `>` the rest of that minute would be lost."""
    return f'{field} >= "{literal}"'


def literal(moment: datetime, zone: ZoneInfo | None) -> str:
    """A time as CQL reads it: the account's wall clock in whole minutes, never later than the moment."""
    if zone is None:
        return f"{moment - UNKNOWN_ZONE:%Y-%m-%d %H:%M}"
    local = moment.astimezone(zone)
    while local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        # In the hour that comes twice the service may read either one.
        moment -= timedelta(minutes=30)
        local = moment.astimezone(zone)
    return f"{local:%Y-%m-%d %H:%M}"


def reached(before: datetime | None, row: datetime | None) -> datetime | None:
    """How far the cursor stands behind a row: by the service's clock, never by ours."""
    times = [moment for moment in (before, row) if moment is not None]
    return max(times, default=None)


def resume(since: Cursor | None) -> Cursor | None:
    """Where to go on."""
    return since


@dataclass(frozen=True, kw_only=True)
class Tactics:
    """All of them; the defaults are right."""

    next_address: Callable[[str, Json], str | None] = next_address
    is_last: Callable[[Json, int], bool] = is_last
    next_start: Callable[[int, Sequence[Json], Json], int] = next_start
    since_clause: Callable[[str, str], str] = since_clause
    literal: Callable[[datetime, ZoneInfo | None], str] = literal
    reached: Callable[[datetime | None, datetime | None], datetime | None] = reached
    resume: Callable[[Cursor | None], Cursor | None] = resume
    overlap: timedelta = timedelta(minutes=10)
    """How late the search index may show a change."""
    rows_again: int = ROWS_AGAIN
