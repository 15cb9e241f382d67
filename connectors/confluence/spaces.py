"""The spaces this account sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.confluence.faults import PERMISSION
from connectors.confluence.options import PRODUCT
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics
from connectors.web import results_of
from pipeline.documents import Json
from pipeline.errors import SourceDenied

LIMIT = 200
KEYS_AT_ONCE = 50


def visible_spaces(site: Site, tactics: Tactics, keys: Sequence[str]) -> dict[str, Json]:
    """By key; of all that there are if none are named. Keys are as Confluence writes them."""
    found: dict[str, Json] = {}
    for at in range(0, max(1, len(keys)), KEYS_AT_ONCE):
        for space in _listed(site, tactics, list(keys[at : at + KEYS_AT_ONCE])):
            found[str(space.get("key"))] = space
    return found


def unseen(found: dict[str, Json], keys: Sequence[str]) -> list[str]:
    """The configured keys that are not among the visible spaces."""
    seen = {key.casefold() for key in found}
    return [key for key in keys if key.casefold() not in seen]


def prove_some(site: Site, tactics: Tactics, keys: Sequence[str]) -> bool:
    """Whether all configured spaces are visible.

    Raises:
        SourceDenied: none is; a search would show an empty Confluence.
    """
    if not keys:
        return True
    missing = unseen(visible_spaces(site, tactics, keys), keys)
    if len(missing) == len(keys):
        names = ", ".join(missing[:10])
        said = f"{PRODUCT} shows this account none of the configured spaces ({names})"
        raise SourceDenied(said, fix=f"check spaceKeys, and {PERMISSION}")
    return not missing


def _listed(site: Site, tactics: Tactics, keys: list[str]) -> list[Json]:
    cloud = site.place.cloud
    path = "api/v2/spaces" if cloud else "rest/api/space"
    params: dict[str, Any] = {"limit": LIMIT}
    if keys:
        params |= {"keys": ",".join(keys)} if cloud else {"spaceKey": keys}
    rows: list[Json] = []
    payload = site.json(path, params)
    while True:
        new = results_of(payload, "results", PRODUCT)
        rows += new
        link = tactics.next_address(site.place.base, payload)
        if not new or link is None:
            return rows
        payload = site.follow(link) if cloud else site.json(path, {**params, "start": len(rows)})
