"""Splitting of texts into words, alike for indexing and for queries."""

from __future__ import annotations

import re

# PostgreSQL's parser keeps hosts, paths and file names whole and so hides their parts (measured: nDCG .567
# against .604), hence all that is not a letter or digit becomes a blank before it sees the text.
_NOT_WORD = re.compile(r"[\W_]+")
_MOST_SIGNS = 0xFFFF
"""Largest code point whose translation is cached; rarer characters are looked up each time."""


class _WordSigns(dict[int, str]):
    """Table for `str.translate`, ten times as fast as a pattern: keeps letters and digits, makes all else a blank."""

    def __missing__(self, sign: int) -> str:
        letter = chr(sign) if chr(sign).isalnum() else " "
        if sign <= _MOST_SIGNS:
            self[sign] = letter
        return letter


_WORD_SIGNS = _WordSigns()
# HADOOP-123, ns/tool_call.v2, a.b.c: letters or digits joined by one mark. The look-behind keeps a text of one
# endless word from being tried at each of its characters.
_COMPOUND = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:\-][^\W_]+)+")
# Boundaries inside HttpServer, XMLHttpRequest and nameNode; look-arounds only, so there is nothing to backtrack.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Quick tests for such words. Most texts have none, and these patterns find that out in a fifth of the time, since they
# begin with rare characters.
_ANY_COMPOUND = re.compile(r"[._/:\-](?<=[^\W_].)(?=[^\W_])")
_ANY_HUMP = re.compile(r"[A-Z](?:(?<=[a-z0-9].)|[A-Z][a-z])")
_LONGEST = 80
"""Most characters of an identifier that gets extra words; longer ones are data, found by their parts alone."""


def searchable(text: str) -> str:
    """Convert `text` to words for `to_tsvector`: the parts of compounds, then each compound once more as one word.

    `HADOOP-123` gives `HADOOP 123 ... HADOOP123`, `HttpServer` gives `HttpServer ... Http Server`; a query
    treated the same way finds them whole and by part.
    """
    return searchable_with_length(text)[0]


def searchable_with_length(text: str) -> tuple[str, int]:
    """`searchable(text)`, and how many words the text has: the length that BM25 divides by."""
    words = text.translate(_WORD_SIGNS).split()
    plain = " ".join(words)
    compounds = {m.group() for m in _COMPOUND.finditer(text)} if _ANY_COMPOUND.search(text) else ()
    extra = [_NOT_WORD.sub("", c) for c in sorted(compounds) if len(c) <= _LONGEST]
    for word in sorted(set(words)) if _ANY_HUMP.search(plain) else ():
        if len(word) <= _LONGEST:
            humps = _HUMP.split(word)
            extra += humps if len(humps) > 1 else []
    return " ".join([plain, *extra]), len(words)
