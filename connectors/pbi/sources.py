"""JSON files as sources: one document per PBI in its newest state, one per file of any other shape."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.headings import plain_text
from connectors.documents.options import SourceOptions
from connectors.documents.values import (
    from_epoch,
    json_able,
    json_text,
    parse_json,
    parse_time,
    scalar_text,
    tags_of,
)
from connectors.files.markdown import file_metadata, file_title
from connectors.files.source import (
    Entry,
    FileText,
    convert_file,
    failed,
    findings_of,
    holds_nothing,
    pages_of,
    read_file,
    resume_key,
    selected,
    skipped,
    walk_entries,
)
from connectors.files.walk import FileListing, FileTree, FoundFile
from connectors.pbi.record import PbiRecord, pbi_record
from connectors.pbi.shapes import clearly_pbis, pbi_items, plain_keys, run_facts, top_level
from pipeline.documents import DEFAULT_KIND, Cursor, Document, Finding, Listing, Page, SourceType
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
_DIGITS = re.compile(r"(\d+)")
_DATED_RUN = re.compile(r"run[-_]\d")


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The newest state of a PBI with the file it stands in."""

    rank: Rank
    record: PbiRecord
    file: FileText


class Gathering:
    """What has been seen; holds each PBI's newest text and small facts of the other sightings."""

    def __init__(self) -> None:
        self.problems: list[Entry] = []
        self.complete = True
        self._winners: dict[str, Winner] = {}
        self._runs: dict[str, dict[str, tuple[Rank, str]]] = {}
        self._bare: dict[str, tuple[Rank, Mapping[str, Any]]] = {}
        self._scores: dict[str, tuple[Rank, float]] = {}

    def parsed(self, file: FileText) -> Iterator[Any]:
        """The one value of a JSON file, or none and a problem."""
        try:
            yield parse_json(file.text, file.external_id)
        except DocumentRejected as error:
            problem = failed(file.external_id, str(error), file.url)
            self.unknown(problem, settled=is_settled(file.modified))

    def take(self, file: FileText, data: Any) -> None:
        """Takes the parsed content of a file in."""
        items = pbi_items(data)
        if items is None:
            reason = f"{file.external_id} has no PBIs; it holds {top_level(data)}"
            self.problems.append(skipped(file.external_id, reason, file.url))
            return
        run = run_facts(data)
        for item in items:
            record = pbi_record(item, run)
            if record is None:
                name = f"{file.external_id}#{item.index}"
                reason = (
                    f"{file.external_id}: PBI number {item.index + 1} has neither id nor title; give it an id"
                )
                self.problems.append(failed(name, reason, file.url))
            else:
                changed = parse_time(record.updated)
                own = changed.timestamp() if changed else 0.0
                first, last = _file_rank(file, run)
                self._see(record, file, (*first, own, *last, item.stage, item.index))

    def unknown(self, problem: Entry, *, settled: bool) -> None:
        """A file that may hold PBIs and cannot be read: what is not seen may be there all the same.

        `settled` if it has been without PBIs for so long that nothing can be hoped for.
        """
        self.problems.append(problem)
        self.complete = self.complete and settled

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all PBIs seen."""
        return frozenset(self._winners)

    def winner(self, pbi_id: str) -> Winner:
        """The newest state of a PBI; where that is a title with facts alone, the newest text with these facts."""
        winner = self._winners[pbi_id]
        rank, facts = self._bare.get(pbi_id, (winner.rank, {}))
        if rank <= winner.rank:
            return winner
        return replace(winner, record=replace(winner.record, facts={**winner.record.facts, **facts}))

    def quality(self, pbi_id: str) -> dict[str, float]:
        """The newest score; a file without scores leaves the one of an earlier step.

        Steps write percents, PBIs shares, so that what is above 1 is divided by 100 and kept as `quality_score_given`.
        """
        score = self._scores.get(pbi_id, (None, None))[1]
        if score is None or score <= 1:
            return {} if score is None else {"quality_score": score}
        return {"quality_score": round(score / PERCENT, 4), "quality_score_given": score}

    def runs(self, pbi_id: str) -> list[str]:
        """The runs it was seen in, oldest first."""
        return sorted((name for name in self._runs[pbi_id] if name), key=natural_key)

    def version(self, pbi_id: str) -> int:
        """How many different contents the runs gave it; a title alone is none."""
        return len({content for _, content in self._runs[pbi_id].values() if content}) or 1

    def _see(self, record: PbiRecord, file: FileText, rank: Rank) -> None:
        current = self._winners.get(record.id)
        if current is None or (not record.bare, rank) > (not current.record.bare, current.rank):
            self._winners[record.id] = Winner(rank=rank, record=record, file=file)
        if record.bare and record.facts and rank > self._bare.get(record.id, ((), {}))[0]:
            self._bare[record.id] = (rank, record.facts)
        self._see_run(record, file, rank)
        self._see_score(record, rank)

    def _see_run(self, record: PbiRecord, file: FileText, rank: Rank) -> None:
        runs = self._runs.setdefault(record.id, {})
        run, content = run_name(file.external_id), "" if record.bare else record.content_key
        if run not in runs or (content != "", rank) > (runs[run][1] != "", runs[run][0]):
            runs[run] = (rank, content)

    def _see_score(self, record: PbiRecord, rank: Rank) -> None:
        if record.score is not None:
            score = self._scores.get(record.id)
            if score is None or rank > score[0]:
                self._scores[record.id] = (rank, record.score)


def is_settled(modified: datetime | None) -> bool:
    """True if a file has not been written for a while, so that what it holds now is what it is meant to hold."""
    return modified is not None and time.time() - modified.timestamp() > SETTLED_SECONDS


def run_name(path: str) -> str:
    """The folder `run-...` a file lies in; empty if there is none."""
    folders = PurePosixPath(path).parts[:-1]
    return next((name for name in reversed(folders) if name.startswith(("run-", "run_"))), "")


def natural_key(text: str) -> NaturalKey:
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
        (natural_key(folder) if _DATED_RUN.match(folder) else (), final, int(step[1]) if step else 0),
        (written.timestamp() if written else 0.0, file.external_id),
    )


class PbiJsonSource:
    """One document per PBI id over all files; its external id is the PBI's id.

    Which file has the newest state of a PBI is known only after all were read, so each walk reads them all
    first and keeps one text per PBI.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    extractor = "pbi-json-3"
    walks_all = True

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._tree = FileTree(options)
        self._last: tuple[str, Listing] | None = None

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """All PBIs and problems behind the cursor, by id."""
        return pages_of(self._entries(resume_key(since)))

    def ids(self) -> Listing:
        """The ids of all PBIs; incomplete while a file that may hold others cannot be read."""
        listing = self._tree.listing()
        if self._last is None or self._last[0] != listing.stamp:
            self._gather(listing)
        return self._last[1] if self._last else Listing(ids=frozenset(), complete=False)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These documents as they are now."""
        return selected(self.pages(None), ids)

    def check(self) -> list[Finding]:
        """The root, each glob with its number of files, and what could not be read."""
        return findings_of(self._tree)

    def stamp(self) -> str:
        """A hash over names, times, sizes and inodes of the matching files."""
        return self._tree.listing().stamp

    def _entries(self, after: str) -> Iterator[Entry]:
        gathering = self._gather(self._tree.listing())
        entries = [*gathering.problems, *(Entry(key=pbi_id) for pbi_id in gathering.ids)]
        for entry in sorted(entries, key=lambda entry: entry.key):
            if entry.key > after:
                problem = entry.failed or entry.skipped
                yield (
                    entry
                    if problem
                    else replace(entry, document=pbi_document(self._options, gathering, entry.key))
                )

    def _gather(self, listing: FileListing) -> Gathering:
        gathering = gather(listing, self._options)
        self._last = (listing.stamp, Listing(ids=gathering.ids, complete=gathering.complete))
        return gathering


def gather(listing: FileListing, options: SourceOptions) -> Gathering:
    """The PBIs of all files of a walk, and all problems."""
    gathering = Gathering()
    gathering.problems += walk_entries(listing)
    gathering.complete = listing.complete and not listing.present
    for file in listing.files:
        read = read_file(file, listing.root, options)
        if isinstance(read, FileText):
            for data in gathering.parsed(read):
                gathering.take(read, data)
        elif read is not None:
            empty = holds_nothing(file, listing.root)
            gathering.unknown(read, settled=empty and is_settled(from_epoch(file.status.st_mtime)))
    return gathering


def pbi_document(options: SourceOptions, gathering: Gathering, pbi_id: str) -> Document:
    """The document of a PBI in its newest state."""
    winner = gathering.winner(pbi_id)
    record, file = winner.record, winner.file
    source_type = options.source_type or SourceType.PBI
    created = parse_time(record.timestamp) or file.modified
    updated = parse_time(record.updated) or created
    return Document(
        external_id=record.id,
        title=record.title,
        text=record.text,
        source_type=source_type,
        kind=DEFAULT_KIND[SourceType.PBI],
        url=record.url or f"{file.url}#{quote(record.id, safe='')}",
        tags=record.tags,
        metadata={
            **json_able(options.metadata),
            **record.facts,
            "pbi_id": record.id,
            **({"timestamp": record.timestamp} if record.timestamp else {}),
            **gathering.quality(pbi_id),
            "runs": gathering.runs(pbi_id),
            "version": gathering.version(pbi_id),
            **file_metadata(file),
        },
        created_at=created,
        updated_at=updated,
    )


TITLE_KEYS = ("title", "name")


class JsonSource:
    """One document per JSON file, except for files of PBIs, which give one per PBI.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    extractor = "json-2"
    walks_all = True

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # What is a PBI stays one, whatever the other files of the folder are called.
        self._pbi_options = replace(options, source_type=SourceType.PBI)
        self._tree = FileTree(options)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Documents, PBIs and problems behind the cursor, by id."""
        return pages_of(self._entries(resume_key(since)))

    def ids(self) -> Listing:
        """Paths of the files and ids of the PBIs; incomplete while a file that may hold PBIs cannot be read."""
        listing = self._tree.listing()
        sorted_out = self._sort_out(listing)
        living = {f.external_id for f in sorted_out.unread if not holds_nothing(f, listing.root)}
        living |= {f.external_id for f in sorted_out.plain}
        gathering = sorted_out.gathering
        return Listing(ids=gathering.ids | living | listing.present, complete=gathering.complete)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These documents as they are now."""
        return selected(self.pages(None), ids)

    def check(self) -> list[Finding]:
        """The root, each glob with its number of files, and what could not be read."""
        return findings_of(self._tree)

    def stamp(self) -> str:
        """A hash over names, times, sizes and inodes of the matching files."""
        return self._tree.listing().stamp

    def _entries(self, after: str) -> Iterator[Entry]:
        listing = self._tree.listing()
        sorted_out = self._sort_out(listing)
        gathering = sorted_out.gathering
        items: list[tuple[str, Entry | FoundFile | None]] = [(e.key, e) for e in gathering.problems]
        items += [(file.external_id, file) for file in sorted_out.plain]
        items += [(pbi_id, None) for pbi_id in gathering.ids]
        for key, item in sorted(items, key=lambda pair: pair[0]):
            if key > after:
                yield from self._entry(key, item, gathering, listing.root)

    def _entry(
        self, key: str, item: Entry | FoundFile | None, gathering: Gathering, root: str
    ) -> Iterator[Entry]:
        if isinstance(item, Entry):
            yield item
        elif item is None:
            yield Entry(key=key, document=pbi_document(self._pbi_options, gathering, key))
        else:
            read = read_file(item, root, self._options)
            if isinstance(read, FileText):
                yield convert_file(read, self._options, json_document)
            elif read is not None:
                yield read

    def _sort_out(self, listing: FileListing) -> _SortedOut:
        """Reads all files once; of those without PBIs only the place is kept."""
        gathering = Gathering()
        gathering.problems += walk_entries(listing)
        gathering.complete = listing.complete and not listing.present
        plain: list[FoundFile] = []
        unread: list[FoundFile] = []
        for file in listing.files:
            read = read_file(file, listing.root, self._options)
            if isinstance(read, FileText):
                unread += [file] if not self._take(file, read, gathering, plain) else []
            elif read is not None:
                unread.append(file)
                empty = holds_nothing(file, listing.root)
                gathering.unknown(read, settled=empty and is_settled(from_epoch(file.status.st_mtime)))
        return _SortedOut(gathering=gathering, plain=plain, unread=unread)

    def _take(self, file: FoundFile, read: FileText, gathering: Gathering, plain: list[FoundFile]) -> bool:
        """False if the file is no JSON."""
        for data in gathering.parsed(read):
            if clearly_pbis(data):
                gathering.take(read, data)
            else:
                plain.append(file)
            return True
        return False


