"""Storage format of Confluence and the HTML of Azure DevOps boards, made Markdown."""

from __future__ import annotations

from connectors.markup.conversion import Conversion, MarkupLimits, Rendered
from connectors.markup.elements import HTML
from connectors.markup.inline import Links
from connectors.markup.storage_format import STORAGE_FORMAT

__all__ = ["Links", "MarkupLimits", "Rendered", "to_markdown"]

_HANDLERS = {**HTML, **STORAGE_FORMAT}


def to_markdown(html: str, links: Links | None = None, *, limits: MarkupLimits = MarkupLimits()) -> Rendered:  # noqa: B008 (frozen)
    """The page as Markdown, with all text a reader of the page sees, in its order.

    Takes any text without raising; only what `links` raises comes through. Broken markup is read as browsers
    read it. Secrets in addresses are not looked for: redact the result.
    """
    return Conversion(_HANDLERS, links, limits).run(html)
