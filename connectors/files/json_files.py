"""JSON files of any shape as documents, those of the backlog pipeline as PBIs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.front_matter import tags_of
from connectors.documents.headings import plain_text
from connectors.documents.json_text import json_text
from connectors.documents.json_values import json_able, parse_json, scalar_text
from connectors.documents.options import SourceOptions
from connectors.documents.times import from_epoch, parse_time
from connectors.files.contents import FileText, holds_nothing, read_file
from connectors.files.markdown import file_metadata, file_title
from connectors.files.paging import Entry, pages_of, resume_key, selected
from connectors.files.source import convert_file, findings_of, walk_entries
from connectors.files.walk import FileListing, FileTree, FoundFile
from connectors.pbi.newest import Gathering, is_settled
from connectors.pbi.shapes import clearly_pbis, plain_keys
from connectors.pbi.source import pbi_document
from pipeline.documents import Cursor, Document, Finding, Listing, Page, SourceType
from pipeline.errors import DocumentRejected

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
