"""Who may read a page: its own restrictions and those of every page above it."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.confluence.client import ConfluenceClient, ConfluenceNotFound, ConfluenceRefused, cql_ids
from connectors.confluence.document import NOBODY, READERS, Content, Readers, readers_of
from connectors.web import ServerFault

IDS_AT_ONCE = 100


class Restrictions:
    """The restrictions of pages; what was found out is kept until `forget`."""

    def __init__(self, client: ConfluenceClient) -> None:
        self._client = client
        self._known: dict[str, Readers] = {}

    def forget(self) -> None:
        """A new walk asks anew."""
        self._known.clear()

    def learn(self, pages: Sequence[Content]) -> None:
        """Takes in what the answers say, and finds out about the pages above."""
        unclear = [page.id for page in pages if not self._note(page)]
        above = {ancestor for page in pages for ancestor, _ in page.ancestors if ancestor}
        missing = sorted(above - self._known.keys())
        for at in range(0, len(missing), IDS_AT_ONCE):
            batch = missing[at : at + IDS_AT_ONCE]
            shown = self._client.search(f"id in ({cql_ids(batch)})", READERS).all()
            clear = {content.id for content in shown if self._note(content)}
            unclear += [key for key in batch if key not in clear]
        for key in dict.fromkeys(unclear):
            if key not in self._known:
                self._known[key] = self._of_one(key)

    def layers(self, page: Content) -> list[list[str]]:
        """Outermost first, the space before all; empty if everybody in the space may read it."""
        path = (*(ancestor for ancestor, _ in page.ancestors), page.id)
        found = [list(readers) for key in path if (readers := self._known.get(key, NOBODY))]
        return [[f"space:{page.space_key}"], *found] if found else []

    def _note(self, content: Content) -> bool:
        """Keeps the restriction that a search has shown; False if it has not."""
        if content.readers is None:
            return False
        self._known[content.id] = content.readers
        return True

    def _of_one(self, key: str) -> Readers:
        """From the endpoint for one page; nobody if that does not tell either."""
        try:
            answer = self._client.json(
                f"rest/api/content/{key}/restriction/byOperation/read",
                {"expand": "restrictions.user,restrictions.group"},
            )
        except (ConfluenceNotFound, ConfluenceRefused):
            return NOBODY
        except ServerFault as error:
            if error.status != 404:  # noqa: PLR2004 (a web page that says Not Found)
                raise
            return NOBODY
        readers = readers_of(answer.get("restrictions"))
        return NOBODY if readers is None else readers
