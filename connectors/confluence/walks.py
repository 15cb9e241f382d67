"""The two walks of a sync: over all pages once, then over what changed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from connectors.confluence.item import Item, item_of, nested
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.position import Position, minute
from connectors.confluence.reader import Outcome, Reader
from connectors.confluence.search import Query, Rows
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics
from pipeline.documents import Page, Problem


@dataclass(kw_only=True)
class _Batch:
    """Rows in order, and the pages to read for them."""

    rows: list[Item] = field(default_factory=list)
    pages: dict[str, None] = field(default_factory=dict)


class Walks:
    """Yields pages from a position on; `position` is where it stands after the last one."""

    def __init__(self, site: Site, options: ConfluenceOptions, tactics: Tactics, reader: Reader) -> None:
        self._site = site
        self._options = options
        self._tactics = tactics
        self._reader = reader

    def pages(self, position: Position | None) -> Iterator[Page]:
        """From the position, or from the very beginning."""
        start = position or self._beginning()
        reached = (yield from self._all_pages(start)) if start.walking else start
        if not reached.walking:
            yield from self._changes(reached)

    # -- all pages -------------------------------------------------------------------------------------

    def _beginning(self) -> Position:
        """Remembers what is the newest now: what changes during the walk is looked for behind it."""
        types = (*self._options.page_types, *self._options.annex_types)
        newest = self._query(self._reader.scope.clause(types), "lastmodified desc", ("version",), limit=1)
        first = next(iter(Rows(self._site, newest, self._tactics)), [])
        at = item_of(first[0]).changed if first else None
        return Position(selection=self._options.selection, walking=True, at=at)

    def _all_pages(self, position: Position) -> Generator[Page, None, Position]:
        rows = Rows(self._site, self._all_query(position), self._tactics, lambda row: str(row.get("id")))
        waiting: list[Item] = []
        since = minute(position.created) if position.created else None
        for item in _items(rows):
            if item.id in position.read_then or _before(item.created, since):
                continue
            if self._room(position) == 0:
                return (yield from self._capped(position))
            waiting.append(item)
            if len(waiting) >= min(self._options.batch, self._room(position)):
                position = yield from self._read(position, waiting)
                waiting = []
        if waiting:
            position = yield from self._read(position, waiting)
        if not rows.complete or position.at is None:
            return position
        position = replace(position, walking=False, created=None, read_then=frozenset())
        yield Page(cursor=position.to_json())
        return position

    def _read(self, position: Position, items: list[Item]) -> Generator[Page, None, Position]:
        outcome = self._reader.read([item.id for item in items])
        outcome.deleted.clear()  # nothing of it was ever taken in
        created = self._tactics.reached(position.created, items[-1].created)
        then = minute(created) if created else None
        same_minute = {item.id for item in items if not _before(item.created, then)}
        if position.created and minute(position.created) == then:
            same_minute |= position.read_then
        after = replace(
            position,
            created=created,
            read_then=frozenset(same_minute),
            admitted=position.admitted + outcome.admitted,
        ).having_seen(outcome.rows.items(), self._tactics.overlap)
        yield from outcome.pages(position.to_json(), after.to_json())
        return after

    def _capped(self, position: Position) -> Generator[Page, None, Position]:
        most = self._options.max_pages
        position = replace(
            position, walking=False, created=None, read_then=frozenset(), until=position.created
        )
        reason = (
            f"there are more than maxPages {most} pages; only the {most} that were created first are "
            "read, and pages that were removed stay: raise syncOptions.maxPages, or name fewer spaces"
        )
        problem = Problem(external_id="maxPages", reason=reason, url=self._site.place.base)
        yield Page(cursor=position.to_json(), skipped=(problem,))
        return position

    def _room(self, position: Position) -> int:
        most = self._options.max_pages
        return self._options.batch if most is None else max(0, most - position.admitted)

    def _all_query(self, position: Position) -> Query:
        clause = self._reader.scope.narrow_clause()
        if position.created:
            # As if no zone were known: some rows more, and nothing hangs on the right one.
            clause += f" and {self._since('created', position.created, None)}"
        return self._query(clause, "created asc", ("version", "history"))

    # -- changes ---------------------------------------------------------------------------------------

    def _changes(self, position: Position) -> Iterator[Page]:
        horizon = position.horizon(self._tactics.overlap)
        if horizon is None:
            return
        before, batch = position, _Batch()
        for item in self._changed(position, horizon):
            if _before(item.changed, horizon):
                continue
            page = item.id if item.is_page else item.container
            batch.rows.append(item)
            if item.row not in position.seen and not self._beyond(item, position) and _hangs_on_page(item):
                batch.pages.setdefault(page)
            if len(batch.pages) >= self._options.batch:
                outcome, position = self._deal_with(position, batch)
                yield from outcome.pages(before.to_json(), position.to_json())
                before, batch = position, _Batch()
        outcome, position = self._deal_with(position, batch)
        if batch.pages or position.to_json() != before.to_json():
            yield from outcome.pages(before.to_json(), position.to_json())

    def _deal_with(self, position: Position, batch: _Batch) -> tuple[Outcome, Position]:
        pages = list(batch.pages)
        outcome = self._reader.read(pages, until=position.until) if pages else Outcome()
        at = position.at
        for item in batch.rows:
            at = self._tactics.reached(at, item.changed)
        seen = {**outcome.rows, **{item.row: item.changed for item in batch.rows}}
        return outcome, replace(position, at=at).having_seen(seen.items(), self._tactics.overlap)

    def _changed(self, position: Position, horizon: datetime) -> Iterator[Item]:
        """Rows since the horizon; if nothing familiar is among the first, we may have misread the clock."""
        zone = self._site.place.zone
        if zone is None:
            yield from self._changed_backwards(horizon)
            return
        familiar = {key.rpartition(":")[0] for key in position.seen}
        for number, rows in enumerate(self._changed_rows(horizon, zone, "asc")):
            if number == 0 and familiar and not familiar & {str(row.get("id")) for row in rows}:
                yield from self._changed_backwards(horizon)
                return
            yield from map(item_of, rows)

    def _changed_backwards(self, horizon: datetime) -> Iterator[Item]:
        """The same without a known zone: from the newest back to the horizon, by the service's own times.

        A literal that is early enough for any zone would show the changes of a day and more every time.
        """
        found: list[Item] = []
        rows = self._changed_rows(horizon, None, "desc")
        for batch in rows:
            items = [item_of(row) for row in batch]
            found += [item for item in items if not _before(item.changed, horizon)]
            if any(_before(item.changed, horizon) for item in items):
                break
        else:
            if not rows.complete:
                # What is missing is the oldest: it must not be passed over.
                yield from _items(self._changed_rows(horizon, None, "asc"))
                return
        yield from reversed(found)

    def _changed_rows(self, horizon: datetime, zone: ZoneInfo | None, order: str) -> Rows:
        types = (*self._options.page_types, *self._options.annex_types)
        clause = f"{self._reader.scope.clause(types)} and {self._since('lastmodified', horizon, zone)}"
        query = self._query(clause, f"lastmodified {order}", ("version", "history", "container"))
        return Rows(self._site, query, self._tactics)

    def _beyond(self, item: Item, position: Position) -> bool:
        """A page behind the cap needs no reading to be left out."""
        later = position.until and item.created and item.created > position.until
        return bool(item.is_page and later)

    def _since(self, name: str, moment: datetime, zone: ZoneInfo | None) -> str:
        return self._tactics.since_clause(name, self._tactics.literal(moment, zone))

    def _query(self, clause: str, order: str, expand: tuple[str, ...], limit: int = 200) -> Query:
        return Query(
            cql=f"{clause} order by {order}",
            expand=expand,
            limit=limit,
            archived=self._options.include_archived,
        )


def _items(rows: Rows) -> Iterator[Item]:
    return (item_of(row) for batch in rows for row in batch)


def _before(moment: datetime | None, limit: datetime | None) -> bool:
    return moment is not None and limit is not None and moment < limit


def _hangs_on_page(item: Item) -> bool:
    """Comments and files of a space's description hang on no page."""
    kind = nested(item.raw, "container", "type")
    return item.is_page or (bool(item.container) and kind in ("page", "blogpost"))
