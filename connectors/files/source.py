"""Base of the sources that read files: from files to documents with metadata of their headers, in pages."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from connectors.documents.decisions import Evidence, decision_facts, kind_and_facts, names_file
from connectors.documents.fields import STATUS
from connectors.documents.globs import Globs
from connectors.documents.headings import Heading, letters
from connectors.documents.options import LINKED_PATH
from connectors.documents.values import (
    build_document,
    json_able,
    parse_day,
)
from connectors.files.decision_log import records_of
from connectors.files.front_matter import (
    header_fields,
    header_tags,
    header_text,
    header_times,
    read_front_matter,
)
from connectors.files.options import BINARY, FORMATS, FileOptions
from connectors.files.walk import (
    FileListing,
    FileText,
    FoundFile,
    Signature,
    Skipped,
    blank,
    holds_nothing,
    is_file_below,
    list_files,
    open_problem,
    read_file,
)
from connectors.pbi.tasks import backlog_item_facts, is_backlog_item
from pipeline.documents import (
    ACL,
    ADMINS_ALONE,
    LEVEL,
    READING_NOTE,
    Cursor,
    Document,
    Finding,
    Kind,
    Listing,
    Page,
    Problem,
    SourceType,
)
from pipeline.documents.plain_text import plain_keys, plain_words, plural
from pipeline.errors import DocumentRejected

PAGE_ENTRIES = 100
PAGE_CHARACTERS = 4_000_000
"""Most characters of a page, because it is held in memory and stored in one transaction."""
PAGE_SECONDS = 10.0
"""Most seconds to fill a page: each stored page renews the lease of the walk, so slow files come in smaller pages."""


Entry = Document | Problem
"""Result of one item: its document, or the problem with it."""


def resume_key(since: Cursor | None) -> str:
    """Last id of the page that returned this cursor; empty if the walk starts over."""
    after = (since or {}).get("after")
    return after if isinstance(after, str) else ""


def pages_of(entries: Iterable[Entry]) -> Iterator[Page]:
    """Pages of entries, which are sorted by id; the last cursor is empty, so that the next walk starts over."""
    batch: list[Entry] = []
    size, begun = 0, time.monotonic()
    for entry in entries:
        timed_out = bool(batch) and time.monotonic() - begun > PAGE_SECONDS
        if len(batch) >= PAGE_ENTRIES or size >= PAGE_CHARACTERS or timed_out:
            yield _page(batch, {"after": batch[-1].external_id})
            batch, size, begun = [], 0, time.monotonic()
        batch.append(entry)
        size += len(entry.text) if isinstance(entry, Document) else 0
    yield _page(batch, {})


def _page(batch: list[Entry], cursor: Cursor) -> Page:
    return Page(
        cursor=cursor,
        documents=tuple(e for e in batch if isinstance(e, Document)),
        failed=tuple(e for e in batch if isinstance(e, Problem) and not isinstance(e, Skipped)),
        skipped=tuple(e for e in batch if isinstance(e, Skipped)),
    )


Convert = Callable[[FileText], Document | None]
"""Function from a file to its document, or None if it has no text; raises DocumentRejected if it is broken."""

SHOWN_PROBLEMS = 20


class FileSource:
    """Files below a root, in the order of their paths; without a change feed, each walk covers all of them.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    walks_all = True

    def __init__(self, options: FileOptions, *, extractor: str, convert: Convert) -> None:
        self.extractor = extractor
        self._options = options
        self._convert = convert
        self._globs = Globs(options.paths, options.exclude)
        self._outcome_key = f"{extractor} {options.outcome_hash}"
        self._compared: FileListing | None = None
        self._unchanged: frozenset[str] = frozenset()

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> int | None:
        """Leave files with an unchanged fingerprint out of `pages`; returns their number.

        Later calls use the same listing. Files without a document, or with a note on reading, are read and reported
        each time.
        """
        listing = self._compared = list_files(self._options, self._globs)
        is_there = cache(partial(is_file_below, self._options.root))

        def is_same(file: FoundFile) -> bool:
            mark, _, targets = fingerprints.get(file.external_id, "").partition(" ")
            if mark != self._mark(file.signature()):
                return False
            return not targets or all(is_there(path) is was for path, was in json.loads(targets).items())

        self._unchanged = frozenset(f.external_id for f in listing.files if is_same(f))
        return len(self._unchanged)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of all items after the cursor, sorted by id; after a finished walk, from the start."""
        return pages_of(self._entries(resume_key(since)))

    def ids(self, since: Cursor | None = None) -> Listing:  # noqa: ARG002 (one piece)
        """Ids of all matching files, readable or not, without those that are empty."""
        listing = self._listing()
        files = (
            f
            for f in self._items(listing)
            if not isinstance(f, FoundFile)
            or f.external_id in self._unchanged
            or not holds_nothing(f, listing.root)
        )
        living = {f.external_id for f in files if not isinstance(f, Problem)}
        return Listing(ids=frozenset(living) | listing.present, complete=listing.complete)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Pages of these items, from a full walk; ids that the walk does not return are deleted."""
        missing = set(ids)
        for page in self.pages(None):
            documents = tuple(d for d in page.documents if d.external_id in missing)
            failures = tuple(p for p in page.failed if p.external_id in missing)
            missing -= {d.external_id for d in documents} | {p.external_id for p in failures}
            if documents or failures:
                yield Page(cursor={}, documents=documents, failed=failures)
        if missing:
            yield Page(cursor={}, deleted=tuple(sorted(missing)))

    def check(self) -> list[Finding]:
        """Findings on the root, each glob with its number of files, and unreadable files; opens each file once."""
        listing = self._listing()
        detail = f"can be listed; {plural(len(listing.files), 'file matches', 'files match')}"
        findings = [Finding(ok=True, subject=f"root {listing.root}", detail=detail)]
        for index, pattern in enumerate(self._globs.include):
            count = sum(index in file.patterns for file in listing.files)
            fix = "" if count else f"correct the glob, or put files below {listing.root}"
            detail = f"matches {plural(count, 'file')}"
            findings.append(Finding(ok=bool(count), subject=f"paths {pattern.text}", detail=detail, fix=fix))
        problems = [(p.external_id, p.reason) for p in listing.failed]
        problems += [(f.external_id, why) for f in listing.files if (why := open_problem(f, listing.root))]
        fix = "do what the message says, or add it to exclude"
        findings += [
            Finding(ok=False, subject=name, detail=problem, fix=fix)
            for name, problem in problems[:SHOWN_PROBLEMS]
        ]
        if len(problems) > SHOWN_PROBLEMS:
            omitted = f"{len(problems) - SHOWN_PROBLEMS} more files and folders cannot be read"
            findings.append(
                Finding(ok=False, subject="...", detail=omitted, fix="correct the ones above first")
            )
        return findings

    def stamp(self) -> str:
        """Hash over names, times, sizes and inodes of the matching files."""
        return self._listing().stamp

    def _listing(self) -> FileListing:
        return self._compared or list_files(self._options, self._globs)

    def _mark(self, signature: Signature) -> str:
        """Hash of a file's signature and all options: another one if the file or its document may differ."""
        return hashlib.sha256(f"{self._outcome_key} {signature}".encode()).hexdigest()[:20]

    def _with_fingerprint(self, document: Document, file: FileText) -> Document:
        """The document with its fingerprint: hash of the file, targets of links; empty if it must be read each time."""
        if not file.signature or READING_NOTE in document.metadata:
            return replace(document, fingerprint="")
        return replace(document, fingerprint=f"{self._mark(file.signature)} {document.fingerprint}".strip())

    def _entries(self, after: str) -> Iterator[Entry]:
        listing = self._listing()
        for item in sorted(self._items(listing), key=attrgetter("external_id")):
            is_file = isinstance(item, FoundFile)
            if item.external_id <= after or (is_file and item.external_id in self._unchanged):
                continue
            entry = self._entry(item, listing.root) if isinstance(item, FoundFile) else item
            if entry is not None:
                yield entry

    def _items(self, listing: FileListing) -> Iterable[Entry | FoundFile]:
        """Items of a walk, in any order: files still to be read, documents of logs, and problems."""
        for file in listing.files:
            logs = names_file(self._options.decisions, file.external_id, self._options.root_folders)
            yield from (logs and self._logged(file, listing.root)) or (file,)
        yield from listing.failed

    def _logged(self, found_file: FoundFile, root: str) -> list[Document]:
        """Documents of the records in a decision log; empty if the file holds fewer than two."""
        read = read_file(found_file, root, self._options)
        if not isinstance(read, FileText):
            return []
        with suppress(DocumentRejected):  # reported when the file is read as one document
            file = _as_markdown(_without_header(read))
            documents = []
            for record in records_of(file.text):
                name = f"{file.external_id}#{record.anchor}"
                document = build_document(partial(self._convert, replace(file, text=record.text)), name)
                if document:
                    url = f"{document.url}#{record.anchor}" if document.url else ""
                    day = {"decided_at": parse_day(record.title)}
                    metadata = {**{key: text for key, text in day.items() if text}, **document.metadata}
                    converted = replace(
                        document, external_id=name, title=record.title, url=url, fingerprint=""
                    )
                    documents.append(replace(converted, metadata=metadata))
            return documents
        return []

    def _entry(self, found_file: FoundFile, root: str) -> Entry | None:
        """The document of a file, or the problem with it; None if the file is gone."""
        file = read_file(found_file, root, self._options)
        if not isinstance(file, FileText):
            return file
        try:
            document = build_document(
                lambda: self._convert(_as_markdown(_without_header(file))), file.external_id
            )
            return self._with_fingerprint(document, file) if document else blank(file.external_id, file.url)
        except DocumentRejected as error:
            return Problem(external_id=file.external_id, reason=str(error), url=file.url)


