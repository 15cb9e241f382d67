"""Who may read a page: its own restrictions and those of every page above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from connectors.confluence.faults import Missing, Refused, ServerFault
from connectors.confluence.item import READ, Item, nested
from connectors.confluence.search import Query, Rows, numbers
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics
from pipeline.documents import Json

NOBODY = ("nobody",)
"""The layer of a page whose restrictions could not be found out."""
IDS_AT_ONCE = 100

Layer = tuple[str, ...]
"""Who passes: `user:ID` and `group:NAME`; empty: everybody."""


class Restrictions:
    """The layers of pages; what was found out is kept until `forget`."""

    def __init__(self, site: Site, tactics: Tactics, *, archived: bool) -> None:
        self._site = site
        self._tactics = tactics
        self._archived = archived
        self._known: dict[str, Layer] = {}

    def forget(self) -> None:
        """A new walk asks anew."""
        self._known.clear()

    def learn(self, items: Sequence[Item]) -> None:
        """Take in what the answers say, and find out about the pages above."""
        unclear: list[str] = []
        for item in items:
            layer = _layer_of(nested(item.raw, "restrictions", "read", "restrictions"))
            if layer is None:
                unclear.append(item.id)
            else:
                self._known[item.id] = layer
        above = {ancestor for item in items for ancestor, _ in item.ancestors if ancestor}
        missing = sorted(above - self._known.keys())
        for at in range(0, len(missing), IDS_AT_ONCE):
            unclear += self._search(missing[at : at + IDS_AT_ONCE])
        for key in dict.fromkeys(unclear):
            if key not in self._known:
                self._known[key] = self._single(key)

    def layers(self, item: Item) -> list[list[str]]:
        """Outermost first, the space before all; empty if everybody in the space may read it."""
        path = (*(ancestor for ancestor, _ in item.ancestors), item.id)
        found = [list(layer) for key in path if (layer := self._known.get(key, NOBODY))]
        return [[f"space:{item.space_key}"], *found] if found else []

    def _search(self, ids: Sequence[str]) -> list[str]:
        """Learns of the pages that search shows; the others come back."""
        query = Query(cql=f"id in ({numbers(ids)})", expand=tuple(READ.split(",")), archived=self._archived)
        left = set(ids)
        for row in Rows(self._site, query, self._tactics).all():
            layer = _layer_of(nested(row, "restrictions", "read", "restrictions"))
            if layer is not None:
                self._known[str(row.get("id"))] = layer
                left.discard(str(row.get("id")))
        return sorted(left)

    def _single(self, key: str) -> Layer:
        try:
            answer = self._site.json(
                f"rest/api/content/{key}/restriction/byOperation/read",
                {"expand": "restrictions.user,restrictions.group"},
            )
        except (Missing, Refused):
            return NOBODY
        except ServerFault as error:
            if error.status != 404:  # noqa: PLR2004 (a web page that says Not Found)
                raise
            return NOBODY
        layer = _layer_of(answer.get("restrictions"))
        return NOBODY if layer is None else layer


def _layer_of(shown: Any) -> Layer | None:
    """The names on both lists; None if the answer does not hold both."""
    users, groups = (
        nested({"r": shown}, "r", "user", "results"),
        nested({"r": shown}, "r", "group", "results"),
    )
    if not isinstance(users, list) or not isinstance(groups, list):
        return None
    names = [*(_user(user) for user in users), *(_group(group) for group in groups)]
    if not names:
        return ()
    return tuple(sorted(name for name in names if name)) or NOBODY


def _user(user: Json) -> str:
    ids: Iterable[Any] = (user.get(key) for key in ("accountId", "username", "userKey"))
    found = next((name for name in ids if isinstance(name, str) and name), "")
    return f"user:{found}" if found else ""


def _group(group: Json) -> str:
    name = group.get("name")
    return f"group:{name}" if isinstance(name, str) and name else ""
