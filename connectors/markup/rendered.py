"""What a conversion may cost, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MarkupLimits:
    """Bounds of one conversion; what they cut is recorded in `Rendered`, never silent."""

    most_characters: int = 5_000_000
    """Of the Markdown."""
    most_depth: int = 400
    """Open elements; deeper ones lose their structure and keep their text."""
    seconds: float = 20.0
    """Wall time after which the rest of the markup is left out."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A page as Markdown."""

    text: str
    """No trailing blanks outside of code, no two blank lines in a row outside of code, no line end at the end."""
    capped: bool = False
    """True if text is missing because a limit was met."""
    depth_capped: bool = False
    """True if elements were nested too deeply to show how; their text is there."""
    attachments: tuple[str, ...] = ()
    """File names of attachments the page mentions, in the order of their first mention, each once."""
