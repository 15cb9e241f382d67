"""Sources of JSON files: one document per PBI in its newest state, one per file of another shape."""

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
from pipeline.documents import DEFAULT_KIND, READING_NOTE, Cursor, Document, Listing, Problem, SourceType
from pipeline.documents.plain_text import is_same_title, plain_keys
from pipeline.errors import DocumentRejected

SETTLED_SECONDS = 3600
"""Seconds after which an unparsable file is no longer taken for one being written."""

NaturalKey = tuple[tuple[bool, int, str], ...]
Rank = tuple[NaturalKey, int, int, float, float, str, int, int]
"""Order of states: run, final output before steps, step, last change of the PBI, file time and path, stage, index."""
_STEP = re.compile(r"step[-_]?(\d{1,9})", re.IGNORECASE)
_FINAL = (("final-output", "final_output", "pbi-", "pbi_"), ("summary",))
"""Prefixes of files that are written after all steps, the most reliable first."""
PERCENT = 100
TITLE_KEYS = ("title", "name")
SHARED = "another item in the same list has the id {} as well"
_rank = attrgetter("rank")
_DIGITS = re.compile(r"(\d+)")
_DATED_RUN = re.compile(r"run[-_]\d")
_DATE_OR_NUMBER = re.compile(r"\d[\dTZ:._+-]*")
LONGEST_RUN = 100


@dataclass(frozen=True, kw_only=True)
class ChosenPbi:
    """A state of a PBI, with its file."""

    rank: Rank
    record: PbiRecord
    file: FileText


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sighting:
    """Summary of one state of a PBI."""

    rank: Rank
    run: str
    content: str
    """Content hash; empty if the state is a title only."""
    score: float | None
    facts: Mapping[str, Any]
    """Facts of a state that is a title only; else empty."""


class _Item:
    """One backlog item in all its states: the newest with its text, summaries of the others."""

    def __init__(self, winner: ChosenPbi, run: str) -> None:
        self.winner = winner
        self.winner_run = run
        self.keys: set[tuple[str, str]] = set()
        """Pairs of a run and the key of the item in its lists."""
        self.titles: dict[str, str] = {}
        """Titles by their hash."""
        self.first: tuple[NaturalKey, Rank, str] = (
            natural_sort_key(run),
            winner.rank,
            winner.record.title,
        )
        """Run, rank and title of the oldest state."""
        self.sightings: list[_Sighting] = []

    @property
    def runs(self) -> set[str]:
        return {run for run, _ in self.keys}

    @property
    def shares_id(self) -> bool:
        """True if a list has another item of its id before it."""
        return any("~" in key[len(self.winner.record.id) :] for _, key in self.keys)

    def is_titled(self, record: PbiRecord) -> bool:
        return record.title_key in self.titles

    def is_like(self, record: PbiRecord) -> bool:
        """Whether a record of another run has the same body or nearly the same title."""
        same = record.has_content and record.body == self.winner.record.body
        return same or any(is_same_title(record.title, title) for title in self.titles.values())

    def add(self, state: ChosenPbi, run: str, key: str) -> None:
        """Add a state of the item."""
        self.keys.add((run, key))
        self.titles[state.record.title_key] = state.record.title
        self.first = min(self.first, (natural_sort_key(run), state.rank, state.record.title))
        self._take_if_newer(state, run)

    def absorb(self, other: _Item) -> None:
        """Add all states of another item that turned out to be the same."""
        self.keys |= other.keys
        self.titles |= other.titles
        self.first = min(self.first, other.first)
        self.sightings += other.sightings
        self._take_if_newer(other.winner, other.winner_run)

    def _take_if_newer(self, state: ChosenPbi, run: str) -> None:
        if (not state.record.is_title_only, state.rank) > (
            not self.winner.record.is_title_only,
            self.winner.rank,
        ):
            self.winner, self.winner_run = state, run

    @property
    def newest(self) -> ChosenPbi:
        """The newest state with a text, updated by the facts of a newer state that is a title only."""
        facts_only = max((s for s in self.sightings if s.facts), key=_rank, default=None)
        if facts_only is None or facts_only.rank <= self.winner.rank:
            return self.winner
        record = self.winner.record
        return replace(self.winner, record=replace(record, facts={**record.facts, **facts_only.facts}))

    @property
    def history(self) -> dict[str, Any]:
        """Metadata over all states.

        `runs` are those with the item, oldest first; `version` is the number of different contents in them, and a
        title only is no content. The newest score counts; a file without scores keeps that of an earlier step. Steps
        write percents and PBIs shares, so a score above 1 is divided by 100 and stored as `quality_score_given` too.
        """
        sightings = sorted(self.sightings, key=_rank)
        contents = {s.run: s.content for s in sightings if s.content}
        scores = [s.score for s in sightings if s.score is not None]
        facts: dict[str, Any] = {}
        if scores and scores[-1] <= 1:
            facts = {"quality_score": scores[-1]}
        elif scores:
            facts = {"quality_score": round(scores[-1] / PERCENT, 4), "quality_score_given": scores[-1]}
        runs = sorted({s.run for s in sightings if s.run}, key=natural_sort_key)
        return {**facts, "runs": runs, "version": len(set(contents.values())) or 1}


