"""Source of the records of a REST service: a list since the last change, the id walk, and reading by ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from connectors.documents.options import cursor_json, read_cursor
from connectors.documents.values import build_document
from connectors.rest.client import ListPage, Place, RestClient, RestMissing, RestRefused
from connectors.rest.cursor import Progress, RestCursor
from connectors.rest.document import Item, RecordReader
from connectors.rest.expressions import value_at
from connectors.rest.options import Child, ItemRequest, RestOptions
from connectors.web.answers import LASTS, BadAnswer
from connectors.web.division import Divider, culprit, due, may_be_item_fault, updated_retries
from pipeline.documents import Cursor, Document, Finding, Json, Listing, Page, Problem
from pipeline.documents.plain_text import plural
from pipeline.errors import DocumentRejected, LarderError, SourceDenied

PIECE = 20
"""Answers in a piece of the id walk."""
MOST_RESTARTS = 3
"""Most times that a list begins anew, because it moved or its position expired."""
NO_ID = "a record without an id"

Result = Document | Problem | None
"""Result of one record: its document, a problem, or None if it is deleted or excluded."""
Steps = Generator[Page, None, RestCursor]


@dataclass(kw_only=True)
class Batch:
    """Results that are not stored yet."""

    results: list[tuple[str, Result]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def page(self, cursor: Cursor) -> Page:
        """A page with these results."""
        return Page(
            cursor=cursor,
            documents=tuple(result for _, result in self.results if isinstance(result, Document)),
            failed=tuple(result for _, result in self.results if isinstance(result, Problem)),
            left_out=self.left_out,
            deleted=tuple(item_id for item_id, result in self.results if result is None),
        )


class RestSource:
    """Records of one service; the external id is that of the record."""

    extractor = "rest-1"

    def __init__(self, options: RestOptions) -> None:
        self._options = options
        self._client = RestClient(options)
        self._reader = RecordReader(options)
        self._overlap = timedelta(seconds=options.changed.overlap if options.changed else 0)
        self.walks_all = options.changed is None

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of a sync: the list from the last change on, or all of it; before an error the results so far."""
        selection = self._options.selection_hash
        cursor = read_cursor(RestCursor, since, selection) or RestCursor(selection=selection)
        last_cursor: Cursor = cursor_json(cursor)
        with closing(self._client):
            for page in self._steps(cursor):
                if (
                    page.cursor != last_cursor
                    or page.documents
                    or page.failed
                    or page.deleted
                    or page.left_out
                ):
                    last_cursor = page.cursor
                    yield page

    def ids(self, since: Cursor | None = None) -> Listing:
        """The id walk: ids and fingerprints of all records, in pieces.

        Complete only if the list reached its end, did not move meanwhile, and has as many records as the service says.
        """
        place, count, restarts = (
            (since["place"], since["count"], since["restarts"]) if since else (None, 0, 0)
        )
        with closing(self._client):
            try:
                return self._piece(place, count, restarts)
            except (RestRefused, RestMissing):
                if place is None:
                    raise
                # The position expired; what the pieces before listed is listed once more.
                return self._piece(None, 0, restarts + 1)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Read these records, by the item's request or else out of the list."""
        with closing(self._client):
            divider = self._divider()
            for start in range(0, len(ids), self._options.page_items):
                batch = Batch()
                part = list(dict.fromkeys(ids[start : start + self._options.page_items]))
                records = {} if self._options.item else self._listed_records(part)
                batch.results = [
                    (key, self._read(key, records.get(key), divider, batch.left_out)) for key in part
                ]
                yield batch.page({})

    def check(self) -> list[Finding]:
        """Findings on access, the list, and the fields of its records."""
        with closing(self._client):
            return list(findings(self._options, self._client, self._reader))

    def stamp(self) -> None:
        """Unsupported, returns None: only a list detects changes."""
        return

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> None:  # noqa: ARG002
        """Unsupported, returns None: the list tells what changed."""
        return

    # -- the list --------------------------------------------------------------------------------------

    def _steps(self, cursor: RestCursor) -> Iterator[Page]:
        """All pages of a sync, also those without changes."""
        cursor = yield from self._list(cursor)
        for key in due(cursor.retries):  # one by one, because they would fail each other's batches
            batch = Batch()
            batch.results = [(key, self._read(key, None, self._divider(), batch.left_out))]
            problems = [result for _, result in batch.results if isinstance(result, Problem)]
            cursor = replace(cursor, retries=updated_retries(cursor.retries, [key], problems))
            yield batch.page(cursor_json(cursor))
        yield Page(cursor={} if self.walks_all else cursor_json(cursor))

    def _list(self, cursor: RestCursor) -> Steps:
        """The list since the last change, from the cursor's page to its end."""
        visited, expired = dict[str, str](), False
        while True:
            moved = False
            try:
                for page in self._client.pages(self._options.list_, self._values(cursor.since), cursor.place):
                    began = cursor.began or self._client.now
                    done = cursor.done if page.place == cursor.place else ()
                    cursor = replace(cursor, place=page.place, began=began, done=done)
                    marks = {self._reader.id_of(record): self._reader.mark(record) for record in page.records}
                    moved |= any(visited.get(key, mark) != mark for key, mark in marks.items())
                    visited |= marks
                    cursor = yield from self._page(cursor, page)
                    if self._is_before(page, cursor.since):
                        break
            except (RestRefused, RestMissing):
                if cursor.place is None or expired:
                    raise
                # The position no longer exists: the list begins anew.
                expired, cursor = True, replace(cursor, place=None, done=())
                continue
            # Where positions are counted, a record that moved to the end has drawn others below the reader.
            if not (moved and cursor.since and cursor.restarts < MOST_RESTARTS):
                return cursor.at_end(self._overlap)
            cursor = replace(cursor, place=None, done=(), restarts=cursor.restarts + 1)

    def _values(self, since: datetime | None) -> Json:
        """Values of placeholders for the time since when changes are listed."""
        changed = self._options.changed
        if changed is None:
            return {}
        if since is None:
            return {"cursor": changed.start}
        horizon = since.astimezone(UTC) - self._overlap
        if changed.format == "ago":
            return {"cursor": f"-{int((self._client.now - horizon).total_seconds() // 60) + 1}m"}
        form = _FORMS.get(changed.format)
        return {"cursor": form(horizon) if form else horizon.strftime(changed.format)}

    def _is_before(self, page: ListPage, since: datetime | None) -> bool:
        """Whether a list that begins with the newest change has reached what is known."""
        changed = self._options.changed
        if changed is None or not changed.descending or since is None:
            return False
        times = [time for record in page.records if (time := self._reader.changed(record))]
        return bool(times) and min(times) < since - self._overlap

    def _page(self, cursor: RestCursor, page: ListPage) -> Steps:
        """Documents of one answer; before an error is raised, the results so far are yielded."""
        batch, divider = Batch(), self._divider(at_once=cursor.stumbled)
        progress = Progress(cursor, self._client.now, self._overlap)
        try:
            for record in page.records:
                item_id, mark = self._reader.id_of(record), self._reader.mark(record)
                changed = self._reader.changed(record)
                if not item_id:
                    batch.left_out[NO_ID] += 1
                elif not progress.knows(item_id, mark, changed):
                    item = Item(id=item_id, mark=mark, record=record)
                    result = self._result(item, divider, batch.left_out)
                    batch.results.append((item_id, result))
                    progress.add(item, changed, result if isinstance(result, Problem) else None)
                if len(batch.results) >= self._options.page_items:
                    yield batch.page(cursor_json(progress.cursor()))
                    batch = Batch()
        except LarderError as error:
            # If the error recurs at this position, the next sync isolates the item, or finds the service at fault.
            cursor = progress.cursor()
            cursor = replace(cursor, stumbled=cursor.stumbled or may_be_item_fault(error))
            yield batch.page(cursor_json(cursor))
            raise
        cursor = progress.cursor()
        if page.following is not None:
            cursor = replace(cursor, place=page.following, done=())
        if batch.results or batch.left_out:
            yield batch.page(cursor_json(cursor))
        return cursor

    # -- one item --------------------------------------------------------------------------------------

    def _divider(self, *, at_once: bool = True) -> Divider:
        """A new divider, whose probe requests the beginning of the list."""
        return Divider(
            probe=lambda: next(self._client.pages(self._options.list_, self._values(None))), at_once=at_once
        )

    def _read(self, item_id: str, record: Json | None, divider: Divider, left_out: Counter[str]) -> Result:
        """Result of an id; None if there is no such record any more, or it has another id now."""
        request = self._options.item
        if request:
            answers, errors = divider.fetch([item_id], lambda ids: self._own_record(ids[0]))
            if item_id in errors:
                return culprit(item_id, errors[item_id])
            record = answers[0]
        if record is None or self._reader.id_of(record) != item_id:
            return None
        return self._result(
            Item(id=item_id, mark=self._reader.mark(record), record=record), divider, left_out, whole=True
        )

    def _own_record(self, item_id: str) -> Json | None:
        """The record by the item's request; None if there is none, or it does not belong to this source."""
        record, request = self._item_record(item_id), self._options.item
        within = request.within if request else None
        # With another id it has left: the list is asked only about records that are there.
        if record is None or within is None or self._reader.id_of(record) != item_id:
            return record
        listed = next(self._client.pages(within, {"id": item_id})).records
        return record if any(self._reader.id_of(one) == item_id for one in listed) else None

    def _item_record(self, item_id: str) -> Json | None:
        """The record by the item's request; None if there is none."""
        request = self._options.item
        try:
            answer = self._client.record(request, item_id) if request else None
        except RestMissing:
            return None
        record = value_at(request.record, answer) if request else None
        if not isinstance(record, dict):
            if request and value_at(request.gone, answer):
                return None
            raise BadAnswer(
                f"{self._options.product} gave an item without its record", fix=f"check item.record; {LASTS}"
            )
        return record

    def _result(self, item: Item, divider: Divider, left_out: Counter[str], *, whole: bool = False) -> Result:
        """The document of a record of the list, or of the item's request if it is `whole`."""
        try:
            if self._leaves(item.record, left_out):
                return None
            answers, errors = divider.fetch([item.id], lambda _ids: self._completed(item, whole=whole))
            if item.id in errors:
                return culprit(item.id, errors[item.id])
            complete = answers[0]
            # The record of the item's request may say what that of the list does not.
            if complete is None or (
                complete.record is not item.record and self._leaves(complete.record, left_out)
            ):
                return None
            return build_document(lambda: self._reader.document(complete), f"record {item.id}")
        except (RestRefused, DocumentRejected) as error:  # one item must not stop the others
            return Problem(external_id=item.id, reason=str(error))

    def _leaves(self, record: Json, left_out: Counter[str]) -> bool:
        """Whether a record is deleted or excluded, which is counted."""
        if self._reader.is_deleted(record):
            return True
        reason = self._reader.exclusion(record)
        left_out.update(filter(None, [reason]))
        return bool(reason)

    def _completed(self, item: Item, *, whole: bool) -> Item | None:
        """The item with the record of its own request and its children; None if it is deleted meanwhile."""
        record: Json | None = item.record
        if self._options.item and not self._options.item.in_list and not whole:
            record = self._item_record(item.id)
        if record is None:
            return None
        children = [(child, self._children(child, item.id, record)) for child in self._options.children]
        return replace(item, record=record, children=tuple(children))

    def _children(self, child: Child, item_id: str, record: Json) -> list[Json]:
        """Records below this one, those within it if they are all."""
        inline, count = value_at(child.inline, record), value_at(child.count, record)
        records = [one for one in inline if isinstance(one, dict)] if isinstance(inline, list) else []
        is_short = count > len(records) if isinstance(count, int) else not isinstance(inline, list)
        if child.path and is_short:
            try:
                return self._client.children(child, item_id)
            except RestMissing:  # deleted since it was listed; the next walk finds it
                return []
        return records

    # -- the id walk -----------------------------------------------------------------------------------

    def _piece(self, place: Place, count: int, restarts: int) -> Listing:
        """One piece of the id walk from a position on."""
        request, left_out = self._options.walk_list, Counter[str]()
        versions = dict[str, str]()
        following, total, moved = place, None, False
        for number, page in enumerate(self._client.pages(request, {}, place)):
            marks = self._marks(page, left_out)
            moved |= len(marks) != len({key for key, _ in marks} - versions.keys())
            versions.update(marks)
            count += len(page.records)
            following, total = page.following, page.total
            if following is None or number + 1 >= PIECE:
                break
        is_short = following is None and total is not None and count < total
        gives_up = restarts > MOST_RESTARTS
        return Listing(
            ids=frozenset(versions),
            complete=not (moved or is_short or gives_up),
            versions={} if self.walks_all else {key: mark for key, mark in versions.items() if mark},
            left_out=left_out,
            cursor={}
            if following is None or gives_up
            else {"place": following, "count": count, "restarts": restarts},
        )

    def _marks(self, page: ListPage, left_out: Counter[str]) -> list[tuple[str, str]]:
        """Id and fingerprint of each record that is a document; excluded ones are counted."""
        records = [(key, one) for one in page.records if (key := self._reader.id_of(one))]
        return [(key, self._reader.mark(one)) for key, one in records if not self._leaves(one, left_out)]

    def _listed_records(self, ids: Iterable[str]) -> dict[str, Json]:
        """Records with these ids out of the list, which is read as far as needed."""
        missing, records = set(ids), dict[str, Json]()
        for page in self._client.pages(self._options.list_, self._values(None)):
            listed = {self._reader.id_of(record): record for record in page.records}
            records |= {key: record for key, record in listed.items() if key in missing}
            missing -= listed.keys()
            if not missing:
                break
        return records


