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


def said(language: str) -> dict[str, str]:
    """The metadata that tell it."""
    return {} if language == DEFAULT else {KEY: language}


def language_of(metadata: Mapping[str, Any]) -> str:
    """The language in which a document's words are stemmed."""
    named = metadata.get(KEY)
    return named if isinstance(named, str) and named in LANGUAGES else DEFAULT