class PbiSightings:
    """Result of reading all files: the items, and the problems with files.

    Args:
        by_id: whether an id is the same item in all runs.
    """

    def __init__(self, *, by_id: bool = False) -> None:
        self.problems: list[Problem] = []
        self.complete = True
        """False if there may be further PBIs that could not be read."""
        self.other_files: list[FoundFile] = []
        """JSON files without PBIs."""
        self.unread: list[FoundFile] = []
        """Files that are no valid JSON or could not be read."""
        self._by_id = by_id
        self._items: dict[str, list[_Item]] = {}

    def add(self, file: FileText, data: Any) -> None:
        """Add the parsed content of a file."""
        items = pbi_items(data)
        if items is None:
            reason = f"{file.external_id} has no PBIs; it holds {top_level(data)}"
            self.problems.append(
                Skipped(external_id=file.external_id, reason=reason, url=file.url, because="holds no PBI")
            )
        run = run_facts(data)
        named = _named_run(file.external_id, run)
        first, last = _file_rank(file, run, named)
        file = replace(file, text="")  # each item keeps its newest file, without the text
        lists: dict[tuple[int, str], dict[str, PbiRecord]] = {}
        for item in items or ():
            try:
                with bounded(f"{file.external_id}: PBI number {item.index + 1}"):
                    record = pbi_record(item, run)
            except DocumentRejected as error:
                self._add_problem(file, item.index, str(error))
                self.complete = False  # it may be an item that is stored already
                continue
            if record is None:
                message = f"PBI number {item.index + 1} has neither id nor title"
                self._add_problem(file, item.index, f"{file.external_id}: {message}; give it an id")
            else:
                changed = parse_time(record.updated)
                changed_at = changed.timestamp() if changed else 0.0
                key = self._key(record, file, lists.setdefault((item.place, record.id), {}))
                rank = (*first, changed_at, *last, item.stage, item.index)
                self._add_state(key, ChosenPbi(rank=rank, record=record, file=file), named)

    def _key(self, record: PbiRecord, file: FileText, before: dict[str, PbiRecord]) -> str:
        """Key of an item in a list: its id, or one with its title if another item of the list has the same id.

        `before` are the earlier items of the list with this id, by key; the item is added.
        """
        for key, other in before.items():
            if record.is_state_of(other):
                texts = {record.body, other.body} - {""}
                if len(texts) > 1 and record.updated == other.updated:
                    self._shares_id(file, key, f"is in {file.external_id} twice; the later text is kept")
                return key
        key = item_name(record.id, record.title) if before else record.id
        if before:
            self._shares_id(file, key, f"has the id of another item in {file.external_id}; both are kept")
        before[key] = record
        return key

    def _shares_id(self, file: FileText, key: str, detail: str) -> None:
        reason = f"{key} {detail}: give each item an id of its own"
        name = f"{file.external_id}#{key}"
        self.problems.append(Skipped(external_id=name, reason=reason, url=file.url, because="id not unique"))

    def _add_problem(self, file: FileText, index: int, reason: str) -> None:
        name = f"{file.external_id}#{index}"
        self.problems.append(Problem(external_id=name, reason=reason, url=file.url))

    def add_unreadable(self, file: FoundFile, problem: Problem, *, settled: bool) -> None:
        """Add a file that cannot be read and may hold PBIs, so that the ids are incomplete.

        `settled`: it has been unreadable for so long that it is taken for a file without PBIs.
        """
        self.unread.append(file)
        self.problems.append(problem)
        self.complete = self.complete and settled

    def named(self) -> dict[str, _Item]:
        """Items by external id: the oldest of an id has the id itself, others a hash of their first title as well."""
        names: dict[str, _Item] = {}
        for pbi_id, items in self._items.items():
            for place, item in enumerate(sorted(items, key=attrgetter("first"))):
                names[item_name(pbi_id, item.first[-1]) if place else pbi_id] = item
        return names

    def _add_state(self, key: str, state: ChosenPbi, named_run: str) -> None:
        record, file = state.record, state.file
        run = named_run or _unnamed_run(file.external_id)
        items = self._items.setdefault(record.id, [])
        item = self._matching_item(items, record, run, key)
        if item is None:
            item = _Item(state, run)
            items.append(item)
        other = item.winner.file.external_id
        if other != file.external_id and run == item.winner_run and not record.resembles(item.winner.record):
            detail = f"is another item in {other} than in {file.external_id}; the newest is kept"
            self._shares_id(file, key, detail)
        is_new_title = not item.is_titled(record)
        item.add(state, run, key)
        item.sightings.append(
            _Sighting(
                rank=state.rank,
                run=named_run,
                content="" if record.is_title_only else record.content_key,
                score=record.score,
                facts=record.facts if record.is_title_only else {},
            )
        )
        if is_new_title and len(items) > 1 and not self._by_id:
            runs = item.runs
            for similar in [i for i in items if i is not item and i.is_like(record)]:
                if runs.isdisjoint(similar.runs):
                    item.absorb(similar)
                    items.remove(similar)
                    runs = item.runs

    def _matching_item(self, items: Sequence[_Item], record: PbiRecord, run: str, key: str) -> _Item | None:
        """The item that a record is a state of: by title or key in its run, by title (or id) in others; None if new."""
        in_run = [item for item in items if run in item.runs]
        in_other_runs = [item for item in items if item not in in_run]
        choices = (
            (item for item in in_run if item.is_titled(record)),
            (item for item in in_run if (run, key) in item.keys),
            (item for item in in_other_runs if self._by_id and key in {k for _, k in item.keys}),
            (item for item in in_other_runs if item.is_titled(record)),
            (item for item in in_other_runs if item.is_like(record)),
        )
        return next(chain.from_iterable(choices), None)


