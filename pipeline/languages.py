"""Languages whose words the keyword search brings to their stems, as PostgreSQL calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT = "english"

LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german", "greek",
    "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "portuguese",
    "romanian", "russian", "serbian", "simple", "spanish", "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
"""Those of PostgreSQL 15, the oldest one that is supported; `simple` is none at all: words stay as they are."""

KEY = "search_language"
"""Metadata of a document that was stemmed in another language than the default."""


def as_metadata(language: str) -> dict[str, str]:
    """What the metadata of a document in this language have to say: nothing if it is the default."""
    return {} if language == DEFAULT else {KEY: language}


def language_of(metadata: Mapping[str, Any]) -> str:
    """The language in which the words of a document with these metadata are stemmed; the default if none is known."""
    named = metadata.get(KEY)
    return named if isinstance(named, str) and named in LANGUAGES else DEFAULT