_FORMS: Mapping[str, Callable[[datetime], str | int]] = {
    "iso": lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "epoch": lambda moment: int(moment.timestamp()),
    "epochms": lambda moment: int(moment.timestamp() * 1000),
}


def findings(options: RestOptions, client: RestClient, reader: RecordReader) -> Iterator[Finding]:
    """Findings of the check: access, the list, fields of its records.

    Raises:
        SourceUnavailable: the host cannot be reached, or asks for a pause.
    """
    subject = f"list at {options.base_url}"
    try:
        page = next(client.pages(options.walk_list, {}))
    except (SourceDenied, RestMissing, BadAnswer) as error:
        yield Finding(ok=False, subject=subject, detail=error.message, fix=error.fix)
        return
    detail = f"{plural(len(page.records), 'record')} in the first answer"
    if page.total is not None:
        detail += f", {page.total} in all"
    fix = "" if page.records else "check the parameters, and what the account may see"
    yield Finding(ok=bool(page.records), subject=subject, detail=detail, fix=fix)
    if not page.records:
        return
    yield from _field_findings(options, reader, page.records)
    if options.item and (item_id := reader.id_of(page.records[0])):
        yield _item_finding(options.item, client, reader, item_id)


def _field_findings(options: RestOptions, reader: RecordReader, records: Sequence[Json]) -> Iterator[Finding]:
    """Whether all records have what finds them and their changes."""
    readings: dict[str, tuple[str, Callable[[Json], object]]] = {
        "document.id": (options.document.id, reader.id_of)
    }
    if options.changed:
        readings["changed.field"] = (options.changed.field, reader.changed)
    for key, (expression, reading) in readings.items():
        count = sum(bool(reading(record)) for record in records)
        detail = f"{expression} is in {count} of {plural(len(records), 'record')}"
        fix = "" if count == len(records) else f"correct {key}: records without it are not read, or read late"
        yield Finding(ok=not fix, subject=key, detail=detail, fix=fix)


def _item_finding(request: ItemRequest, client: RestClient, reader: RecordReader, item_id: str) -> Finding:
    """Whether a record can be read by its id."""
    try:
        record = value_at(request.record, client.record(request, item_id))
    except (SourceDenied, RestMissing) as error:
        return Finding(ok=False, subject="item", detail=error.message, fix=error.fix)
    if isinstance(record, dict) and reader.id_of(record) == item_id:
        return Finding(ok=True, subject="item", detail="a record can be read by its id", fix="")
    content = "a record with another id" if isinstance(record, dict) else f"no record at {request.record}"
    fix = "correct item.record, or the path"
    return Finding(ok=False, subject="item", detail=f"its answer has {content}", fix=fix)
