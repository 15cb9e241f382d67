"""Sources of Markdown and plain text files."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import unquote

from connectors.documents.headings import code_lines, headings_of, title_of
from connectors.documents.values import is_blank
from connectors.files.front_matter import with_description
from connectors.files.markdown_text import readable_markdown
from connectors.files.options import FileOptions, MarkdownOptions
from connectors.files.source import FileSource, file_document, is_converted
from connectors.files.walk import FileText, external_id, is_file_below
from connectors.pbi.shapes import holds_pbis, is_step
from pipeline.documents import Document, SourceType
from pipeline.errors import DocumentRejected

MAX_LINKS = 100
MAX_TITLE_LINE = 120
# Both patterns start with characters that are rare in text, so that they take linear time.
_INLINE = re.compile(r"(\]\(\s{0,10})(?:<([^<>\n]{1,1000})>|([^\s()<>]{1,1000}))")
_REFERENCE = re.compile(r"( {0,3}\[[^\]\n]{1,200}\]:[ \t]*)(?:<([^<>\n]{1,1000})>|(\S{1,1000}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def resolve_links(text: str, relative: str, options: FileOptions) -> tuple[str, dict[str, bool]]:
    """The text of the file at `relative` with resolved links, and the paths below the root that it links to.

    Links to existing files become absolute if the source has a base URL; code is not changed. Each path is mapped to
    whether its file exists.
    """
    targets: dict[str, bool] = {}

    def absolute(match: re.Match[str]) -> str:
        target = match[2] or match[3]
        path = _target(target, relative)
        if path and path not in targets:
            targets[path] = is_file_below(options.root, path)
        if not options.base_url or not targets.get(path):
            return match[0]
        return match[1] + options.url_of(path) + target[len(_path(target)) :]

    lines = text.split("\n")
    for index, in_code in enumerate(code_lines(text)):
        if not in_code and ("](" in lines[index] or "]:" in lines[index]):
            lines[index] = _outside_code(lines[index], absolute)
    return "\n".join(lines), targets


def _outside_code(line: str, absolute: Callable[[re.Match[str]], str]) -> str:
    """The line with its links resolved, except in code: every second piece between backticks."""
    pieces = line.split("`")
    pieces[0] = _REFERENCE.sub(absolute, pieces[0], count=1) if _REFERENCE.match(pieces[0]) else pieces[0]
    pieces[::2] = [_INLINE.sub(absolute, piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _target(target: str, relative: str) -> str:
    """Path below the root of a link's target; empty if it is elsewhere."""
    path = unquote(_path(target))
    if not path or path.startswith("//") or _SCHEME.match(path):
        return ""
    start = "" if path.startswith("/") else posixpath.dirname(relative)
    hit = posixpath.normpath(posixpath.join(start, path.lstrip("/") if not start else path))
    return "" if hit.startswith(("../", "/")) or hit in ("..", ".") else hit


def _path(target: str) -> str:
    """The target without query and fragment."""
    return re.split("[#?]", target, maxsplit=1)[0]


def refuse_items(file: FileText) -> None:
    """Refuse a file of backlog items: as one document, it would be similar to every query about one of them.

    Raises:
        DocumentRejected: it is one.
    """
    if not file.external_id.lower().endswith(".json"):
        return
    with suppress(ValueError, RecursionError):
        data = json.loads(file.text)
        if is_step(data) or holds_pbis(data):
            fix = "name it in a source of type pbi_json, and in exclude of this one"
            raise DocumentRejected(f"{file.external_id} holds backlog items, not text", fix=fix)


class MarkdownSource(FileSource):
    """One document per Markdown file; its external id is the path below the root."""

    def __init__(self, options: MarkdownOptions) -> None:
        super().__init__(options, extractor="markdown-4", convert=partial(markdown_document, options))


def markdown_document(options: MarkdownOptions, file: FileText) -> Document | None:
    """The document of a Markdown file; None if it has no text, neither below its header nor in a description.

    Raises:
        DocumentRejected: as `refuse_items` does.
    """
    refuse_items(file)
    body = file.text if is_converted(file) else readable_markdown(file.text)
    title = title_of(list(headings_of(body)), text=body, file_stem=PurePosixPath(file.external_id).stem)
    file = replace(file, text=with_description(file.header.values, body))
    if not file.text:
        return None
    headings = list(headings_of(file.text))
    text, targets = resolve_links(file.text, file.relative, options)
    links = sorted({external_id(path) for path, is_there in targets.items() if is_there})[:MAX_LINKS]
    document = file_document(
        options,
        file,
        SourceType.DOCUMENTATION,
        title=title,
        text=text,
        headings=headings,
        metadata={"links": links} if links else {},
    )
    return replace(document, fingerprint=json.dumps(targets) if targets else "")


class TextSource(FileSource):
    """One document per text file; its external id is the path below the root."""

    def __init__(self, options: FileOptions) -> None:
        super().__init__(options, extractor="text-4", convert=partial(text_document, options))


def text_document(options: FileOptions, file: FileText) -> Document | None:
    """The document of a text file: its text unchanged, other formats converted to Markdown; None if it is blank.

    Raises:
        DocumentRejected: as `refuse_items` does.
    """
    refuse_items(file)
    if is_blank(file.text):
        return None
    headings = list(headings_of(file.text)) if is_converted(file) else []
    title = title_of(headings) or first_line_title(file.text)
    return file_document(options, file, SourceType.TEXT, title=title, headings=headings)


def first_line_title(text: str) -> str:
    """The first line with text, if a blank line follows and it is short enough for a title; else empty."""
    first, _, below = text.strip().partition("\n")
    stands_alone = not below.split("\n", 1)[0].strip()
    return " ".join(first.split()) if stands_alone and len(first.strip()) <= MAX_TITLE_LINE else ""