def run_name(path: str) -> str:
    """The folder `run-...` of a file; empty if there is none."""
    folders = PurePosixPath(path).parts[:-1]
    return next((name for name in reversed(folders) if name.startswith(("run-", "run_"))), "")


def _named_run(path: str, run: Mapping[str, Any]) -> str:
    """The run of a file: its folder `run-...`, else the run id in it; empty if there is neither."""
    run_id = scalar_text(run.get("runid"))[:LONGEST_RUN]
    return run_name(path) or (f"run-{run_id}" if _DATE_OR_NUMBER.fullmatch(run_id) else run_id)


def _unnamed_run(path: str) -> str:
    """Substitute for the run of a file: its folder if its name is that of a pipeline's file, else the file itself."""
    file = PurePosixPath(path)
    name = file.name.lower()
    of_pipeline = _STEP.match(name) or name.startswith(tuple(chain.from_iterable(_FINAL)))
    return str(file.parent if of_pipeline else file)


def natural_sort_key(text: str) -> NaturalKey:
    """Sort key that puts `run-10` after `run-9`."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(text)
    )


def _file_rank(
    file: FileText, run: Mapping[str, Any], named_run: str
) -> tuple[tuple[NaturalKey, int, int], tuple[float, str]]:
    """Elements of `Rank` from the file: those before the last change of the PBI, and those after it."""
    name = PurePosixPath(file.external_id).name.lower()
    step = _STEP.match(name)
    final = next((len(_FINAL) - n for n, starts in enumerate(_FINAL) if name.startswith(starts)), 0)
    # A PBI in a separate file has a `timestamp` too, which is not the time of a step.
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
    """One document per PBI over all files and runs; the external id is the PBI's id, extended if others share it.

    The file with the newest state of a PBI is known only after all were read, so each walk reads all files
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
        """Unsupported, returns None: a PBI is built from several files, so that a changed file needs all others."""
        return None

    def ids(self, since: Cursor | None = None) -> Listing:  # noqa: ARG002 (one piece)
        """Ids of all PBIs; incomplete while a file that may hold others cannot be read."""
        listing = self._listing()
        if self._last is None or self._last[0] != listing.stamp:
            self._gather(listing)
        return self._last[1] if self._last else Listing(ids=frozenset(), complete=False)

    def _items(self, listing: FileListing) -> Iterator[Entry | FoundFile]:
        gathering = self._gather(listing)
        yield from gathering.problems
        yield from gathering.other_files
        for name, item in gathering.named().items():
            try:
                if document := build_document(partial(self._document, name, item), f"PBI {name}"):
                    yield document
            except DocumentRejected as error:
                yield Problem(external_id=name, reason=str(error))

    def _gather(self, listing: FileListing) -> PbiSightings:
        """Read all files once; of those without PBIs only the paths are kept."""
        gathering = PbiSightings(by_id=self._by_id)
        gathering.problems += listing.failed
        gathering.complete = listing.complete and not listing.present
        for found_file in listing.files:
            file = read_file(found_file, listing.root, self._options)
            settled = time.time() - found_file.status.st_mtime > SETTLED_SECONDS
            if isinstance(file, Problem):
                settled = settled and holds_nothing(found_file, listing.root)
                gathering.add_unreadable(found_file, file, settled=settled)
            elif file is not None:
                try:
                    with bounded(file.external_id):
                        data = parse_json(file.text, file.external_id)
                        has_pbis = self._is_of_pipeline(data)
                except DocumentRejected as error:
                    problem = Problem(external_id=file.external_id, reason=str(error), url=file.url)
                    gathering.add_unreadable(found_file, problem, settled=settled)
                    continue
                if has_pbis:
                    gathering.add(file, data)
                else:
                    gathering.other_files.append(found_file)
        self._last = (listing.stamp, self._living_ids(gathering, listing))
        return gathering

    def _living_ids(self, gathering: PbiSightings, _listing: FileListing) -> Listing:
        return Listing(ids=frozenset(gathering.named()), complete=gathering.complete)

    def _document(self, name: str, item: _Item) -> Document:
        """The document of a PBI, from its newest state."""
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
    """One document per JSON file, but one per PBI for files of PBIs."""

    def __init__(self, options: PbiOptions) -> None:
        super().__init__(
            options, extractor="json-4", is_of_pipeline=lambda data: is_step(data) or holds_pbis(data)
        )
        # PBIs keep their source type, whatever is set for the other files of the folder.
        self._pbi_type = SourceType.PBI

    def _living_ids(self, gathering: PbiSightings, listing: FileListing) -> Listing:
        """Ids of PBIs, and paths of the other files."""
        living = {f.external_id for f in gathering.unread if not holds_nothing(f, listing.root)}
        living |= {f.external_id for f in gathering.other_files}
        return Listing(
            ids=frozenset(gathering.named()) | living | listing.present, complete=gathering.complete
        )


def json_document(options: FileOptions, file: FileText) -> Document | None:
    """The document of a JSON file without PBIs; None if all its values are empty.

    Raises:
        DocumentRejected: it is no JSON, or nested too deeply.
    """
    data = parse_json(file.text, file.external_id)
    try:
        text = json_text(data)
    except RecursionError:
        message = f"{file.external_id} is nested too deeply to be shown as text"
        raise DocumentRejected(message, fix="flatten it, or exclude it") from None
    if not text:
        return None
    fields = {str(key): value for key, value in data.items()} if isinstance(data, Mapping) else {}
    category = scalar_text(plain_keys(fields).get("category"))
    inner = data if isinstance(data, list) else [fields.get("metadata")]
    rights = canonical_rights(fields, *(mapping for mapping in inner if isinstance(mapping, Mapping)))
    return file_document(
        options,
        replace(file, text=text, header=FrontMatter(values=rights, body=text)),
        SourceType.DOCUMENTATION,
        title=plain_text(text_of(plain_keys(fields), TITLE_KEYS)),
        metadata={"category": category} if category else {},
    )
