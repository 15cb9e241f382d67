"""JSON files as sources: one document per PBI in its newest state, one per file of any other shape."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from connectors.documents.headings import plain_text
from connectors.documents.rights import canonical_rights
from connectors.documents.values import (
    bounded,
    build_document,
    json_text,
    parse_json,
    parse_time,
    scalar_text,
)
from connectors.files.front_matter import FrontMatter
from connectors.files.options import FileOptions, PbiOptions
from connectors.files.source import Entry, FileSource, file_document, file_metadata
from connectors.files.walk import FileListing, FileText, FoundFile, Skipped, holds_nothing, read_file
from connectors.pbi.identity import item_name
from connectors.pbi.record import PbiRecord, pbi_record
from connectors.pbi.shapes import holds_pbis, is_step, pbi_items, run_facts, text_of, top_level
from pipeline.documents import (
    DEFAULT_KIND,
    READING_NOTE,
    Cursor,
    Document,
    Listing,
    Problem,
    SourceType,
    is_same_title,
    plain_keys,
)
from pipeline.errors import DocumentRejected

SETTLED_SECONDS = 3600
"""A file that is no JSON for this long is not in the middle of being written: it holds no PBIs."""

NaturalKey = tuple[tuple[bool, int, str], ...]
Rank = tuple[NaturalKey, int, int, float, float, str, int, int]
"""Run, final outputs before steps, step, the PBI's own last change, the file's time; then place in the file."""
_STEP = re.compile(r"step[-_]?(\d{1,9})", re.IGNORECASE)
_FINAL = (("final-output", "final_output", "pbi-", "pbi_"), ("summary",))
"""How files are called that are written behind all steps, the surest first."""
PERCENT = 100
TITLE_KEYS = ("title", "name")
SHARED = "its id {} is that of another item in the same list, too"
_rank = attrgetter("rank")
_DIGITS = re.compile(r"(\d+)")
_DATED_RUN = re.compile(r"run[-_]\d")
_DATE_OR_NUMBER = re.compile(r"\d[\dTZ:._+-]*")
LONGEST_RUN = 100


@dataclass(frozen=True, kw_only=True)
class ChosenPbi:
    """The newest state of a PBI with the file it stands in."""

    rank: Rank
    record: PbiRecord
    file: FileText


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sighting:
    """What is kept of a PBI in one file."""

    rank: Rank
    run: str
    content: str
    """Empty for a title alone."""
    score: float | None
    facts: Mapping[str, Any]
    """Of a title alone."""


class _Item:
    """One backlog item in all its states; holds the newest text and small facts of the others."""

    def __init__(self, winner: ChosenPbi, run: str) -> None:
        self.winner = winner
        self.winner_run = run
        self.keys: set[tuple[str, str]] = set()
        """Runs, and what its lists call the item."""
        self.titles: dict[str, str] = {}
        """Titles by their key."""
        self.first: tuple[NaturalKey, Rank, str] = (
            natural_sort_key(run),
            winner.rank,
            winner.record.title,
        )
        """Oldest state: its run, rank and title."""
        self.seen: list[_Sighting] = []

    @property
    def runs(self) -> set[str]:
        return {run for run, _ in self.keys}

    @property
    def shares_id(self) -> bool:
        """True if it stands in a list behind another item of its id."""
        return any("~" in key[len(self.winner.record.id) :] for _, key in self.keys)

    def is_titled(self, record: PbiRecord) -> bool:
        return record.title_key in self.titles

    def is_like(self, record: PbiRecord) -> bool:
        """Whether a record of another run says the same below its title, or has nearly the same title."""
        same = record.says_something and record.below == self.winner.record.below
        return same or any(is_same_title(record.title, title) for title in self.titles.values())

    def add(self, state: ChosenPbi, run: str, key: str) -> None:
        """Takes in a state of it."""
        self.keys.add((run, key))
        self.titles[state.record.title_key] = state.record.title
        self.first = min(self.first, (natural_sort_key(run), state.rank, state.record.title))
        self._compete(state, run)

    def absorb(self, other: _Item) -> None:
        """Takes in the states of another one that turned out to be this one."""
        self.keys |= other.keys
        self.titles |= other.titles
        self.first = min(self.first, other.first)
        self.seen += other.seen
        self._compete(other.winner, other.winner_run)

    def _compete(self, state: ChosenPbi, run: str) -> None:
        if (not state.record.bare, state.rank) > (not self.winner.record.bare, self.winner.rank):
            self.winner, self.winner_run = state, run

    @property
    def newest(self) -> ChosenPbi:
        """The newest state; where that is a title with facts alone, the newest text with these facts."""
        bare = max((s for s in self.seen if s.facts), key=_rank, default=None)
        if bare is None or bare.rank <= self.winner.rank:
            return self.winner
        record = self.winner.record
        return replace(self.winner, record=replace(record, facts={**record.facts, **bare.facts}))

    @property
    def history(self) -> dict[str, Any]:
        """Facts over all sightings.

        `runs` are those it was seen in, oldest first; `version` is how many different contents they gave it, and a
        title alone is none. The newest score counts; a file without scores leaves the one of an earlier step. Steps
        write percents, PBIs shares, so that what is above 1 is divided by 100 and kept as `quality_score_given`.
        """
        seen = sorted(self.seen, key=_rank)
        contents = {s.run: s.content for s in seen if s.content}
        scores = [s.score for s in seen if s.score is not None]
        facts: dict[str, Any] = {}
        if scores and scores[-1] <= 1:
            facts = {"quality_score": scores[-1]}
        elif scores:
            facts = {"quality_score": round(scores[-1] / PERCENT, 4), "quality_score_given": scores[-1]}
        runs = sorted({s.run for s in seen if s.run}, key=natural_sort_key)
        return {**facts, "runs": runs, "version": len(set(contents.values())) or 1}


class PbiSightings:
    """What has been seen: the items, and what could not be read.

    Args:
        by_id: an id is one item in all runs.
    """

    def __init__(self, *, by_id: bool = False) -> None:
        self.problems: list[Problem] = []
        self.complete = True
        """False if PBIs may be there that were not seen."""
        self.plain: list[FoundFile] = []
        """Files of JSON without PBIs."""
        self.unread: list[FoundFile] = []
        """Files that are no JSON or could not be read."""
        self._by_id = by_id
        self._items: dict[str, list[_Item]] = {}

    def add(self, file: FileText, data: Any) -> None:
        """Takes the parsed content of a file in."""
        items = pbi_items(data)
        if items is None:
            reason = f"{file.external_id} has no PBIs; it holds {top_level(data)}"
            self.problems.append(
                Skipped(external_id=file.external_id, reason=reason, url=file.url, because="holds no PBI")
            )
        run = run_facts(data)
        named = _named_run(file.external_id, run)
        first, last = _file_rank(file, run, named)
        file = replace(file, text="")  # of each item its newest file is remembered
        lists: dict[tuple[int, str], dict[str, PbiRecord]] = {}
        for item in items or ():
            try:
                with bounded(f"{file.external_id}: PBI number {item.index + 1}"):
                    record = pbi_record(item, run)
            except DocumentRejected as error:
                self._lacks(file, item.index, str(error))
                self.complete = False  # it may be one that was read before
                continue
            if record is None:
                found = f"PBI number {item.index + 1} has neither id nor title"
                self._lacks(file, item.index, f"{file.external_id}: {found}; give it an id")
            else:
                changed = parse_time(record.updated)
                own = changed.timestamp() if changed else 0.0
                key = self._key(record, file, lists.setdefault((item.place, record.id), {}))
                rank = (*first, own, *last, item.stage, item.index)
                self._see(key, ChosenPbi(rank=rank, record=record, file=file), named)

    def _key(self, record: PbiRecord, file: FileText, before: dict[str, PbiRecord]) -> str:
        """What a list calls an item: its id, or one made with its title where another item of the list has that.

        `before` are the items of this id that the list has shown so far.
        """
        for key, other in before.items():
            if record.is_state_of(other):
                texts = {record.below, other.below} - {""}
                if len(texts) > 1 and record.updated == other.updated:
                    self._shares_id(file, key, f"stands twice in {file.external_id}; the later text is kept")
                return key
        key = item_name(record.id, record.title) if before else record.id
        if before:
            self._shares_id(file, key, f"has the id of another item in {file.external_id}; both are kept")
        before[key] = record
        return key

    def _shares_id(self, file: FileText, key: str, found: str) -> None:
        reason = f"{key} {found}: give each item an id of its own"
        name = f"{file.external_id}#{key}"
        self.problems.append(Skipped(external_id=name, reason=reason, url=file.url, because="id not its own"))

    def _lacks(self, file: FileText, index: int, reason: str) -> None:
        name = f"{file.external_id}#{index}"
        self.problems.append(Problem(external_id=name, reason=reason, url=file.url))

    def add_unreadable(self, file: FoundFile, problem: Problem, *, settled: bool) -> None:
        """A file that may hold PBIs and cannot be read: what is not seen may be there all the same.

        `settled` if it has been without PBIs for so long that nothing can be hoped for.
        """
        self.unread.append(file)
        self.problems.append(problem)
        self.complete = self.complete and settled

    def named(self) -> dict[str, _Item]:
        """The items by their names: the oldest of an id has that, others have it with a mark of their first title."""
        names: dict[str, _Item] = {}
        for pbi_id, items in self._items.items():
            for place, item in enumerate(sorted(items, key=attrgetter("first"))):
                names[item_name(pbi_id, item.first[-1]) if place else pbi_id] = item
        return names

    def _see(self, key: str, state: ChosenPbi, named_run: str) -> None:
        record, file = state.record, state.file
        run = named_run or _unnamed_run(file.external_id)
        items = self._items.setdefault(record.id, [])
        item = self._known_item(items, record, run, key)
        if item is None:
            item = _Item(state, run)
            items.append(item)
        other = item.winner.file.external_id
        if other != file.external_id and run == item.winner_run and not record.resembles(item.winner.record):
            found = f"is another item in {other} than in {file.external_id}; the newest is kept"
            self._shares_id(file, key, found)
        is_new_title = not item.is_titled(record)
        item.add(state, run, key)
        item.seen.append(
            _Sighting(
                rank=state.rank,
                run=named_run,
                content="" if record.bare else record.content_key,
                score=record.score,
                facts=record.facts if record.bare else {},
            )
        )
        if is_new_title and len(items) > 1 and not self._by_id:
            runs = item.runs
            for one in [i for i in items if i is not item and i.is_like(record)]:
                if runs.isdisjoint(one.runs):
                    item.absorb(one)
                    items.remove(one)
                    runs = item.runs

    def _known_item(self, items: Sequence[_Item], record: PbiRecord, run: str, key: str) -> _Item | None:
        """The item that a record is a state of: in its run by title or id, in another one by title (or id)."""
        here = [item for item in items if run in item.runs]
        elsewhere = [item for item in items if item not in here]
        choices = (
            (item for item in here if item.is_titled(record)),
            (item for item in here if (run, key) in item.keys),
            (item for item in elsewhere if self._by_id and key in {one for _, one in item.keys}),
            (item for item in elsewhere if item.is_titled(record)),
            (item for item in elsewhere if item.is_like(record)),
        )
        return next(chain.from_iterable(choices), None)


def run_name(path: str) -> str:
    """The folder `run-...` a file lies in; empty if there is none."""
    folders = PurePosixPath(path).parts[:-1]
    return next((name for name in reversed(folders) if name.startswith(("run-", "run_"))), "")


def _named_run(path: str, run: Mapping[str, Any]) -> str:
    """The run that a file is of: the folder `run-...` it lies in, else what it says itself; empty if neither does."""
    told = scalar_text(run.get("runid"))[:LONGEST_RUN]
    return run_name(path) or (f"run-{told}" if _DATE_OR_NUMBER.fullmatch(told) else told)


def _unnamed_run(path: str) -> str:
    """What stands for a run: the folder of files that are called as the pipeline calls them, else the file itself."""
    file = PurePosixPath(path)
    name = file.name.lower()
    of_pipeline = _STEP.match(name) or name.startswith(tuple(chain.from_iterable(_FINAL)))
    return str(file.parent if of_pipeline else file)


def natural_sort_key(text: str) -> NaturalKey:
    """Sorts `run-10` behind `run-9`."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(text)
    )


