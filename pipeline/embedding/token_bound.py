"""How many tokens a text has, or can have at most where the model's own tokenizer is not on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pipeline.embedding import readable
from pipeline.errors import ModelMissing

MARKS = 2
"""What a model puts before and behind each text."""

_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2,16}(?![A-Za-z0-9])")
_BLOB = re.compile(r"\S{100,}")
"""The shipped tokenizer takes it for a single unknown token; servers take it to pieces."""
_BLANKS = re.compile(r"(?<=\S) (?=\S)")


def most_tokens(text: str) -> int:
    """Tokens of the text, never fewer than a usual tokenizer makes of prose, code or logs.

    No tokenizer makes more tokens than a text has bytes. Two things are surely cheaper: a word of up to 16 Latin
    letters takes a token per two letters at most (about one per word in truth), and a blank between two words
    takes none. Digits, signs, letters mixed with digits and all other scripts count by the byte. On tickets, logs
    and manuals this is about twice the true number.
    """
    cheap = sum(len(word) // 2 for word in _WORD.findall(text)) + len(_BLANKS.findall(text))
    return len(text.encode("utf-8", "replace")) - cheap


def token_counter(*, english: bool) -> Callable[[str], int]:
    """Counts a text's tokens: exactly for a model with the shipped MiniLM's tokens, if that one is installed."""
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
    """The tokenizer of the shipped model, cutting nothing off; None if its file is not installed."""
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
