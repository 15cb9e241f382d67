"""The v1 endpoints of a fake Confluence apart from search: contents, children, restrictions, spaces, user, files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.documents import Json
from tests.fakes import confluence_paging as paging
from tests.fakes.confluence_model import ConfluenceModel
from tests.fakes.confluence_records import Content
from tests.fakes.confluence_rendering import Rendering, expand_tree
from tests.fakes.confluence_search import DEFAULT_LIMIT, Search
from tests.fakes.server import Answer, Seen

Row = TypeVar("Row")

_CURRENT = frozenset({"current"})


class RefusedV1(Exception):
    """An error answer of v1."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class V1:
    """Answers what is below `/rest/api`, and the addresses of files."""

    def __init__(self, model: ConfluenceModel, rendering: Rendering) -> None:
        self._model = model
        self._rendering = rendering
        search = Search(model, rendering)
        self._routes: list[tuple[str, Callable[..., Answer]]] = [
            ("content/search", search.contents),
            ("search", search.wrapped),
            ("content", self._content_list),
            ("user/current", self._current_user),
            ("space", self._spaces),
            ("space/([^/]+)", self._space),
            ("content/([^/]+)", self._content),
            ("content/([^/]+)/child/(page|comment|attachment)", self._children_of),
            ("content/([^/]+)/child/attachment/([^/]+)/download", self._download_by_id),
            ("content/([^/]+)/label", self._labels),
            ("content/([^/]+)/restriction/byOperation(?:/(read|update))?", self._restriction),
        ]

    def answer(self, path: str, seen: Seen) -> Answer:
        """The answer to `path`, relative to `/rest/api/`.

        Raises:
            RefusedV1, CqlError, BadPaging: what the service answers with an error.
            BrokenBody: a broken page is among what was asked for.
        """
        for pattern, serve in self._routes:
            if match := re.fullmatch(pattern, path):
                return serve(seen, *match.groups())
        raise RefusedV1(404, f"null for uri: {seen.path}")

    # -- contents --------------------------------------------------------------------------------------

    def _content_list(self, seen: Seen) -> Answer:
        statuses = _statuses(seen)
        kind, space, title = seen.first("type", "page"), seen.first("spaceKey"), seen.first("title")
        if space and (space not in self._model.spaces or not self._model.spaces[space].visible):
            raise RefusedV1(404, f"No space with key : {space}")
        rows = [
            c
            for c in self._model.contents.values()
            if c.kind == kind
            and c.status in statuses
            and space in ("", c.space)
            and title in ("", c.title)
            and self._model.is_visible(c)
            and self._model.is_listed(c.id)
        ]
        return self._contents(seen, rows)

    def _content(self, seen: Seen, key: str) -> Answer:
        content = self._find(key, _statuses(seen))
        shown = self._rendering.content(content, expand_tree(seen.first("expand", "history,space,version")))
        shown["_links"] |= {**self._base(), "collection": "/rest/api/content"}
        return Answer(json=shown)

    def _children_of(self, seen: Seen, key: str, kind: str) -> Answer:
        page = self._find(key)
        if kind == "page":
            return self._contents(
                seen, [c for c in self._model.pages_below(page.id) if self._model.is_visible(c)]
            )
        rows = [c for c in self._model.hanging_on(page.container or page.id) if c.kind == kind]
        if kind == "attachment":
            name = seen.first("filename")
            return self._contents(seen, [c for c in rows if name in ("", c.title)])
        if page.kind == "comment":
            return self._contents(seen, [c for c in rows if c.parent == page.id])
        # Without a location the resolved ones are left out: who wants them says so.
        places = seen.query.get("location", ["footer", "inline"])
        deep = seen.first("depth") == "all"
        return self._contents(seen, [c for c in rows if c.location in places and (deep or c.parent is None)])

    def _labels(self, seen: Seen, key: str) -> Answer:
        return self._list(seen, self._find(key).labels, self._rendering.label)

    def _restriction(self, seen: Seen, key: str, operation: str | None) -> Answer:
        content = self._find(key)
        if self._model.hide_restrictions:
            raise RefusedV1(403, "not permitted to see restrictions")
        want = expand_tree(seen.first("expand"))
        # `restrictions.user` for one operation, `read.restrictions.user` for both at once.
        if operation:
            asked = {"restrictions": want.get("restrictions", {})}
            return Answer(json=self._rendering.operation(content, operation, asked))
        both: Json = {}
        for name in ("read", "update"):
            asked = {"restrictions": want.get(name, {}).get("restrictions", {})}
            both[name] = self._rendering.operation(content, name, asked)
        return Answer(json={**both, "_links": self._base()})

    # -- spaces, user ----------------------------------------------------------------------------------

    def _spaces(self, seen: Seen) -> Answer:
        keys, status = seen.query.get("spaceKey", []), seen.first("status")
        rows = [
            s
            for s in self._model.spaces.values()
            if s.visible
            and (not keys or s.key in keys)
            and (not status or status == ("archived" if s.archived else "current"))
        ]
        return self._list(seen, rows, self._rendering.space)

    def _space(self, _seen: Seen, key: str) -> Answer:
        space = self._model.spaces.get(key)
        if space is None or not space.visible:
            raise RefusedV1(404, f"No space found with key : {key}")
        shown = self._rendering.space(space)
        shown["_links"] |= self._base()
        return Answer(json=shown)

    def _current_user(self, _seen: Seen) -> Answer:
        shown = self._rendering.user(self._model.account)
        if self._rendering.cloud:
            shown["timeZone"] = None if self._model.hide_zone else self._model.zone.key
        links = {"self": f"{self._rendering.base}/rest/api/user/current", **self._base()}
        return Answer(json={**shown, "_links": links})

    # -- files -----------------------------------------------------------------------------------------

    def download(self, page: str, name: str) -> Answer | None:
        """`/download/attachments/{page}/{name}`: the bytes, on Cloud after one more step; None: no such file."""
        for content in self._model.hanging_on(page):
            if content.kind == "attachment" and content.title == name and self._is_there(content):
                if not self._rendering.cloud:
                    return self.media(content.id)
                address = (
                    f"{self._model.media_at or self._rendering.base}/media/{content.id}/binary?name=file"
                )
                return Answer(status=302, headers={"Location": address})
        return None

    def media(self, key: str) -> Answer:
        """The bytes of an attachment."""
        content = self._find(key)
        return Answer(body=content.data, content_type=content.media_type)

    def _download_by_id(self, _seen: Seen, page: str, key: str) -> Answer:
        found = self.download(page, self._find(key).title)
        if found is None:
            raise RefusedV1(404, f"No content found with id: {key}")
        return found

    # -- finding and listing ---------------------------------------------------------------------------

    def _find(self, key: str, statuses: frozenset[str] = _CURRENT) -> Content:
        """Missing, binned and forbidden look the same."""
        content = self._model.contents.get(key)
        owner = self._model.contents.get(content.container) if content and content.container else content
        if content is None or owner is None or not {content.status, owner.status} <= statuses:
            raise RefusedV1(404, f"No content found with id: ContentId{{id={key}}}")
        if not self._model.is_visible(content):
            raise RefusedV1(404, f"No content found with id: ContentId{{id={key}}}")
        return content

    def _is_there(self, content: Content) -> bool:
        return self._model.is_current(content) and self._model.is_visible(content)

    def _contents(self, seen: Seen, rows: Sequence[Content]) -> Answer:
        want = expand_tree(seen.first("expand"))
        return self._list(seen, rows, lambda c: self._rendering.content(c, want))

    def _list(self, seen: Seen, rows: Sequence[Row], write: Callable[[Row], Json]) -> Answer:
        limit = paging.count_of(seen.query, "limit", DEFAULT_LIMIT, 1)
        start = paging.count_of(seen.query, "start", 0, 0)
        cap = min(paging.cap_of(seen.first("expand")), self._model.most_rows)
        cut = paging.by_offset(rows, start=start, limit=limit, cap=cap)
        context = self._rendering.context
        short = self._model.undercount
        next_link = paging.offset_link(seen, cut, context=context, asked=limit, undercount=short)
        around = paging.envelope(seen, cut, base=self._rendering.base, context=context, next_link=next_link)
        return Answer(json={"results": [write(row) for row in cut.items], **around})

    def _base(self) -> Json:
        return {"base": self._rendering.base, "context": self._rendering.context}


def _statuses(seen: Seen) -> frozenset[str]:
    asked = {part for value in seen.query.get("status", ["current"]) for part in value.split(",")}
    return frozenset({"current", "trashed", "archived"} if "any" in asked else asked)
