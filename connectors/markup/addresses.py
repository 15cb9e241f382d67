"""What links and pictures point to: pages, attachments, users, addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from connectors.markup.inline import escape_text, safe_url
from connectors.markup.scanner import attributes

MOST_ATTACHMENTS = 1000
_RESOURCES = {
    **dict.fromkeys(("ri:page", "ri:blog-post"), ("page", ("ri:content-title",))),
    "ri:attachment": ("attachment", ("ri:filename",)),
    "ri:url": ("url", ("ri:value",)),
    "ri:space": ("space", ("ri:space-key",)),
    "ri:user": ("user", ("ri:account-id", "ri:userkey", "ri:username")),
}
"""Element -> kind of its target, and where its name stands."""
_ATTACHMENT_PATH = re.compile(r"/attachments/|/thumbnails/", re.IGNORECASE)


class Links(Protocol):
    """Finds addresses and names; each may return None, then only the label stays."""

    def page(self, title: str, space: str | None) -> str | None:
        """The address of a page; `space` None is the space of the page that is converted."""
        ...

    def attachment(self, name: str, page_title: str | None) -> str | None:
        """The address of a file; `page_title` None is the page that is converted."""
        ...

    def user(self, key: str) -> str | None:
        """The name to show for a user key, user name or account id."""
        ...

    def href(self, href: str) -> str | None:
        """A relative address made absolute; None drops it."""
        ...


@dataclass(slots=True)
class Target:
    """What stands in `ri:` elements within one link, picture or parameter."""

    kind: str = ""
    """page, attachment, user, space, url or nothing."""
    name: str = ""
    """Title, file name, user key, space key or address."""
    where: str | None = None
    """The space of a page, the page of an attachment."""

    def note(self, element: str, rest: str) -> None:
        """Takes one `ri:` element; the first counts, a page within an attachment says whose it is."""
        found = attributes(rest)
        kind, keys = _RESOURCES.get(element, ("", ()))
        name = next((found[key] for key in keys if found.get(key)), "")
        where = found.get("ri:space-key") if kind == "page" else None
        if self.kind == "attachment" and kind == "page":
            self.where = name
        elif not self.kind and name:
            self.kind, self.name, self.where = kind, name, where


@dataclass(slots=True)
class Addresses:
    """Asks a page's `Links`, remembers attachments, and keeps out what runs code."""

    links: Links | None
    attachments: dict[str, None] = field(default_factory=dict)

    def href(self, href: str) -> str | None:
        """The address for a link's target; None if only the label may stay."""
        safe = safe_url(href)
        if safe is None or self.links is None:
            return safe
        found = self.links.href(href.strip())
        return None if found is None else safe_url(found)

    def of(self, target: Target) -> str | None:
        """The address of what a link points to."""
        found: str | None = None
        if target.kind == "attachment":
            self.mention(target.name)
            found = self.links.attachment(target.name, target.where) if self.links else None
        elif target.kind == "page":
            found = self.links.page(target.name, target.where) if self.links else None
        elif target.kind == "url":
            return self.href(target.name)
        return None if found is None else safe_url(found)

    def label(self, target: Target) -> str:
        """What is shown of a target without a label; empty for users nobody knows."""
        if target.kind == "user":
            name = self.links.user(target.name) if self.links else None
            return f"@{name}" if name else ""
        return target.name

    def mention(self, name: str) -> None:
        """Remembers a file."""
        if name and len(self.attachments) < MOST_ATTACHMENTS:
            self.attachments.setdefault(name)

    def mention_in(self, href: str) -> None:
        """Remembers the file if the address is that of an attachment."""
        if _ATTACHMENT_PATH.search(href[:2000]):
            self.mention(file_name(href))


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


def picture(label: str, url: str | None) -> str:
    """A picture as Markdown; nothing if nothing is known of it."""
    text = escape_text(" ".join(label.split()), in_label=True)
    if url is None:
        return f"![{text}]" if text else ""
    return f"![{text}]({url})"
