"""JSON files as sources: one document per PBI in its newest state, one per file of any other shape."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from connectors.files.options import FileOptions
from connectors.files.source import Entry, FileSource, file_document, file_metadata
from connectors.files.walk import FileListing, FileText, FoundFile, Skipped, holds_nothing, read_file
from connectors.pbi.record import PbiRecord, pbi_record
from connectors.pbi.shapes import holds_pbis, pbi_items, run_facts, text_of, top_level
from pipeline.documents import (
    DEFAULT_KIND,
    READING_NOTE,
    Cursor,
    Document,
    Listing,
    Problem,
    SourceType,
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


class PbiSightings:
    """What has been seen; holds each PBI's newest text and small facts of the other sightings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.complete = True
        """False if PBIs may be there that were not seen."""
        self.plain: list[FoundFile] = []
        """Files of JSON without PBIs."""
        self.unread: list[FoundFile] = []
        """Files that are no JSON or could not be read."""
        self._winners: dict[str, ChosenPbi] = {}
        self._seen: dict[str, list[_Sighting]] = {}

    def add(self, file: FileText, data: Any) -> None:
        """Takes the parsed content of a file in."""
        items = pbi_items(data)
        if items is None:
            reason = f"{file.external_id} has no PBIs; it holds {top_level(data)}"
            self.problems.append(
                Skipped(external_id=file.external_id, reason=reason, url=file.url, because="holds no PBI")
            )
        run = run_facts(data)
        first, last = _file_rank(file, run)
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
                self._see(key, record, file, (*first, own, *last, item.stage, item.index))

    def _key(self, record: PbiRecord, file: FileText, before: dict[str, PbiRecord]) -> str:
        """What an item is kept under: its id, or one made with its title where another item of its list has that.

        `before` are the items of this id that the list has shown so far.
        """
        for key, other in before.items():
            if record.is_state_of(other):
                texts = {record.below, other.below} - {""}
                if len(texts) > 1 and record.updated == other.updated:
                    self._shares_id(file, key, f"stands twice in {file.external_id}; the later text is kept")
                return key
        key = f"{record.id}~{record.title_key}" if before else record.id
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

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all PBIs seen."""
        return frozenset(self._winners)

    def newest(self, pbi_id: str) -> ChosenPbi:
        """The newest state of a PBI; where that is a title with facts alone, the newest text with these facts."""
        winner = self._winners[pbi_id]
        bare = max((s for s in self._seen[pbi_id] if s.facts), key=_rank, default=None)
        if bare is None or bare.rank <= winner.rank:
            return winner
        return replace(winner, record=replace(winner.record, facts={**winner.record.facts, **bare.facts}))

    def history(self, pbi_id: str) -> dict[str, Any]:
        """Facts over all sightings.

        `runs` are those it was seen in, oldest first; `version` is how many different contents they gave it, and a
        title alone is none. The newest score counts; a file without scores leaves the one of an earlier step. Steps
        write percents, PBIs shares, so that what is above 1 is divided by 100 and kept as `quality_score_given`.
        """
        seen = sorted(self._seen[pbi_id], key=_rank)
        contents = {s.run: s.content for s in seen if s.content}
        scores = [s.score for s in seen if s.score is not None]
        facts: dict[str, Any] = {}
        if scores and scores[-1] <= 1:
            facts = {"quality_score": scores[-1]}
        elif scores:
            facts = {"quality_score": round(scores[-1] / PERCENT, 4), "quality_score_given": scores[-1]}
        runs = sorted({s.run for s in seen if s.run}, key=natural_sort_key)
        return {**facts, "runs": runs, "version": len(set(contents.values())) or 1}

    def _see(self, key: str, record: PbiRecord, file: FileText, rank: Rank) -> None:
        current, run = self._winners.get(key), run_name(file.external_id)
        other = current.file.external_id if current else file.external_id
        # In another run it may have got another title: there its newest state counts.
        if (
            other != file.external_id
            and run == run_name(other)
            and not (current and record.resembles(current.record))
        ):
            found = f"is another item in {other} than in {file.external_id}; the newest is kept"
            self._shares_id(file, key, found)
        if current is None or (not record.bare, rank) > (not current.record.bare, current.rank):
            self._winners[key] = ChosenPbi(rank=rank, record=record, file=file)
        sighting = _Sighting(
            rank=rank,
            run=run,
            content="" if record.bare else record.content_key,
            score=record.score,
            facts=record.facts if record.bare else {},
        )
        self._seen.setdefault(key, []).append(sighting)


def run_name(path: str) -> str:
    """The folder `run-...` a file lies in; empty if there is none."""
    folders = PurePosixPath(path).parts[:-1]
    return next((name for name in reversed(folders) if name.startswith(("run-", "run_"))), "")


def natural_sort_key(text: str) -> NaturalKey:
    """Sorts `run-10` behind `run-9`."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(text)
    )


