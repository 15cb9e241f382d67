"""What links and pictures point to: addresses, files, pages and people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from connectors.markup.parsing import Element

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS_AND_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b\ufeff]+")
_RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob", "about"})
_IN_URL = str.maketrans({"(": "%28", ")": "%29", "<": "%3C", ">": "%3E", '"': "%22", "\\": "%5C", "`": "%60"})


class Links(Protocol):
    """Finds addresses and names; each may return None, then only the label stays."""

    def page(self, title: str, space: str | None) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The address of a page; `space` None is the space of the page that is converted."""
        return None

    def attachment(self, name: str, page_title: str | None) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The address of a file; `page_title` None is the page that is converted."""
        return None

    def user(self, key: str) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The name to show for a user key, user name or account id."""
        return None

    def href(self, href: str) -> str | None:
        """A relative address made absolute; None drops it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a link or a picture of the storage format points to."""

    label: str = ""
    """Shown if there is no other; empty for users nobody knows."""
    url: str | None = None


@dataclass(frozen=True)
class LinkResolver:
    """Asks a page's `Links`, and keeps out what runs code."""

    links: Links | None

    def href(self, href: str) -> str | None:
        """The address for a link's target; None if only the label may stay."""
        safe = _safe_url(href)
        return safe if safe is None or self.links is None else _safe_url(self.links.href(href.strip()))

    def page(self, title: str, space: str | None) -> Target:
        """A page by its title."""
        return Target(label=title, url=_safe_url(self.links.page(title, space) if self.links else None))

    def file(self, name: str, page_title: str | None = None) -> Target:
        """A file attached to a page."""
        url = self.links.attachment(name, page_title) if self.links else None
        return Target(label=name, url=_safe_url(url))

    def target(self, elements: Iterable[Element]) -> Target:
        """What the first `ri:` element among these names."""
        for element in elements:
            get = element.get
            if title := get("ri:content-title"):
                return self.page(title, element.attributes.get("ri:space-key"))
            if name := get("ri:filename"):
                return self.file(
                    name, next(filter(None, (e.get("ri:content-title") for e in element.within())), None)
                )
            if address := get("ri:value"):
                return Target(label=address, url=self.href(address))
            if key := get("ri:account-id", "ri:userkey", "ri:username"):
                user = self.links.user(key) if self.links else None
                return Target(label=f"@{user}" if user else "")
            if space := get("ri:space-key"):
                return Target(label=space)
        return Target()


def _safe_url(url: str | None) -> str | None:
    """The address as it may stand in a link; None for an empty one, a mere `#place`, or one that runs code."""
    text = (url or "").strip()
    scheme = _SCHEME.match(_BLANKS_AND_CONTROLS.sub("", text[:200]))
    if not text or text.startswith("#") or (scheme and scheme[1].lower() in _RUNS_CODE):
        return None
    return "%20".join(text.split()).translate(_IN_URL)


def file_name(href: str) -> str:
    """The name of the file an address leads to: its `fileName`, or the last part of its path."""
    try:
        parts = urlsplit(href[:4000].strip())
    except ValueError:  # brackets that are no IPv6 address
        return ""
    if parts.scheme.lower() == "data":
        return ""
    query = {key.lower(): values for key, values in parse_qs(parts.query).items()}
    named = query.get("filename")
    return named[0] if named else unquote(parts.path.rsplit("/", 1)[-1])