@dataclass(frozen=True, kw_only=True)
class _SortedOut:
    gathering: Gathering
    plain: list[FoundFile]
    unread: list[FoundFile]


def json_document(options: SourceOptions, file: FileText) -> Document | None:
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
    keys = plain_keys(data) if isinstance(data, Mapping) else {}
    tags = tags_of(keys.get("tags"))
    source_type = options.source_type or SourceType.DOCUMENTATION
    evidence = Evidence(
        path=file.external_id, above=options.above, text=text, front_matter=keys, tags=tags, headings=()
    )
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    return Document(
        external_id=file.external_id,
        title=_title(keys) or file_title(file),
        text=text,
        source_type=source_type,
        kind=kind,
        url=file.url,
        tags=tags,
        metadata={**json_able(options.metadata), **_category(keys), **facts, **file_metadata(file)},
        created_at=parse_time(keys.get("createdat")) or file.modified,
        updated_at=parse_time(keys.get("updatedat")) or file.modified,
    )


def _title(keys: Mapping[str, Any]) -> str:
    return next((text for key in TITLE_KEYS if (text := plain_text(scalar_text(keys.get(key))))), "")


def _category(keys: Mapping[str, Any]) -> dict[str, str]:
    category = scalar_text(keys.get("category"))
    return {"category": category} if category else {}
