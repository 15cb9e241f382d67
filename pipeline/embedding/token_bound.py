"""Token counts of texts, and an upper bound for models whose tokenizer is not on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pipeline.embedding import readable
from pipeline.errors import ModelMissing

MARKS = 2
"""Tokens that a model adds at the beginning and end of each text."""

_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2,16}(?![A-Za-z0-9])")
_BLOB = re.compile(r"\S{100,}")
"""A long run without white space: one unknown token for the shipped tokenizer, many tokens for servers."""
_BLANKS = re.compile(r"(?<=\S) (?=\S)")


def most_tokens(text: str) -> int:
    """Upper bound of the tokens that usual tokenizers make of prose, code or logs.

    No tokenizer makes more tokens than a text has bytes. Two kinds of text are cheaper: a word of up to 16 Latin
    letters takes at most a token per two letters (usually about one per word), and a blank between two words
    takes none. Digits, signs, letters mixed with digits and all other scripts count by the byte. On tickets, logs
    and manuals this is about twice the true number.
    """
    cheap = sum(len(word) // 2 for word in _WORD.findall(text)) + len(_BLANKS.findall(text))
    return len(text.encode("utf-8", "replace")) - cheap


def token_counter(*, english: bool) -> Callable[[str], int]:
    """A function that counts tokens: exact for a model with the shipped MiniLM's tokens, if that one is installed."""
    tokenizer = _shipped_tokenizer() if english else None
    if tokenizer is None:
        return most_tokens

    def count(text: str) -> int:
        clean = readable(text)
        blobs = sum(most_tokens(blob) for blob in _BLOB.findall(clean))
        return len(tokenizer.encode(clean, add_special_tokens=False).ids) + blobs

    return count


@lru_cache(maxsize=1)
def _shipped_tokenizer() -> Any:
    """The tokenizer of the shipped model, without truncation; None if its file is not installed."""
    from tokenizers import Tokenizer

    from pipeline.embedding.providers.minilm import TOKENIZER_FILE

    try:
        file = TOKENIZER_FILE.locate()
    except ModelMissing:
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
