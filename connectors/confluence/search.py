"""Searches by CQL, walked to their proven end or known to be broken off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from connectors.confluence.faults import Missing, Refused
from connectors.confluence.options import PRODUCT
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics
from connectors.web import results_of
from pipeline.documents import Json
from pipeline.errors import SourceUnavailable

PATH = "rest/api/content/search"
MOST_ROWS = 200
"""Given at once when anything but bodies is asked for."""
MOST_RESTARTS = 5
MOST_STEPS_BACK = 20


@dataclass(frozen=True, kw_only=True)
class Query:
    """What to look for and what to show of it."""

    cql: str
    expand: tuple[str, ...]
    limit: int = MOST_ROWS
    archived: bool = False
    """Archived spaces too."""

    @property
    def params(self) -> dict[str, Any]:
        """As the endpoint takes them."""
        archived = {"includeArchivedSpaces": "true"} if self.archived else {}
        return {"cql": self.cql, "expand": ",".join(self.expand), "limit": self.limit, **archived}


def quoted(values: Iterable[str]) -> str:
    """A list of texts for `in`."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ", ".join(f'"{value}"' for value in escaped)


def numbers(ids: Iterable[str]) -> str:
    """A list of page ids for `in`; what is none is left out, so that no text gets into a query."""
    return ", ".join(i for i in ids if i.isascii() and i.isdigit()) or "0"


def id_and_version(row: Json) -> str:
    """Names a row in one version: an edited page comes again at the end of a list by time of change."""
    return f"{row.get('id')}:{(row.get('version') or {}).get('number', 0)}"


class Rows:
    """The rows of one query, a list for each answer, each row once.

    Raises while iterating:
        Refused, SourceUnavailable: what the service answers.
    """

    def __init__(
        self,
        site: Site,
        query: Query,
        tactics: Tactics,
        name: Callable[[Json], str] = id_and_version,
    ) -> None:
        self._site = site
        self._query = query
        self._tactics = tactics
        self._name = name
        self._seen: set[str] = set()
        self.complete = False
        """True once the end is proven."""
        self.base = ""
        """What links for people are relative to."""

    def __iter__(self) -> Iterator[list[Json]]:
        return self._by_link() if self._site.place.cloud else self._by_offset()

    def all(self) -> list[Json]:
        """Every row at once.

        Raises:
            SourceUnavailable: the list broke off.
        """
        rows = [row for rows in self for row in rows]
        if not self.complete:
            raise SourceUnavailable(
                f"{PRODUCT} broke a list off with an empty page", fix="it is tried again by itself"
            )
        return rows

    def _by_link(self) -> Iterator[list[Json]]:
        """Cloud: by the link of each answer; `start` means nothing there."""
        link: str | None = None
        followed: set[str] = set()
        restarts, known = 0, -1
        while True:
            try:
                payload = self._first() if link is None else self._site.follow(link)
            except (Refused, Missing):
                # A cursor grows old; then the list begins again, and what was seen is passed over.
                if link is None or restarts >= MOST_RESTARTS or len(self._seen) == known:
                    raise
                link, restarts, known = None, restarts + 1, len(self._seen)
                followed.clear()
                continue
            rows = self._rows(payload)
            yield self._new(rows)
            if self._ends(payload, rows):
                return
            link = self._tactics.next_address(self._site.place.base, payload)
            if link is None or link in followed:
                return
            followed.add(link)

    def _by_offset(self) -> Iterator[list[Json]]:
        """Server: by counting, in a list that may move meanwhile.

        Each answer begins with rows of the one before. If it does not, rows before it went away or moved
        to the end, others took their places, and we go back as far as it takes.
        """
        start, back, steps_back = 0, 0, 0
        while steps_back < MOST_STEPS_BACK:
            at = max(0, start - back)
            payload = self._first(at)
            rows = self._rows(payload)
            last = self._tactics.is_last(payload, self._query.limit)
            if at and back and (last or rows) and not (rows and self._name(rows[0]) in self._seen):
                back, steps_back = back * 4, steps_back + 1
                continue
            new = self._new(rows)
            yield new
            if self._ends(payload, rows):
                return
            steps_back = 0 if new else steps_back
            start = self._tactics.next_start(at, rows, payload)
            back = min(self._tactics.rows_again, len(rows) // 2)

    def _first(self, start: int = 0) -> Json:
        params = self._query.params
        return self._site.json(PATH, {**params, "start": start} if start else params)

    def _rows(self, payload: Json) -> list[Json]:
        base = (payload.get("_links") or {}).get("base")
        if isinstance(base, str) and base.startswith(("http://", "https://")):
            self.base = base.rstrip("/")
        return results_of(payload, "results", PRODUCT)

    def _new(self, rows: list[Json]) -> list[Json]:
        new = {self._name(row): row for row in rows if self._name(row) not in self._seen}
        self._seen.update(new)
        return list(new.values())

    def _ends(self, payload: Json, rows: list[Json]) -> bool:
        if self._tactics.is_last(payload, self._query.limit):
            self.complete = True
            return True
        return not rows  # an empty page that promises more would be followed for ever
