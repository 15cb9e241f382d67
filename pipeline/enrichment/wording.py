"""Saying extracted sentences in other words: the port, its options, and the table of generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.enrichment.context import EXTRACT
from pipeline.errors import ConfigurationError, SearchError


class WordingUnusable(SearchError):
    """The model gave no wording that can be used; the extracted sentences stand."""

    transient = True


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A sentence of an answer as it was extracted."""

    key: str
    """Its place in the answer."""
    text: str
    title: str
    """Of its document."""
    cited: Mapping[int, str]
    """Number of a citation -> the quotation it rests on."""


@dataclass(frozen=True, kw_only=True)
class Worded:
    """What a model makes of a draft; nothing in it is believed before it was checked."""

    key: str
    text: str
    citations: tuple[int, ...]
    """Numbers of the citations that it says it rests on."""


class Wording(Protocol):
    """One model that words sentences."""

    name: str
    """As answers name it: a key of `GENERATORS`."""

    def words(self, item: str, drafts: Sequence[Draft], *, seconds: float) -> Sequence[Worded]:
        """The drafts said for whoever plans `item` (its title), in one call of so many seconds.

        A draft that is left out stays as it is.

        Raises:
            LarderError: there is no answer, or none that can be read; nothing is tried again.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class WordingOptions:
    """Which generator words answers, and how it is called."""

    generator: str = EXTRACT
    """A key of `GENERATORS`."""
    model: str = "gemini-2.5-flash"
    base_url: str = ""
    """Address of the service; empty: its public one."""
    api_key: str = field(default="", repr=False)
    """Secret."""
    timeout: float = 20.0
    """Seconds one call may take at most."""

    @property
    def identity(self) -> str:
        """Equal where the same sentences may be expected: key and timeout do not count, and nothing but extraction."""
        return EXTRACT if self.generator == EXTRACT else f"{self.generator}|{self.model}|{self.base_url}"


def _open_gemini(options: WordingOptions) -> Wording:
    from pipeline.enrichment.gemini_wording import GeminiWording

    return GeminiWording(options)


GENERATORS: Mapping[str, Callable[[WordingOptions], Wording | None]] = {
    EXTRACT: lambda _options: None,
    "gemini": _open_gemini,
}
"""Name in the configuration -> what builds it; each entry imports its libraries only when it is called."""


def open_wording(options: WordingOptions) -> Wording | None:
    """The wording the options name; None for extraction, which needs no model.

    Raises:
        ConfigurationError: unknown generator, or one that lacks its key.
    """
    build = GENERATORS.get(options.generator)
    if build is None:
        raise ConfigurationError(
            f"enrichment.generator is {options.generator!r}", fix=f"use one of {', '.join(GENERATORS)}"
        )
    return build(options)