def _without_header(file: FileText) -> FileText:
    """The file with its header parsed and taken out of the text."""
    if file.external_id.lower().endswith(BINARY):
        return file
    header = read_front_matter(file.text)
    return replace(file, text=header.body, header=header)


def _as_markdown(file: FileText) -> FileText:
    if not is_converted(file):
        return file
    from connectors.files.formats import markdown_of

    return replace(file, text=markdown_of(file.external_id, file.text))


def is_converted(file: FileText) -> bool:
    """True for a file of one of the FORMATS, which are converted to Markdown."""
    return PurePosixPath(file.external_id).suffix.lower() in FORMATS


def file_document(
    options: FileOptions,
    file: FileText,
    source_type: SourceType,
    *,
    title: str,
    text: str = "",
    headings: Sequence[Heading] = (),
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Document:
    """The document of one file, with tags, times, rights and kind from its header.

    Args:
        options: `source_type`, `kind` and `metadata` of the source.
        file: its text, header, id and address, and its times if the header has none.
        source_type: used if the source sets none.
        title: used if the header has none; if empty, the file's name without its ending, or for an index or README
            the name of its folder.
        text: replaces that of the file.
        headings: of the text.
        metadata: of the file; overrides that of the source.
    """
    source_type = options.source_type or source_type
    header = file.header.values
    evidence = Evidence(
        path=file.external_id,
        above=options.root_folders,
        text=file.text,
        front_matter=header,
        tags=header_tags(header),
        headings=headings,
    )
    kind, facts = _kind_and_facts(options, evidence, source_type)
    created, updated = header_times(header, file.modified, prefer_created=kind is Kind.WORK)
    header_title, name = (header_text(plain_keys(header).get(key)) for key in ("title", "name"))
    of_template = letters(header_title) in _TITLES_OF_TEMPLATES
    titles = (
        "" if of_template else plain_words(header_title),
        header_text(title),
        plain_words(name),
        _name_of(file.external_id),
    )
    return Document(
        external_id=file.external_id,
        title=next(filter(None, titles)),
        text=text or file.text,
        source_type=source_type,
        kind=kind,
        url=file.url,
        tags=tuple(evidence.tags),
        metadata=options.metadata_of(
            {**header_fields(header, options.kept_fields), **metadata, **facts, **file_metadata(file)}
        ),
        created_at=created,
        updated_at=updated,
    )


_TITLES_OF_TEMPLATES = frozenset(
    {
        "neatenhancementidea",
        "keptemplate",
        "yourshortdescriptivetitle",
        "shortdescriptivetitle",
        "title",
        "untitled",
    }
)
"""Titles of templates that are not filled in, reduced to their letters."""
_FRONT_PAGES = frozenset({"index", "readme", "_index"})
"""Names of files that describe their folder."""


def _name_of(external_id: str) -> str:
    """Name of a file without its ending; of a front page, the name of its folder, unless that is the root."""
    path = PurePosixPath(external_id)
    front = path.stem.partition(".")[0].lower() in _FRONT_PAGES
    return path.parent.name if front and path.parent.name else path.stem


def _kind_and_facts(
    options: FileOptions, evidence: Evidence, source_type: SourceType
) -> tuple[Kind, dict[str, Any]]:
    """Kind and its metadata: as set for the source, else work by the header, else by the rules of decisions."""
    header = evidence.front_matter
    if options.kind is Kind.WORK or (options.kind is None and is_backlog_item(evidence.path, header)):
        status = next(
            iter(evidence.fields.values_of(STATUS)), ""
        )  # in the head of the text, if there is no header
        stated = {"status": status} if status else {}
        return Kind.WORK, {**stated, **backlog_item_facts(evidence.path, header, evidence.text)}
    if options.kind is Kind.DECISION:
        return Kind.DECISION, dict(decision_facts(evidence))
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    return (options.kind, {}) if options.kind else (kind, dict(facts))


def file_metadata(file: FileText) -> dict[str, Any]:
    """`source_path`, `encoding` if not UTF-8, a note on unread parts of the header, and its rights."""
    header = file.header
    rights = {key: json_able(header.values[key]) for key in (LEVEL, ACL) if key in header.values}
    note = header.note
    if ACL in rights and (not isinstance(rights[ACL], list) or rights[ACL] != header.values[ACL]):
        note = note or "acl is not a list of layers of readers, or it is too long"
    elif not header.rights_unread:
        return {**_place(file), **({READING_NOTE: note} if note else {}), **rights}
    return {**_place(file), READING_NOTE: note, ACL: [[ADMINS_ALONE]]}


def _place(file: FileText) -> dict[str, str]:
    optional = {"encoding": file.encoding if file.encoding != "utf-8" else "", LINKED_PATH: file.linked_path}
    return {"source_path": file.external_id, **{key: value for key, value in optional.items() if value}}
