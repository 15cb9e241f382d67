"""Search by CQL in a fake Confluence, the two v1 endpoints that Cloud has kept."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from pipeline.documents import Json
from tests.fakes import confluence_cql as cql
from tests.fakes import confluence_paging as paging
from tests.fakes.confluence_index import Entry
from tests.fakes.confluence_model import ConfluenceModel
from tests.fakes.confluence_records import Content
from tests.fakes.confluence_rendering import Rendering, Tree, expand_tree
from tests.fakes.server import Answer, Seen

DEFAULT_LIMIT = 25
_KEPT = 4

Hits = tuple[list[list[Any]], list[str]]
"""Sort keys and ids, side by side."""


class Search:
    """Answers `content/search` and `search`.

    Both raise CqlError and BadPaging for what the service answers with a 400.
    """

    def __init__(self, model: ConfluenceModel, rendering: Rendering) -> None:
        self._model = model
        self._rendering = rendering
        self._hits: dict[tuple[Any, ...], Hits] = {}

    def contents(self, seen: Seen) -> Answer:
        """`content/search`: the contents themselves."""
        _, contents, around = self._found(seen)
        want = expand_tree(seen.first("expand"))
        results = [self._rendering.content(c, want) for c in contents]
        return Answer(json={"results": results, **around})

    def wrapped(self, seen: Seen) -> Answer:
        """`search`: contents inside hits; `expand` needs the prefix `content.`."""
        cut, contents, around = self._found(seen)
        want: Tree = expand_tree(seen.first("expand")).get("content", {})
        results = [
            {
                "content": self._rendering.content(c, want),
                "title": c.title,
                "excerpt": "",
                "url": self._rendering.links(c)["webui"],
                "entityType": "content",
                "lastModified": self._rendering.time(c.when),
                "friendlyLastModified": "just now",
            }
            for c in contents
        ]
        extra = {"totalSize": cut.total, "cqlQuery": seen.first("cql"), "searchDuration": 7}
        return Answer(json={"results": results, **around, **extra})

    def _found(self, seen: Seen) -> tuple[paging.Slice[str], list[Content], Json]:
        """The rows of one answer and what stands around them."""
        keys, ids = self._hits_of(seen.first("cql"), seen.first("includeArchivedSpaces").lower() == "true")
        limit = paging.count_of(seen.query, "limit", DEFAULT_LIMIT, 1)
        cap = min(paging.cap_of(seen.first("expand")), self._model.most_rows)
        context = self._rendering.context
        if self._rendering.cloud:
            after, start = self._position(seen)
            cut = paging.by_cursor(ids, keys, after=after, start=start, limit=limit, cap=cap)
            cut = self._maybe_empty(cut)
            next_link = self._cursor_link(seen, cut)
        else:
            start = paging.count_of(seen.query, "start", 0, 0)
            cut = self._maybe_empty(paging.by_offset(ids, start=start, limit=limit, cap=cap))
            short = self._model.undercount
            next_link = paging.offset_link(seen, cut, context=context, asked=limit, undercount=short)
        around = paging.envelope(seen, cut, base=self._rendering.base, context=context, next_link=next_link)
        return cut, [self._model.contents[i] for i in cut.items], around

    def _hits_of(self, text: str, archived: bool) -> Hits:
        """All hits in order; kept while nothing changes."""
        model = self._model
        spaces = tuple((s.key, s.visible, s.archived) for s in model.spaces.values())
        state = (model.generation, model.now, model.account, frozenset(model.groups), model.zone.key, spaces)
        name = (text, archived, *state)
        if name not in self._hits:
            server = not self._rendering.cloud
            query = cql.parse(text, zone=model.zone, server=server, ancestors=self._ancestors_of)
            rows = sorted(
                (cql.sort_key(e, query.order, zlib.crc32(e.id.encode())), e.id)
                for e in model.indexed()
                if (archived or not model.spaces[e.space].archived)
                and query.matches(e)
                and model.is_listed(e.id)
            )
            while len(self._hits) >= _KEPT:
                self._hits.pop(next(iter(self._hits)))
            self._hits[name] = ([key for key, _ in rows], [i for _, i in rows])
        return self._hits[name]

    def _ancestors_of(self, entry: Entry) -> frozenset[str]:
        if entry.container is not None:
            return frozenset()
        return frozenset(above.id for above in self._model.ancestors(self._model.contents[entry.id]))

    def _position(self, seen: Seen) -> tuple[list[Any] | None, int]:
        """Cloud: where the cursor points; `start` is ignored."""
        if not seen.first("cursor"):
            return None, 0
        cursor = paging.read_cursor(seen.first("cursor"))
        fresh = cursor.get("t", 0) >= self._model.cursors_from.timestamp()
        if not fresh or cursor.get("q") != _digest(seen):
            raise paging.BadPaging("the cursor is no longer valid")
        return cursor["k"], cursor["n"]

    def _cursor_link(self, seen: Seen, cut: paging.Slice[str]) -> str:
        """The `next` of Cloud, without the context path; empty at the end."""
        if not cut.more:
            return ""
        end = cut.start + len(cut.items)
        place = {"q": _digest(seen), "k": cut.last_key, "n": end, "t": self._model.now.timestamp()}
        return paging.link(
            seen.path.removeprefix(self._rendering.context),
            seen.query,
            ("cursor", "start", "limit", "next"),
            next="true",
            cursor=paging.write_cursor(place),
            limit=cut.limit,
            start=end,
        )

    def _maybe_empty(self, cut: paging.Slice[str]) -> paging.Slice[str]:
        """The odd answer with no rows and a link to more."""
        at = self._model.empty_page_at
        if at is None or cut.start + len(cut.items) < at:
            return cut
        return replace(cut, items=[] if cut.start >= at else cut.items, more=True)


def _digest(seen: Seen) -> int:
    """A cursor belongs to its query."""
    return zlib.crc32(f"{seen.path} {seen.first('cql')}".encode())
