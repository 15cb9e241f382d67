"""Files as documents, one each: bytes to text, text to documents with what their front matter says, in pages."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import yaml
from frontmatter.default_handlers import YAMLHandler

from connectors.documents.decisions import (
    Evidence,
    code_lines,
    headings_of,
    kind_and_facts,
    plain_title,
    title_of,
)
from connectors.documents.options import Globs
from connectors.documents.values import (
    BoundedLoader,
    build_document,
    is_blank,
    json_able,
    parse_time,
    scalar_text,
    tags_of,
)
from connectors.files.options import FORMATS, FileOptions, MarkdownOptions
from connectors.files.walk import (
    FileListing,
    FileText,
    FoundFile,
    Skipped,
    blank,
    external_id,
    holds_nothing,
    list_files,
    open_problem,
    read_file,
)
from pipeline.documents import LEVEL, Cursor, Document, Finding, Listing, Page, Problem, SourceType, plural
from pipeline.errors import DocumentRejected

PAGE_ENTRIES = 100
PAGE_CHARACTERS = 4_000_000
"""A page is held in memory and stored in one transaction; a hundred large files would be too much for both."""
PAGE_SECONDS = 10.0
"""Each page stored renews the lease of the walk: files that take long to read come in smaller pages."""


Entry = Document | Problem
"""What became of one item."""


def resume_key(since: Cursor | None) -> str:
    """The last id of the page that left this cursor; empty if the walk starts over."""
    after = (since or {}).get("after")
    return after if isinstance(after, str) else ""


def pages_of(entries: Iterable[Entry]) -> Iterator[Page]:
    """Pages of entries that come sorted by id; the last page's cursor is empty: start over next time."""
    batch: list[Entry] = []
    size, begun = 0, time.monotonic()
    for entry in entries:
        late = bool(batch) and time.monotonic() - begun > PAGE_SECONDS
        if len(batch) >= PAGE_ENTRIES or size >= PAGE_CHARACTERS or late:
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
"""A file's document, or None if it holds no text; raises DocumentRejected if it is broken."""

SHOWN_PROBLEMS = 20


class FileSource:
    """Files below a root, in the order of their paths; they are compared by content, so a walk covers all.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    walks_all = True

    def __init__(self, options: FileOptions, *, extractor: str, convert: Convert) -> None:
        self.extractor = extractor
        self._options = options
        self._convert = convert
        self._globs = Globs(options.paths, options.exclude)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """All items behind the cursor, sorted by id; a finished walk starts over."""
        return pages_of(self._entries(resume_key(since)))

    def ids(self, since: Cursor | None = None) -> Listing:  # noqa: ARG002 (one piece)
        """The paths of all matching files, readable or not, without those that became empty."""
        listing = self._listing()
        living = {f.external_id for f in listing.files if not holds_nothing(f, listing.root)}
        return Listing(ids=frozenset(living) | listing.present, complete=listing.complete)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These items as they are now: those of a whole walk; what the walk does not bring is gone."""
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
        """The root, each glob with its number of files, and what could not be read; opens each file once."""
        listing = self._listing()
        detail = f"can be listed; {plural(len(listing.files), 'file matches', 'files match')}"
        found = [Finding(ok=True, subject=f"root {listing.root}", detail=detail)]
        for index, pattern in enumerate(self._globs.include):
            count = sum(index in file.patterns for file in listing.files)
            fix = "" if count else f"correct the glob, or put files below {listing.root}"
            detail = f"matches {plural(count, 'file')}"
            found.append(Finding(ok=bool(count), subject=f"paths {pattern.text}", detail=detail, fix=fix))
        problems = [(p.external_id, p.reason) for p in (*listing.failed, *listing.skipped)]
        problems += [(f.external_id, why) for f in listing.files if (why := open_problem(f, listing.root))]
        fix = "see what is said about it, or add it to exclude"
        found += [
            Finding(ok=False, subject=name, detail=why, fix=fix) for name, why in problems[:SHOWN_PROBLEMS]
        ]
        if len(problems) > SHOWN_PROBLEMS:
            more = f"{len(problems) - SHOWN_PROBLEMS} more files and folders cannot be read"
            found.append(Finding(ok=False, subject="...", detail=more, fix="mend those shown first"))
        return found

    def stamp(self) -> str:
        """A hash over names, times, sizes and inodes of the matching files."""
        return self._listing().stamp

    def _listing(self) -> FileListing:
        return list_files(self._options, self._globs)

    def _entries(self, after: str) -> Iterator[Entry]:
        listing = self._listing()
        for item in sorted(self._items(listing), key=attrgetter("external_id")):
            if item.external_id > after:
                entry = self._entry(item, listing.root) if isinstance(item, FoundFile) else item
                if entry is not None:
                    yield entry

    def _items(self, listing: FileListing) -> Iterable[Entry | FoundFile]:
        """What a walk gives, in any order: files still to be read, and what is known already."""
        return [*listing.files, *listing.failed, *listing.skipped]

    def _entry(self, found: FoundFile, root: str) -> Entry | None:
        """The document of a file, or why there is none; None if it is gone."""
        file = read_file(found, root, self._options)
        if not isinstance(file, FileText):
            return file
        try:
            document = build_document(lambda: self._convert(_as_markdown(file)), file.external_id)
            return document or blank(file.external_id, file.url)
        except DocumentRejected as error:
            return Problem(external_id=file.external_id, reason=str(error), url=file.url)


