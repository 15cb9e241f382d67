"""Relative links between the Markdown files of one root."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from connectors.documents.headings import code_lines
from connectors.documents.options import SourceOptions
from connectors.files.walk import external_id

MAX_LINKS = 100
# Both are anchored on characters that are rare in text, so that they cost time linear in its length.
_INLINE = re.compile(r"(\]\(\s{0,10})(?:<([^<>\n]{1,1000})>|([^\s()<>]{1,1000}))")
_REFERENCE = re.compile(r"( {0,3}\[[^\]\n]{1,200}\]:[ \t]*)(?:<([^<>\n]{1,1000})>|(\S{1,1000}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, kw_only=True)
class LinkedText:
    """A text and the files of the same root it points to."""

    text: str
    """With the links made absolute if the root has a base url, else as it was."""
    links: tuple[str, ...]
    """Paths below the root, sorted, each once, at most MAX_LINKS."""


def resolve_links(text: str, relative: str, options: SourceOptions) -> LinkedText:
    """Follows links and images of the file at `relative`; what is in code is left alone."""
    if "](" not in text and "]:" not in text:
        return LinkedText(text=text, links=())
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
    for index, in_code in enumerate(code_lines(lines)):
        if not in_code and ("](" in lines[index] or "]:" in lines[index]):
            lines[index] = _outside_code(lines[index], absolute)
    links = sorted({external_id(hit) for hit in hits.values() if hit})
    return LinkedText(text="\n".join(lines), links=tuple(links[:MAX_LINKS]))


def _outside_code(line: str, absolute: Callable[[re.Match[str]], str]) -> str:
    """Every second piece between backticks is code."""
    pieces = line.split("`")
    pieces[0] = _REFERENCE.sub(absolute, pieces[0], count=1) if _REFERENCE.match(pieces[0]) else pieces[0]
    pieces[::2] = [_INLINE.sub(absolute, piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _target(target: str, relative: str, options: SourceOptions) -> str:
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