def _file_rank(
    file: FileText, run: Mapping[str, Any]
) -> tuple[tuple[NaturalKey, int, int], tuple[float, str]]:
    """What counts before the time of a PBI's own last change, and what behind it."""
    name = PurePosixPath(file.external_id).name.lower()
    folder = run_name(file.external_id)
    step = _STEP.match(name)
    final = next((len(_FINAL) - n for n, starts in enumerate(_FINAL) if name.startswith(starts)), 0)
    # A PBI in a file of its own has a `timestamp` too, and that is no time of a step.
    keys = ("generatedat", "processedat", *(("timestamp",) if "step" in run else ()))
    written = next((time for key in keys if (time := parse_time(run.get(key)))), file.modified)
    return (
        (natural_sort_key(folder) if _DATED_RUN.match(folder) else (), final, int(step[1]) if step else 0),
        (written.timestamp() if written else 0.0, file.external_id),
    )


class PbiJsonSource(FileSource):
    """One document per PBI id over all files; its external id is the PBI's id.

    Which file has the newest state of a PBI is known only after all were read, so each walk reads them all
    first and keeps one text per PBI.
    """

    def __init__(
        self,
        options: FileOptions,
        *,
        extractor: str = "pbi-json-4",
        holds_pbis: Callable[[Any], bool] = lambda _data: True,
    ) -> None:
        super().__init__(options, extractor=extractor, convert=partial(json_document, options))
        self._holds_pbis = holds_pbis
        self._pbi_type = options.source_type or SourceType.PBI
        self._last: tuple[str, Listing] | None = None

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
        for pbi_id in gathering.ids:
            try:
                if document := build_document(partial(self._document, gathering, pbi_id), f"PBI {pbi_id}"):
                    yield document
            except DocumentRejected as error:
                yield Problem(external_id=pbi_id, reason=str(error))

    def _gather(self, listing: FileListing) -> PbiSightings:
        """Reads all files once; of those without PBIs only the place is kept."""
        gathering = PbiSightings()
        gathering.problems += (*listing.failed, *listing.skipped)
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
                        clearly = self._holds_pbis(data)
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
        return Listing(ids=gathering.ids, complete=gathering.complete)

    def _document(self, gathering: PbiSightings, pbi_id: str) -> Document:
        """The document of a PBI in its newest state."""
        winner = gathering.newest(pbi_id)
        record, file = winner.record, winner.file
        created = parse_time(record.timestamp) or file.modified
        return Document(
            external_id=pbi_id,
            title=record.title,
            text=record.text,
            source_type=self._pbi_type,
            kind=DEFAULT_KIND[SourceType.PBI],
            url=record.url or f"{file.url}#{quote(pbi_id, safe='')}",
            tags=record.tags,
            metadata={
                **self._options.metadata_of(record.facts),
                "pbi_id": record.id,
                **({READING_NOTE: SHARED.format(record.id)} if pbi_id != record.id else {}),
                **({"timestamp": record.timestamp} if record.timestamp else {}),
                **gathering.history(pbi_id),
                **file_metadata(file),
            },
            created_at=created,
            updated_at=parse_time(record.updated) or created,
        )


class JsonSource(PbiJsonSource):
    """One document per JSON file, except for files of PBIs, which give one per PBI."""

    def __init__(self, options: FileOptions) -> None:
        super().__init__(options, extractor="json-3", holds_pbis=holds_pbis)
        # What is a PBI stays one, whatever the other files of the folder are called.
        self._pbi_type = SourceType.PBI

    def _known(self, gathering: PbiSightings, listing: FileListing) -> Listing:
        """Paths of the files and ids of the PBIs."""
        living = {f.external_id for f in gathering.unread if not holds_nothing(f, listing.root)}
        living |= {f.external_id for f in gathering.plain}
        return Listing(ids=gathering.ids | living | listing.present, complete=gathering.complete)


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
