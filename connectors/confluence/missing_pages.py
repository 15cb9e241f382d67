"""Pages that search does not show: gone, or only not shown."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.confluence.faults import Missing, Refused
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.site import Site
from pipeline.documents import Problem

GONE = frozenset({"trashed", "archived", "draft", "deleted", "historical"})


class Vanished:
    """Asks for pages one by one; the caller asks search again before it believes a 404."""

    def __init__(self, site: Site, options: ConfluenceOptions) -> None:
        self._site = site
        self._options = options

    def ask(self, ids: Sequence[str]) -> tuple[list[str], list[Problem]]:
        """Those that are gone as far as can be told, and problems for those that are not.

        Raises:
            SourceUnavailable: no answer; nothing is known then.
        """
        gone: list[str] = []
        problems: list[Problem] = []
        for key in ids:
            try:
                status = self._status(key)
            except Refused as error:
                fix = "it is left as it is until it can be looked at"
                problems.append(Problem(external_id=key, reason=f"{error.message}; {fix}"))
                continue
            if status == "" or status in GONE:
                gone.append(key)
            else:
                reason = (
                    "is there, but search does not show it; it is looked for again with the next full walk"
                )
                problems.append(Problem(external_id=key, reason=f"page {key} {reason}"))
        return gone, problems

    def _status(self, key: str) -> str:
        """As Confluence calls it; empty if it knows no such page or shows none."""
        if not key.isascii() or not key.isdigit():
            return ""
        for path in self._paths(key):
            try:
                answer = self._site.json(path, {} if self._site.place.cloud else {"status": "any"})
            except Missing:
                continue
            return str(answer.get("status") or "current")
        return ""

    def _paths(self, key: str) -> list[str]:
        if not self._site.place.cloud:
            return [f"rest/api/content/{key}"]
        kinds = ("pages", "blogposts") if self._options.include_blog_posts else ("pages",)
        return [f"api/v2/{kind}/{key}" for kind in kinds]

    def page_of_file(self, key: str) -> str:
        """The page an attachment hangs on; empty if there is no such attachment.

        Raises:
            Refused: it is not shown to us.
        """
        try:
            if self._site.place.cloud:
                return str(self._site.json(f"api/v2/attachments/{key}").get("pageId") or "")
            answer = self._site.json(f"rest/api/content/{key}", {"expand": "container"})
        except Missing:
            return ""
        container = answer.get("container")
        return str(container.get("id") or "") if isinstance(container, dict) else ""
