"""The v2 endpoints of a fake Confluence Cloud: pages, blog posts, their comments, attachments, labels; spaces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.documents import Json
from tests.fakes.confluence_model import ConfluenceModel
from tests.fakes.confluence_paging import BadPaging, link, read_cursor, write_cursor
from tests.fakes.confluence_records import Content, Space, number
from tests.fakes.confluence_rendering import BrokenBody, Rendering, account_id
from tests.fakes.server import Answer, Seen

_LIST_BODIES = {"storage", "atlas_doc_format"}
_SINGLE_BODIES = _LIST_BODIES | {"view", "export_view", "anonymous_export_view", "styled_view", "editor"}
_STATUSES = {"current", "archived", "deleted", "trashed"}
_DEFAULT_LIMIT, _MOST = 25, 250
_SORTS: dict[str, Callable[[Any], Any]] = {
    "id": lambda c: number(c.id),
    "created-date": lambda c: c.created.timestamp(),
    "modified-date": lambda c: c.when.timestamp(),
    "title": lambda c: [ord(letter) for letter in c.title.lower()],
}


class RefusedV2(Exception):
    """An error answer of v2."""

    def __init__(self, status: int, code: str, title: str) -> None:
        super().__init__(title)
        self.status = status
        self.answer = Answer(
            status=status,
            json={"errors": [{"status": status, "code": code, "title": title, "detail": None}]},
        )


class V2:
    """Answers what is below `/api/v2`."""

    def __init__(self, model: ConfluenceModel, rendering: Rendering) -> None:
        self._model = model
        self._rendering = rendering
        kinds = "(?P<kind>pages|blogposts)"
        self._routes: list[tuple[re.Pattern[str], Callable[[Seen, dict[str, str]], Answer]]] = [
            (re.compile(f"{kinds}"), self._list),
            (re.compile(f"{kinds}/(?P<id>[^/]+)"), self._single),
            (re.compile(f"{kinds}/(?P<id>[^/]+)/(?P<what>footer|inline)-comments"), self._comments),
            (re.compile(r"(?P<what>footer|inline)-comments/(?P<id>[^/]+)"), self._comment),
            (re.compile(r"(?P<what>footer|inline)-comments/(?P<id>[^/]+)/children"), self._replies),
            (re.compile(f"{kinds}/(?P<id>[^/]+)/attachments"), self._attachments),
            (re.compile(r"attachments/(?P<id>[^/]+)"), self._attachment),
            (re.compile(f"{kinds}/(?P<id>[^/]+)/labels"), self._labels),
            (re.compile(r"pages/(?P<id>[^/]+)/ancestors"), self._ancestors),
            (re.compile("spaces"), self._spaces),
            (re.compile(r"spaces/(?P<id>[^/]+)"), self._space_by_id),
        ]

    def answer(self, path: str, seen: Seen) -> Answer:
        """The answer to `path`, relative to `/api/v2/`."""
        try:
            for pattern, serve in self._routes:
                if match := pattern.fullmatch(path):
                    return serve(seen, match.groupdict())
        except RefusedV2 as refused:
            return refused.answer
        except BrokenBody:
            return RefusedV2(500, "INTERNAL_SERVER_ERROR", "Internal Server Error").answer
        return RefusedV2(404, "NOT_FOUND", "Not Found").answer

    # -- pages -----------------------------------------------------------------------------------------

    def _list(self, seen: Seen, at: dict[str, str]) -> Answer:
        statuses = set(_many(seen, "status")) or {"current", "archived"}
        if not statuses <= _STATUSES:
            raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", f"status {sorted(statuses)} is not valid")
        spaces, ids, title = _many(seen, "space-id"), _many(seen, "id"), seen.first("title")
        rows = [
            c
            for c in self._model.contents.values()
            if c.kind == at["kind"].removesuffix("s")
            and c.status in statuses
            and self._model.is_visible(c)
            and self._model.is_listed(c.id)
            and (not spaces or self._model.spaces[c.space].id in spaces)
            and (not ids or c.id in ids)
            and (not title or c.title == title)
        ]
        form = _form(seen, _LIST_BODIES)
        return self._page_of(seen, rows, lambda c: self._content(c, form))

    def _single(self, seen: Seen, at: dict[str, str]) -> Answer:
        content = self._find(at, at["kind"].removesuffix("s"), {"current", "archived", "trashed"})
        shown = self._content(content, _form(seen, _SINGLE_BODIES))
        if seen.first("include-labels") == "true":
            labels = [self._label(name) for name in content.labels]
            shown["labels"] = {"results": labels, "meta": {"hasMore": False, "cursor": ""}}
        shown["_links"]["base"] = self._rendering.base
        return Answer(json=shown)

    def _content(self, c: Content, form: str) -> Json:
        above = {"parentId": c.parent, "parentType": "page" if c.parent else None} if c.kind == "page" else {}
        return {
            "id": c.id,
            "status": c.status,
            "title": c.title,
            "spaceId": self._model.spaces[c.space].id,
            **above,
            "authorId": account_id(c.creator),
            "ownerId": account_id(c.creator),
            "createdAt": self._rendering.time(c.created),
            "version": self._version(c),
            "body": self._body(c, form),
            "_links": {"webui": self._rendering.webui(c), "tinyui": f"/x/{c.id}"},
        }

    def _version(self, c: Content) -> Json:
        return {
            "number": c.version,
            "message": "",
            "minorEdit": False,
            "authorId": account_id(c.author),
            "createdAt": self._rendering.time(c.when),
        }

    def _body(self, c: Content, form: str) -> Json:
        if not form:
            return {}
        body = self._rendering.body(c, form)
        if form == "atlas_doc_format":
            body["value"] = json.dumps({"version": 1, "type": "doc", "content": []})
        return {form: body}

    def _ancestors(self, _seen: Seen, at: dict[str, str]) -> Answer:
        above = self._model.ancestors(self._find(at, "page"))
        return Answer(json={"results": [{"id": a.id, "type": "page"} for a in above], "_links": self._base()})

    def _labels(self, _seen: Seen, at: dict[str, str]) -> Answer:
        names = self._find(at, at["kind"].removesuffix("s")).labels
        results = [self._label(name) for name in names]
        return Answer(json={"results": results, "_links": self._base()})

    def _label(self, name: str) -> Json:
        return {k: v for k, v in self._rendering.label(name).items() if k != "label"}

    # -- comments and attachments ----------------------------------------------------------------------

    def _comments(self, seen: Seen, at: dict[str, str]) -> Answer:
        page = self._find(at, at["kind"].removesuffix("s"))
        found = [c for c in self._model.hanging_on(page.id) if c.kind == "comment" and c.parent is None]
        rows = [c for c in found if (c.location == "footer") == (at["what"] == "footer")]
        states = _many(seen, "resolution-status")
        rows = [c for c in rows if not states or _resolution(c) in states]
        form = _form(seen, _LIST_BODIES)
        return self._page_of(seen, rows, lambda c: self._comment_json(c, form))

    def _comment(self, seen: Seen, at: dict[str, str]) -> Answer:
        return Answer(json=self._comment_json(self._found_comment(at), _form(seen, _SINGLE_BODIES)))

    def _replies(self, seen: Seen, at: dict[str, str]) -> Answer:
        above = self._found_comment(at)
        rows = [c for c in self._model.hanging_on(above.container or "") if c.parent == above.id]
        form = _form(seen, _LIST_BODIES)
        return self._page_of(seen, rows, lambda c: self._comment_json(c, form))

    def _found_comment(self, at: dict[str, str]) -> Content:
        comment = self._find(at, "comment")
        if (comment.location == "footer") != (at["what"] == "footer"):
            raise RefusedV2(404, "NOT_FOUND", "Not Found")
        return comment

    def _comment_json(self, c: Content, form: str) -> Json:
        owner = self._model.contents[c.container or ""]
        shown: Json = {
            "id": c.id,
            "status": c.status,
            "title": c.title,
            "version": self._version(c),
            "body": self._body(c, form),
            "_links": {"webui": self._rendering.links(c)["webui"]},
        }
        if c.parent:
            shown["parentCommentId"] = c.parent
        else:
            shown["blogPostId" if owner.kind == "blogpost" else "pageId"] = owner.id
        if c.location != "footer":
            shown["resolutionStatus"] = _resolution(c)
            shown["properties"] = {
                "inlineMarkerRef": f"ref-{c.id}",
                "inlineOriginalSelection": "some words",
            }
        return shown

    def _attachments(self, seen: Seen, at: dict[str, str]) -> Answer:
        page = self._find(at, at["kind"].removesuffix("s"))
        rows = [c for c in self._model.hanging_on(page.id) if c.kind == "attachment"]
        name = seen.first("filename")
        rows = [c for c in rows if not name or c.title == name]
        return self._page_of(seen, rows, self._attachment_json)

    def _attachment(self, _seen: Seen, at: dict[str, str]) -> Answer:
        return Answer(json=self._attachment_json(self._find(at, "attachment")))

    def _attachment_json(self, c: Content) -> Json:
        links = self._rendering.links(c)
        return {
            "id": c.id,
            "status": c.status,
            "title": c.title,
            "createdAt": self._rendering.time(c.created),
            "pageId": c.container,
            "mediaType": c.media_type,
            "mediaTypeDescription": "File",
            "comment": "",
            "fileId": f"file-{c.id}",
            "fileSize": len(c.data),
            "webuiLink": links["webui"],
            "downloadLink": links["download"],
            "version": self._version(c),
            "_links": {"webui": links["webui"], "download": links["download"]},
        }

    # -- spaces ----------------------------------------------------------------------------------------

    def _spaces(self, seen: Seen, _at: dict[str, str]) -> Answer:
        keys, ids, status = _many(seen, "keys"), _many(seen, "ids"), seen.first("status")
        rows = [
            s
            for s in self._model.spaces.values()
            if s.visible
            and (not keys or s.key in keys)
            and (not ids or s.id in ids)
            and (not status or status == ("archived" if s.archived else "current"))
        ]
        return self._page_of(seen, rows, self._space)

    def _space_by_id(self, _seen: Seen, at: dict[str, str]) -> Answer:
        for space in self._model.spaces.values():
            if space.id == at["id"] and space.visible:
                return Answer(json={**self._space(space), "_links": self._base()})
        raise RefusedV2(404, "NOT_FOUND", "Not Found")

    def _space(self, space: Space) -> Json:
        return {
            "id": space.id,
            "key": space.key,
            "name": space.name,
            "type": "global",
            "status": "archived" if space.archived else "current",
            "homepageId": None,
            "description": None,
            "_links": {"webui": f"/spaces/{space.key}"},
        }

    # -- lists -----------------------------------------------------------------------------------------

    def _find(
        self, at: dict[str, str], kind: str, statuses: Sequence[str] | set[str] = ("current",)
    ) -> Content:
        content = self._model.contents.get(at["id"])
        if content is None or content.kind != kind or content.status not in statuses:
            raise RefusedV2(404, "NOT_FOUND", "Not Found")
        if not self._model.is_visible(content):
            raise RefusedV2(404, "NOT_FOUND", "Not Found")
        return content

    def _page_of(self, seen: Seen, rows: Sequence[Any], write: Callable[[Any], Json]) -> Answer:
        name = seen.first("sort", "id")
        if name.removeprefix("-") not in _SORTS:
            raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", f"sort '{name}' is not valid")
        value, descending = _SORTS[name.removeprefix("-")], name.startswith("-")
        keyed = sorted((([value(row), number(row.id)], row) for row in rows), key=lambda pair: pair[0])
        keyed = keyed[::-1] if descending else keyed
        keys = [key for key, _ in keyed]
        begin = _begin(seen, keys, descending)
        limit = _limit(seen)
        shown = keyed[begin : begin + limit]
        links, headers = self._base(), {}
        if begin + limit < len(keyed):
            cursor = write_cursor({"key": shown[-1][0], "path": seen.path})
            links["next"] = link(seen.path, seen.query, ("cursor", "limit"), limit=limit, cursor=cursor)
            headers["Link"] = f'<{links["next"]}>; rel="next", <{self._rendering.base}>; rel="base"'
        return Answer(json={"results": [write(row) for _, row in shown], "_links": links}, headers=headers)

    def _base(self) -> Json:
        return {"base": self._rendering.base}


def _begin(seen: Seen, keys: list[list[Any]], descending: bool) -> int:
    """How many rows lie before the cursor's place in the list as it is now."""
    if not seen.first("cursor"):
        return 0
    try:
        cursor = read_cursor(seen.first("cursor"))
    except BadPaging as error:
        raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", str(error)) from error
    if cursor.get("path") != seen.path:
        raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", "the cursor belongs to another list")
    after = cursor["key"]
    return sum(key >= after if descending else key <= after for key in keys)


def _many(seen: Seen, name: str) -> list[str]:
    """A list parameter: repeated, or with commas."""
    return [part for value in seen.query.get(name, []) for part in value.split(",") if part]


def _form(seen: Seen, allowed: set[str]) -> str:
    form = seen.first("body-format")
    if form and form not in allowed:
        raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", f"body-format '{form}' is not valid")
    return form


def _limit(seen: Seen) -> int:
    text = seen.first("limit", str(_DEFAULT_LIMIT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise RefusedV2(400, "INVALID_REQUEST_PARAMETER", f"limit '{text}' is not between 1 and {_MOST}")
    return int(text)


def _resolution(comment: Content) -> str:
    return "resolved" if comment.location == "resolved" else "open"
