"""What the keyword index reads of a text: words, and code names both whole and in parts."""

from __future__ import annotations

import re

# PostgreSQL's parser keeps hosts, paths and file names whole and so hides their parts (measured: nDCG .567
# against .604), hence all that is not a letter or digit becomes a blank before it sees the text.
_NOT_WORD = re.compile(r"[\W_]+")
# HADOOP-123, ns/tool_call.v2, a.b.c: letters or digits joined by one mark. The look-behind keeps a text of one
# endless word from being tried at each of its characters.
_COMPOUND = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:\-][^\W_]+)+")
# Where HttpServer, XMLHttpRequest and nameNode come apart; a look at both sides only, so nothing to backtrack.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Whether a text holds any such word at all: most hold none, and looking word by word was a fifth of an upsert.
_ANY_HUMP = re.compile(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]")
_LONGEST = 80
"""Characters of an identifier that gets extra words; longer ones are data, found by what stands between marks."""


def searchable(text: str) -> str:
    """`text` as words for `to_tsvector`: parts of compounds, then each compound once more as one word.

    `HADOOP-123` gives `HADOOP 123 ... HADOOP123`, `HttpServer` gives `HttpServer ... Http Server`; a query
    treated the same way finds them whole and by part.
    """
    return counted(text)[0]


def counted(text: str) -> tuple[str, int]:
    """`searchable(text)` and `word_count(text)`, for one look at the text instead of two."""
    plain = _NOT_WORD.sub(" ", text).strip()
    words = plain.split()
    compounds = {m.group() for m in _COMPOUND.finditer(text)}
    extra = [_NOT_WORD.sub("", c) for c in sorted(compounds) if len(c) <= _LONGEST]
    for word in sorted(set(words)) if _ANY_HUMP.search(plain) else ():
        if len(word) <= _LONGEST:
            humps = _HUMP.split(word)
            extra += humps if len(humps) > 1 else []
    return " ".join([plain, *extra]), len(words)


def word_count(text: str) -> int:
    """Words of a text, the length that BM25 divides by."""
    return counted(text)[1]
