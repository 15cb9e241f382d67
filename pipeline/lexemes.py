"""What the keyword index reads of a text: words, and code names both whole and in parts."""

from __future__ import annotations

import re

# PostgreSQL's parser keeps hosts, paths and file names whole and so hides their parts (measured: nDCG .567
# against .604), hence all that is not a letter or digit becomes a blank before it sees the text.
_NOT_WORD = re.compile(r"[\W_]+")
# HADOOP-123, ns/tool_call.v2, a.b.c: letters or digits joined by one mark.
_COMPOUND = re.compile(r"[^\W_]+(?:[._/:\-][^\W_]+)+")
_CAMEL = re.compile(r"\b(?:[A-Z]?[a-z0-9]+)(?:[A-Z]+[a-z0-9]*)+\b")
_HUMP = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_LONGEST = 80
"""Characters of an identifier kept whole; longer ones are paths or data, found by their parts."""


def searchable(text: str) -> str:
    """`text` as words for `to_tsvector`: parts of compounds, then each compound once more as one word.

    `HADOOP-123` gives `HADOOP 123 ... HADOOP123`; a query treated the same way finds it whole and by part.
    """
    compounds = {m.group() for m in _COMPOUND.finditer(text)}
    camels = {m.group() for m in _CAMEL.finditer(text)}
    extra = [_NOT_WORD.sub("", c) for c in sorted(compounds) if len(c) <= _LONGEST]
    for name in sorted(camels):
        if len(name) <= _LONGEST:
            extra += _HUMP.findall(name)
    plain = _NOT_WORD.sub(" ", text)
    return f"{plain} {' '.join(extra)}" if extra else plain


def word_count(text: str) -> int:
    """Words of a text, the length that BM25 divides by."""
    return len(_NOT_WORD.sub(" ", text).split())
