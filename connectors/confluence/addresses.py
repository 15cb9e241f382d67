"""Addresses for people: of pages, of files, and of what a page's text links to."""

from __future__ import annotations

from urllib.parse import quote, quote_plus, unquote_plus, urlencode, urljoin, urlsplit

from connectors.confluence.item import Item
from connectors.documents.redaction import redact

# `/display/SPACE/Title` cannot carry these; Confluence itself falls back to the longer form then.
_UNFIT = frozenset('/\\?%;+&"<>:#')


def address(base: str, item: Item) -> str:
    """Where a person opens it; `webui` never holds the context path, `base` always does.

    Titles are part of it. One with a secret in it gives way to the page's id.
    """
    if item.webui.startswith("/") and not holds_secret(unquote_plus(item.webui)):
        return f"{base}{item.webui}"
    return f"{base}/pages/viewpage.action?pageId={item.container or item.id}"


def holds_secret(text: str) -> bool:
    """Whether something in it would be redacted."""
    return redact(text) != text


class PageLinks:
    """Finds what one page's text points to, without a request: the same text gives the same addresses."""

    def __init__(self, base: str, page: Item) -> None:
        self._base = base
        self._page = page
        self._names = dict(page.people)
        parts = urlsplit(base)
        self._host = f"{parts.scheme}://{parts.netloc}"

    def page(self, title: str, space: str | None) -> str | None:
        """By title, as Confluence resolves it itself when it is opened."""
        key = space or self._page.space_key
        if not title or not key or holds_secret(title):
            return None
        if _UNFIT & set(title):
            query = urlencode({"spaceKey": key, "title": title})
            return f"{self._base}/pages/viewpage.action?{query}"
        return f"{self._base}/display/{quote(key, safe='~')}/{quote_plus(title)}"

    def attachment(self, name: str, page_title: str | None) -> str | None:
        """Of this page; where a file of another page lies is not known."""
        if page_title is not None and page_title != self._page.title:
            return None
        return f"{self._base}/download/attachments/{self._page.id}/{quote(name)}"

    def user(self, key: str) -> str | None:
        """Those who wrote the page."""
        return self._names.get(key)

    def href(self, href: str) -> str | None:
        """Made absolute; a place on the page itself leads nowhere in a text."""
        if href.startswith("#"):
            return None
        try:
            if urlsplit(href).scheme:
                return href
            return urljoin(f"{self._host}/" if href.startswith("/") else f"{self._base}/", href)
        except ValueError:
            return None
