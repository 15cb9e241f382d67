"""Outputs of the backlog pipeline as one document per PBI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote

from connectors.documents.json_values import json_able
from connectors.documents.options import SourceOptions
from connectors.documents.times import from_epoch, parse_time
from connectors.files.contents import FileText, holds_nothing, read_file
from connectors.files.markdown import file_metadata
from connectors.files.paging import Entry, pages_of, resume_key, selected
from connectors.files.source import findings_of, walk_entries
from connectors.files.walk import FileListing, FileTree
from connectors.pbi.newest import Gathering, is_settled
from pipeline.documents import DEFAULT_KIND, Cursor, Document, Finding, Listing, Page, SourceType


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
