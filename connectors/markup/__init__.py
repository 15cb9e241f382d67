"""Storage format of Confluence and the HTML of Azure DevOps boards, made Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from connectors.markup.conversion import Conversion
from connectors.markup.elements import HTML, STORAGE_FORMAT
from connectors.markup.inline import LinkResolver, Links
from connectors.markup.parsing import Element, parse

__all__ = ["Links", "Rendered", "to_markdown"]

_HANDLERS = {**HTML, **STORAGE_FORMAT}


class Rendered(NamedTuple):
    """A page as Markdown."""

    text: str
    """No trailing blanks outside of code, no two blank lines in a row outside of code, no line end at the end."""
    capped: bool
    """True if text is missing because the page is too large."""


def to_markdown(
    html: str,
    links: Links | None = None,
    *,
    most_characters: int = 5_000_000,
    content: Callable[[Element], Element] = lambda page: page,
) -> Rendered:
    """The page as Markdown, with all text a reader of the page sees, in its order.

    Takes any text without raising; only what `links` raises comes through. Broken markup is read as browsers
    read it. `content` gives the part of the page that is wanted, and may change it.
    """
    page, complete = parse(html)
    conversion = Conversion(_HANDLERS, LinkResolver(links), most_characters)
    conversion.render(content(page).children)
    return Rendered(text=conversion.result(), capped=conversion.full or not complete)