def _as_markdown(file: FileText) -> FileText:
    if not _is_converted(file):
        return file
    from connectors.files.formats import markdown_of

    return replace(file, text=markdown_of(file.external_id, file.text))


def _is_converted(file: FileText) -> bool:
    return PurePosixPath(file.external_id).suffix.lower() in FORMATS


def file_document(
    options: FileOptions,
    file: FileText,
    evidence: Evidence,
    source_type: SourceType,
    *,
    title: str,
    text: str = "",
    own: Mapping[str, Any] = MappingProxyType({}),
    created: datetime | None = None,
    updated: datetime | None = None,
) -> Document:
    """The document of one file.

    Args:
        options: `source_type` and `metadata` of the source.
        file: gives id, address, and the times if there are no others.
        evidence: decides about the kind; also text and tags.
        source_type: where the source is given none.
        title: the file's name without its suffix if empty.
        text: replaces that of the evidence.
        own: metadata the file gives of itself; it goes before that of the source.
        created: what the file says.
        updated: what the file says.
    """
    source_type = options.source_type or source_type
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    return Document(
        external_id=file.external_id,
        title=title or PurePosixPath(file.external_id).stem,
        text=text or evidence.text,
        source_type=source_type,
        kind=kind,
        url=file.url,
        tags=tuple(evidence.tags),
        metadata=options.metadata_of({**own, **facts, **file_metadata(file)}),
        created_at=created or file.modified,
        updated_at=updated or file.modified,
    )


def file_metadata(file: FileText) -> dict[str, str]:
    """`source_path`, and `encoding` if it is not UTF-8."""
    encoding = {} if file.encoding == "utf-8" else {"encoding": file.encoding}
    return {"source_path": file.external_id, **encoding}


# Markdown and plain text ---------------------------------------------------------------------------

