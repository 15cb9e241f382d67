"""Contents, spaces and users as v1 shows them: what was not asked for by `expand` is absent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timezone
from typing import Any
from urllib.parse import quote, quote_plus

from pipeline.documents import Json
from tests.fakes.confluence_model import ConfluenceModel
from tests.fakes.confluence_records import Content, Restriction, Space

Tree = dict[str, Any]
"""`expand` as nested names."""

BODIES = ("storage", "view", "export_view", "styled_view", "editor", "anonymous_export_view")
CHILDREN_SHOWN = 25


class BrokenBody(Exception):
    """An answer would hold the body of a broken page."""


def expand_tree(text: str) -> Tree:
    """`body.storage,version` as `{"body": {"storage": {}}, "version": {}}`."""
    tree: Tree = {}
    for path in filter(None, (part.strip() for part in text.split(","))):
        place = tree
        for name in path.split("."):
            place = place.setdefault(name, {})
    return tree


class Rendering:
    """Writes the model's things down in the style of Cloud or of Server."""

    def __init__(self, model: ConfluenceModel, *, cloud: bool, context: str, offset: timezone) -> None:
        self._model = model
        self.cloud = cloud
        self.context = context
        self._offset = offset
        self.base = ""
        """`http://host:port/context`; known once the server runs."""

    def time(self, when: datetime) -> str:
        """`2025-03-03T12:00:30.123Z` on Cloud, with the server's offset elsewhere."""
        if self.cloud:
            return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return when.astimezone(self._offset).isoformat(timespec="milliseconds")

    def user(self, name: str) -> Json:
        """A user by account id (Cloud) or by user name and key."""
        display = self._model.people.get(name, name)
        if self.cloud:
            return {
                "type": "known",
                "accountId": account_id(name),
                "accountType": "atlassian",
                "email": "",
                "publicName": display,
                "displayName": display,
            }
        return {
            "type": "known",
            "username": name,
            "userKey": f"key-of-{name}",
            "displayName": display,
        }

    def space(self, space: Space) -> Json:
        """A space, with nothing of its contents."""
        return {
            "id": int(space.id),
            "key": space.key,
            "name": space.name,
            "type": "global",
            "status": "archived" if space.archived else "current",
            "_expandable": {"homepage": "", "description": "", "metadata": ""},
            "_links": {
                "self": f"{self.base}/rest/api/space/{space.key}",
                "webui": f"/spaces/{space.key}" if self.cloud else f"/display/{space.key}",
            },
        }

    def content(self, content: Content, want: Tree) -> Json:
        """A content with what `want` names.

        Raises:
            BrokenBody: `want` names a body and the page is broken.
        """
        shown: Json = {
            "id": content.id,
            "type": content.kind,
            "status": content.status,
            "title": content.title,
        }
        hidden: dict[str, str] = {"childTypes": "", "operations": "", "descendants": ""}
        for name, write in self._parts(content.kind).items():
            if name in want:
                shown[name] = write(content, want[name])
            else:
                hidden[name] = ""
        return {**shown, "_expandable": hidden, "_links": self.links(content)}

    def links(self, content: Content) -> Json:
        """Without `base`, which stands on the outermost level only; relative to it."""
        page = self._model.contents[content.container] if content.container else content
        found = {
            "self": f"{self.base}/rest/api/content/{content.id}",
            "tinyui": f"/x/{content.id}",
            "webui": self.webui(page),
        }
        if content.kind == "comment":
            found["webui"] += f"?focusedCommentId={content.id}#comment-{content.id}"
        if content.kind == "attachment":
            found["webui"] += f"?preview=/{page.id}/{content.id.removeprefix('att')}/{quote(content.title)}"
            found["download"] = self.download(content)
        return found

    def webui(self, page: Content) -> str:
        """The page for people, relative to base."""
        if self.cloud:
            place = "blog" if page.kind == "blogpost" else "pages"
            return f"/spaces/{page.space}/{place}/{page.id}/{quote_plus(page.title)}"
        return f"/display/{page.space}/{quote_plus(page.title)}"

    def download(self, content: Content) -> str:
        """The bytes of an attachment, relative to base."""
        stamp = int(content.when.timestamp() * 1000)
        name = quote(content.title)
        return f"/download/attachments/{content.container}/{name}?version={content.version}&modificationDate={stamp}"

    def restrictions(self, restrictions: Sequence[Restriction], want: Tree) -> Json:
        """Of one operation: users and groups, each only when asked for."""
        shown: Json = {}
        for kind in ("user", "group"):
            if kind in want:
                results = [self._subject(kind, name) for k, name in restrictions if k == kind]
                shown[kind] = listed(results, 200)
        return {**shown, "_expandable": {k: "" for k in ("user", "group") if k not in want}}

    def operation(self, content: Content, operation: str, want: Tree) -> Json:
        """`read` or `update` with its restrictions; we model reading only."""
        who = content.restrictions if operation == "read" else []
        shown: Json = {"operation": operation}
        if "restrictions" in want:
            shown["restrictions"] = self.restrictions(who, want["restrictions"])
        return {
            **shown,
            "_expandable": {"content": ""},
            "_links": {
                "self": f"{self.base}/rest/api/content/{content.id}/restriction/byOperation/{operation}"
            },
        }

    def label(self, name: str) -> Json:
        """A label; the id is its own, not the page's."""
        return {"prefix": "global", "name": name, "id": str(sum(map(ord, name)) + 900_000), "label": name}

    def body(self, content: Content, form: str) -> Json:
        """`{value, representation}`; every form holds the storage markup."""
        if content.id in self._model.broken:
            raise BrokenBody(content.id)
        return {"value": content.body, "representation": form}

    def _parts(self, kind: str) -> dict[str, Callable[[Content, Tree], Any]]:
        parts: dict[str, Callable[[Content, Tree], Any]] = {
            "space": lambda c, _: self.space(self._model.spaces[c.space]),
            "version": self._version,
            "history": self._history,
            "body": self._body,
            "metadata": self._metadata,
            "container": self._container,
            "restrictions": self._restrictions,
            "extensions": self._extensions,
            "children": self._children,
        }
        if kind != "attachment":
            parts["ancestors"] = lambda c, want: [self.content(a, want) for a in self._model.ancestors(c)]
        return parts

    def _version(self, content: Content, _want: Tree) -> Json:
        return {
            "by": self.user(content.author),
            "when": self.time(content.when),
            "message": "",
            "number": content.version,
            "minorEdit": False,
            "_expandable": {"content": ""},
        }

    def _history(self, content: Content, want: Tree) -> Json:
        shown: Json = {
            "latest": True,
            "createdBy": self.user(content.creator),
            "createdDate": self.time(content.created),
        }
        if "lastUpdated" in want:
            shown["lastUpdated"] = self._version(content, {})
        hidden = {k: "" for k in ("lastUpdated", "previousVersion", "contributors") if k not in shown}
        return {**shown, "_expandable": hidden}

    def _body(self, content: Content, want: Tree) -> Json:
        shown: Json = {form: self.body(content, form) for form in BODIES if form in want}
        return {**shown, "_expandable": {form: "" for form in BODIES if form not in want}}

    def _metadata(self, content: Content, want: Tree) -> Json:
        shown: Json = {}
        if "labels" in want:
            shown["labels"] = listed([self.label(name) for name in content.labels], 200)
        hidden = {k: "" for k in ("labels", "properties", "frontend", "currentuser") if k not in shown}
        return {**shown, "_expandable": hidden}

    def _container(self, content: Content, want: Tree) -> Json:
        if content.container:
            return self.content(self._model.contents[content.container], want)
        return self.space(self._model.spaces[content.space])

    def _restrictions(self, content: Content, want: Tree) -> Json:
        want = {} if self._model.hide_restrictions else want
        shown: Json = {op: self.operation(content, op, want[op]) for op in ("read", "update") if op in want}
        return {**shown, "_expandable": {op: "" for op in ("read", "update") if op not in want}}

    def _extensions(self, content: Content, want: Tree) -> Json:
        if content.kind == "attachment":
            return {"mediaType": content.media_type, "fileSize": len(content.data), "comment": ""}
        if content.kind != "comment":
            return {"position": "none"}
        shown: Json = {"location": "footer" if content.location == "footer" else "inline"}
        if content.location != "footer" and "resolution" in want:
            shown["resolution"] = {"status": "resolved" if content.location == "resolved" else "open"}
        if content.location != "footer" and "inlineProperties" in want:
            shown["inlineProperties"] = {"originalSelection": "some words", "markerRef": f"ref-{content.id}"}
        hidden = {k: "" for k in ("resolution", "inlineProperties") if k not in shown}
        return {**shown, "_expandable": hidden}

    def _children(self, content: Content, want: Tree) -> Json:
        below = {
            "page": self._model.pages_below(content.id),
            "comment": [
                c for c in self._model.hanging_on(content.id) if c.kind == "comment" and not c.parent
            ],
            "attachment": [c for c in self._model.hanging_on(content.id) if c.kind == "attachment"],
        }
        shown: Json = {
            kind: listed(
                [
                    self.content(c, want[kind])
                    for c in found
                    if self._model.is_current(c) and self._model.is_visible(c)
                ],
                CHILDREN_SHOWN,
            )
            for kind, found in below.items()
            if kind in want
        }
        return {**shown, "_expandable": {kind: "" for kind in below if kind not in want}}

    def _subject(self, kind: str, name: str) -> Json:
        if kind == "user":
            return self.user(name)
        group: Json = {"type": "group", "name": name}
        return {**group, "id": f"group-id-{name}"} if self.cloud else group


def listed(results: list[Json], limit: int) -> Json:
    """A list inside a content; longer ones are cut without a word."""
    shown = results[:limit]
    return {"results": shown, "start": 0, "limit": limit, "size": len(shown)}


def account_id(name: str) -> str:
    """Cloud's opaque name of a user."""
    return f"712020:{name}"