def _file_rank(
    file: FileText, run: Mapping[str, Any], named_run: str
) -> tuple[tuple[NaturalKey, int, int], tuple[float, str]]:
    """What counts before the time of a PBI's own last change, and what behind it."""
    name = PurePosixPath(file.external_id).name.lower()
    step = _STEP.match(name)
    final = next((len(_FINAL) - n for n, starts in enumerate(_FINAL) if name.startswith(starts)), 0)
    # A PBI in a file of its own has a `timestamp` too, and that is no time of a step.
    keys = ("generatedat", "processedat", *(("timestamp",) if "step" in run else ()))
    written = next((time for key in keys if (time := parse_time(run.get(key)))), file.modified)
    return (
        (
            natural_sort_key(named_run) if _DATED_RUN.match(named_run) else (),
            final,
            int(step[1]) if step else 0,
        ),
        (written.timestamp() if written else 0.0, file.external_id),
    )


class PbiJsonSource(FileSource):
    """One document per PBI over all files and runs; its external id is the PBI's id, marked where others have that.

    Which file has the newest state of a PBI is known only after all were read, so each walk reads them all
    first and keeps one text per PBI.
    """

    def __init__(
        self,
        options: PbiOptions,
        *,
        extractor: str = "pbi-json-5",
        is_of_pipeline: Callable[[Any], bool] = lambda _data: True,
    ) -> None:
        super().__init__(options, extractor=extractor, convert=partial(json_document, options))
        self._is_of_pipeline = is_of_pipeline
        self._by_id = options.identity == "id"
        self._pbi_type = options.source_type or SourceType.PBI
        self._last: tuple[str, Listing] | None = None

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> int | None:  # noqa: ARG002 (it cannot)
        """None: a PBI stands in several files, of which one that changed says nothing without the others."""
        return None

    def ids(self, since: Cursor | None = None) -> Listing:  # noqa: ARG002 (one piece)
        """The ids of all PBIs; incomplete while a file that may hold others cannot be read."""
        listing = self._listing()
        if self._last is None or self._last[0] != listing.stamp:
            self._gather(listing)
        return self._last[1] if self._last else Listing(ids=frozenset(), complete=False)

    def _items(self, listing: FileListing) -> Iterator[Entry | FoundFile]:
        gathering = self._gather(listing)
        yield from gathering.problems
        yield from gathering.plain
        for name, item in gathering.named().items():
            try:
                if document := build_document(partial(self._document, name, item), f"PBI {name}"):
                    yield document
            except DocumentRejected as error:
                yield Problem(external_id=name, reason=str(error))

    def _gather(self, listing: FileListing) -> PbiSightings:
        """Reads all files once; of those without PBIs only the place is kept."""
        gathering = PbiSightings(by_id=self._by_id)
        gathering.problems += listing.failed
        gathering.complete = listing.complete and not listing.present
        for found in listing.files:
            file = read_file(found, listing.root, self._options)
            settled = time.time() - found.status.st_mtime > SETTLED_SECONDS
            if isinstance(file, Problem):
                settled = settled and holds_nothing(found, listing.root)
                gathering.add_unreadable(found, file, settled=settled)
            elif file is not None:
                try:
                    with bounded(file.external_id):
                        data = parse_json(file.text, file.external_id)
                        clearly = self._is_of_pipeline(data)
                except DocumentRejected as error:
                    problem = Problem(external_id=file.external_id, reason=str(error), url=file.url)
                    gathering.add_unreadable(found, problem, settled=settled)
                    continue
                if clearly:
                    gathering.add(file, data)
                else:
                    gathering.plain.append(found)
        self._last = (listing.stamp, self._known(gathering, listing))
        return gathering

    def _known(self, gathering: PbiSightings, _listing: FileListing) -> Listing:
        return Listing(ids=frozenset(gathering.named()), complete=gathering.complete)

    def _document(self, name: str, item: _Item) -> Document:
        """The document of a PBI in its newest state."""
        record, file = item.newest.record, item.newest.file
        created = parse_time(record.timestamp) or file.modified
        return Document(
            external_id=name,
            title=record.title,
            text=record.text,
            source_type=self._pbi_type,
            kind=DEFAULT_KIND[SourceType.PBI],
            url=record.url or f"{file.url}#{quote(record.id, safe='')}",
            tags=record.tags,
            metadata={
                **self._options.metadata_of(record.facts),
                "pbi_id": record.id,
                **({READING_NOTE: SHARED.format(record.id)} if item.shares_id else {}),
                **({"timestamp": record.timestamp} if record.timestamp else {}),
                **item.history,
                **file_metadata(file),
            },
            created_at=created,
            updated_at=parse_time(record.updated) or created,
        )