MAX_LINKS = 100
MAX_TITLE_LINE = 120
ALWAYS_KEPT = ("author", "date", "created", "updated", "acl", LEVEL)
_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z_][\w .-]*:(?:\s|$)")
# Both are anchored on characters that are rare in text, so that they cost time linear in its length.
_INLINE = re.compile(r"(\]\(\s{0,10})(?:<([^<>\n]{1,1000})>|([^\s()<>]{1,1000}))")
_REFERENCE = re.compile(r"( {0,3}\[[^\]\n]{1,200}\]:[ \t]*)(?:<([^<>\n]{1,1000})>|(\S{1,1000}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, kw_only=True)
class FrontMatter:
    """What the head says and the text below it."""

    values: Mapping[str, Any]
    """As YAML gives them, keys as text; dates that no calendar has stay text."""
    body: str


def split_front_matter(text: str, name: str) -> FrontMatter:
    """Front matter and body of a file; `name` is the file for messages.

    Raises:
        DocumentRejected: the block is no YAML, no mapping, or never closed; the message gives the line.
    """
    none = FrontMatter(values={}, body=text)
    lines = text.split("\n", 2)
    if lines[0].rstrip() != "---":
        return none
    try:
        _, head, body = _BOUNDARY.split(text, 2)
    except ValueError:
        if len(lines) > 1 and _KEY.match(lines[1]):
            found = f"{name}: the front matter opened at line 1 is never closed"
            raise DocumentRejected(found, fix="add a line ---") from None
        return none  # a lone ruler
    try:
        return FrontMatter(values=_values(head, name), body=body.strip("\n"))
    except DocumentRejected:
        if lines[1].strip():
            raise
        return none  # a ruler with a blank line below it, and the block is just text


def _values(head: str, name: str) -> dict[str, Any]:
    """What the block of front matter says.

    Raises:
        DocumentRejected: it is no YAML, or no mapping; the message gives the line.
    """
    try:
        values = YAMLHandler().load(head, Loader=BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        # The block starts at the end of line 1, so the parser's line 0 is ours.
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1"
        found = f"{name}: the front matter is not valid YAML at {where}"
        raise DocumentRejected(found, fix="correct it") from None
    if not isinstance(values, Mapping | None):
        found = f"{name}: the front matter from line 1 is a {type(values).__name__}, not a mapping"
        raise DocumentRejected(found, fix="write it as key: value lines")
    return {str(k): v for k, v in (values or {}).items()}


def resolve_links(text: str, relative: str, options: FileOptions) -> tuple[str, list[str]]:
    """The text of the file at `relative`, and the files of the same root that it links to or shows.

    Links are made absolute if the root has a base url, what is in code is left alone. The files are paths
    below the root, sorted, each once, at most MAX_LINKS.
    """
    hits: dict[str, str] = {}  # by link as written: a text that repeats one asks the disk once

    def absolute(match: re.Match[str]) -> str:
        target = match[2] or match[3]
        if target not in hits:
            hits[target] = _target(target, relative, options)
        hit = hits[target]
        if not hit or not options.base_url:
            return match[0]
        return match[1] + options.url_of(hit) + target[len(_path(target)) :]

    lines = text.split("\n")
    for index, in_code in enumerate(code_lines(text)):
        if not in_code and ("](" in lines[index] or "]:" in lines[index]):
            lines[index] = _outside_code(lines[index], absolute)
    links = sorted({external_id(hit) for hit in hits.values() if hit})
    return "\n".join(lines), links[:MAX_LINKS]


def _outside_code(line: str, absolute: Callable[[re.Match[str]], str]) -> str:
    """Every second piece between backticks is code."""
    pieces = line.split("`")
    pieces[0] = _REFERENCE.sub(absolute, pieces[0], count=1) if _REFERENCE.match(pieces[0]) else pieces[0]
    pieces[::2] = [_INLINE.sub(absolute, piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _target(target: str, relative: str, options: FileOptions) -> str:
    """The path below the root a link leads to; empty if it leads elsewhere or nowhere."""
    path = unquote(_path(target))
    if not path or path.startswith("//") or _SCHEME.match(path):
        return ""
    start = "" if path.startswith("/") else posixpath.dirname(relative)
    hit = posixpath.normpath(posixpath.join(start, path.lstrip("/") if not start else path))
    if hit.startswith(("../", "/")) or hit in ("..", "."):
        return ""
    return hit if os.path.isfile(options.root / hit) else ""  # noqa: PTH113 (also False for impossible names)


def _path(target: str) -> str:
    """The target without query and fragment."""
    return re.split("[#?]", target, maxsplit=1)[0]


class MarkdownSource(FileSource):
    """One document per Markdown file; its external id is the path below the root."""

    def __init__(self, options: MarkdownOptions) -> None:
        super().__init__(options, extractor="markdown-3", convert=partial(markdown_document, options))


def markdown_document(options: MarkdownOptions, file: FileText) -> Document | None:
    """The document of one file; None if there is no text below the front matter.

    Raises:
        DocumentRejected: the front matter is broken.
    """
    front = split_front_matter(file.text, file.external_id)
    if not front.body.strip():
        return None
    headings = list(headings_of(front.body))
    tags = tags_of(front.values.get("tags"))
    evidence = Evidence(
        path=file.external_id,
        above=options.root_folders,
        text=front.body,
        front_matter=front.values,
        tags=tags,
        headings=headings,
    )
    text, links = resolve_links(front.body, file.relative, options)
    names = dict.fromkeys((*options.frontmatter_fields, *ALWAYS_KEPT))
    kept = {name: json_able(front.values[name]) for name in names if front.values.get(name) is not None}
    if "tags" in kept:
        kept["tags"] = list(tags)
    created, updated = _times(front.values, file.modified)
    return file_document(
        options,
        file,
        evidence,
        SourceType.DOCUMENTATION,
        title=plain_title(scalar_text(front.values.get("title"))) or title_of(headings),
        text=text,
        own={**kept, **({"links": links} if links else {})},
        created=created,
        updated=updated,
    )


def _times(values: Mapping[str, Any], modified: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Created and updated: what the author says, else the file's time, never created after updated."""
    updated = parse_time(values.get("updated")) or modified
    created = parse_time(values.get("created")) or parse_time(values.get("date")) or modified
    if created and updated and created > updated:
        created, updated = (updated, updated) if created == modified else (created, created)
    return created, updated


class TextSource(FileSource):
    """One document per text file; its external id is the path below the root."""

    def __init__(self, options: FileOptions) -> None:
        super().__init__(options, extractor="text-3", convert=partial(text_document, options))


def text_document(options: FileOptions, file: FileText) -> Document | None:
    """The document of one file: the whole text as it is, that of other formats as Markdown."""
    if is_blank(file.text):
        return None
    headings = list(headings_of(file.text)) if _is_converted(file) else []
    evidence = Evidence(path=file.external_id, above=options.root_folders, text=file.text, headings=headings)
    title = title_of(headings) or first_line_title(file.text)
    return file_document(options, file, evidence, SourceType.TEXT, title=title)


def first_line_title(text: str) -> str:
    """The first line with text, if it stands alone and is short enough for a title; else empty."""
    first, _, rest = text.strip().partition("\n")
    alone = not rest.split("\n", 1)[0].strip()
    return " ".join(first.split()) if alone and len(first.strip()) <= MAX_TITLE_LINE else ""