class JsonSource(PbiJsonSource):
    """One document per JSON file, except for files of PBIs, which give one per PBI."""

    def __init__(self, options: PbiOptions) -> None:
        super().__init__(
            options, extractor="json-4", is_of_pipeline=lambda data: is_step(data) or holds_pbis(data)
        )
        # What is a PBI stays one, whatever the other files of the folder are called.
        self._pbi_type = SourceType.PBI

    def _known(self, gathering: PbiSightings, listing: FileListing) -> Listing:
        """Paths of the files and ids of the PBIs."""
        living = {f.external_id for f in gathering.unread if not holds_nothing(f, listing.root)}
        living |= {f.external_id for f in gathering.plain}
        return Listing(
            ids=frozenset(gathering.named()) | living | listing.present, complete=gathering.complete
        )


def json_document(options: FileOptions, file: FileText) -> Document | None:
    """The document of a JSON file without PBIs; None if it holds nothing but empty values.

    Raises:
        DocumentRejected: it is no JSON, or nested too deeply.
    """
    data = parse_json(file.text, file.external_id)
    try:
        text = json_text(data)
    except RecursionError:
        found = f"{file.external_id} is nested too deeply to be shown as text"
        raise DocumentRejected(found, fix="flatten it, or exclude it") from None
    if not text:
        return None
    fields = {str(key): value for key, value in data.items()} if isinstance(data, Mapping) else {}
    category = scalar_text(plain_keys(fields).get("category"))
    inner = data if isinstance(data, list) else [fields.get("metadata")]
    rights = canonical_rights(fields, *(one for one in inner if isinstance(one, Mapping)))
    return file_document(
        options,
        replace(file, text=text, header=FrontMatter(values=rights, body=text)),
        SourceType.DOCUMENTATION,
        title=plain_text(text_of(plain_keys(fields), TITLE_KEYS)),
        metadata={"category": category} if category else {},
    )
