"""The state of a pretended Azure DevOps Boards, which a test changes as people would."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.azure_devops_fields import ALIASES, FIELDS, LINKS, LONG_TEXT, Field, FieldType
from tests.fakes.azure_devops_records import Comment, Item, Project, Relation, Revision

TICK = timedelta(milliseconds=10)
ROBOT = "Robo Writer <robo@acme.example>"


class Boards:
    """What the service knows, and how a test changes it. Every change is a revision in one commit order."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.now = datetime(2025, 3, 4, 9, 30, 0, 137000, tzinfo=UTC)
        """The service's clock; each change moves it on by 10 ms, nothing else does but `advance`."""
        self.projects: dict[str, Project] = {}
        self.items: dict[int, Item] = {}
        self.history: list[Revision] = []
        """Every revision in commit order; a watermark is a place in it, counted from 1."""
        self.fields: dict[str, Field] = dict(FIELDS)
        self.comment_edits_make_revisions = True
        self._listed: frozenset[int] | None = None
        self._next_comment = 1000

    # --- clock and places

    def advance(self, *, seconds: float = 0, minutes: float = 0, days: float = 0) -> None:
        with self.lock:
            self.now += timedelta(seconds=seconds, minutes=minutes, days=days)

    def add_project(self, name: str) -> str:
        """A new project; its guid comes back."""
        with self.lock:
            assert self.project(name) is None, f"there is a project {name} already"
            project = Project(
                name=name,
                id=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
                number=len(self.projects) + 1,
                types=["Bug", "Epic", "Feature", "Issue", "Task", "Test Case", "User Story"],
                areas={name},
                iterations={name},
            )
            self.projects[project.id] = project
            return project.id

    def project(self, name_or_id: str) -> Project | None:
        """By name or guid, in any case."""
        wanted = name_or_id.lower()
        return next((p for p in self.projects.values() if wanted in (p.id, p.name.lower())), None)

    def hide_project(self, name: str, *, hidden: bool = True) -> None:
        """The account may not see it any more: it answers as if there were none."""
        self._project(name).hidden = hidden

    def add_field(self, reference: str, kind: FieldType = "string", name: str = "") -> None:
        """A field of the team's own."""
        self.fields[reference] = Field(
            reference=reference, name=name or reference.rpartition(".")[2], type=kind
        )

    def add_area(self, project: str, path: str) -> str:
        """An area below the project, with all above it; the full path comes back."""
        return self._node(self._project(project), path, "areas")

    # --- items

    def add_item(self, project: str, type: str, title: str, **fields: Any) -> int:  # noqa: A002 (the service's word)
        """A new item; further fields by alias (`description`, `tags`, `state`, ...) or reference name.

        `markdown=True`: its long texts are Markdown; a list of reference names: those only.
        """
        with self.lock:
            home = self._project(project)
            item = Item(id=len(self.items) + 1)
            self.items[item.id] = item
            author = str(fields.pop("created_by", ROBOT))
            start = {"area": home.name, "iteration": home.name, "state": "New", "reason": "New", **fields}
            if type not in home.types:
                home.types.append(type)
            born = {
                "System.TeamProject": home.name,
                "System.WorkItemType": type,
                "System.CreatedDate": self.now,
                "System.CreatedBy": author,
                "System.CommentCount": 0,
                "Microsoft.VSTS.Common.StateChangeDate": self.now,
                "Microsoft.VSTS.Common.Priority": 2,
            }
            self._commit(item, {**born, "title": title, **start}, by=author)
            return item.id

    def bulk(self, project: str, count: int, type: str = "Task") -> range:  # noqa: A002 (the service's word)
        """Many plain items at once; their ids come back."""
        with self.lock:
            first = len(self.items) + 1
            for n in range(first, first + count):
                self.add_item(project, type, f"Item {n}", description=f"<div>Text first of {n}.</div>")
            return range(first, first + count)

    def edit(self, item_id: int, **fields: Any) -> None:
        """One revision with these fields; None empties one."""
        with self.lock:
            self._commit(self._living(item_id), fields)

    def set_state(self, item_id: int, state: str, reason: str = "") -> None:
        """As the form does it: with the dates and persons of closing and resolving."""
        with self.lock:
            now = self.now
            over: dict[str, Any] = {"Microsoft.VSTS.Common.StateChangeDate": now}
            closed, resolved = state in ("Closed", "Done", "Completed"), state == "Resolved"
            over["Microsoft.VSTS.Common.ClosedDate"] = now if closed else None
            over["Microsoft.VSTS.Common.ClosedBy"] = ROBOT if closed else None
            if state in ("New", "Active"):
                over["Microsoft.VSTS.Common.ActivatedDate"] = now if state == "Active" else None
            if resolved or state in ("New", "Active"):
                over["Microsoft.VSTS.Common.ResolvedDate"] = now if resolved else None
                over["Microsoft.VSTS.Common.ResolvedReason"] = (reason or None) if resolved else None
            reason = reason or f"Moved to state {state}"
            self._commit(self._living(item_id), {"state": state, "reason": reason, **over})

    def change_type(self, item_id: int, type: str) -> None:  # noqa: A002 (the service's word)
        self.edit(item_id, **{"System.WorkItemType": type})

    def move(self, item_id: int, project: str) -> None:
        """To another project; area and iteration become its roots."""
        name = self._project(project).name
        self.edit(item_id, **{"System.TeamProject": name, "area": name, "iteration": name})

    def delete(self, item_id: int) -> None:
        """Into the recycle bin: gone from queries, a tombstone in the feeds."""
        with self.lock:
            item = self._living(item_id)
            item.deleted = True
            self._commit(item, {"System.IsDeleted": True})

    def restore(self, item_id: int) -> None:
        with self.lock:
            item = self.items[item_id]
            assert item.deleted, f"item {item_id} is not in the recycle bin"
            assert not item.destroyed, f"item {item_id} is gone for ever"
            item.deleted = False
            self._commit(item, {"System.IsDeleted": None})

    def destroy(self, item_id: int) -> None:
        """For ever and without a trace: not in the recycle bin, not in any feed."""
        with self.lock:
            self.items[item_id].destroyed = True

    def forbid(self, item_id: int, *, listed: bool = True) -> None:
        """Unreadable from now on; `listed`: queries and feeds name it all the same."""
        with self.lock:
            item = self.items[item_id]
            item.forbidden, item.listed = True, listed

    def allow(self, item_id: int) -> None:
        with self.lock:
            item = self.items[item_id]
            item.forbidden, item.listed = False, True

    # --- links and comments

    def link(self, item_id: int, other: int, kind: str = "related") -> None:
        """`kind` says what `other` is to the item: parent, child, related, duplicate, ...

        `duplicate of` is what the form sets on the copy: `other` is the item that it repeats.
        """
        with self.lock:
            there, back = LINKS[kind]
            for one, rel, two in ((item_id, there, other), (other, back, item_id)):
                attributes = {
                    "isLocked": False,
                    "name": next(k for k, v in LINKS.items() if v[0] == rel).title(),
                }
                self._relate(one, Relation(rel=rel, target=two, attributes=attributes))

    def unlink(self, item_id: int, other: int) -> None:
        with self.lock:
            for one, two in ((item_id, other), (other, item_id)):
                item = self._living(one)
                orphan = {"System.Parent": None} if item.now.fields.get("System.Parent") == two else {}
                self._commit(item, orphan, relations=tuple(r for r in item.now.relations if r.target != two))

    def attach(self, item_id: int, rel: str, url: str, **attributes: Any) -> None:
        """An AttachedFile, Hyperlink or ArtifactLink."""
        with self.lock:
            self._relate(item_id, Relation(rel=rel, target=url, attributes=attributes))

    def comment(self, item_id: int, text: str, format: str = "html", by: str = ROBOT) -> int:  # noqa: A002 (the service's word)
        with self.lock:
            item = self._living(item_id)
            self._next_comment += 1
            item.comments.append(
                Comment(
                    id=self._next_comment,
                    text=text,
                    format=format,
                    author=by,
                    created=self.now,
                    modified=self.now,
                )
            )
            self._commit(item, {"System.History": text, **self._count(item)}, by=by)
            return self._next_comment

    def edit_comment(self, item_id: int, comment_id: int, text: str) -> None:
        with self.lock:
            item, comment = self._comment(item_id, comment_id)
            comment.text, comment.modified = text, self.now
            comment.version += 1
            self._after_comment(item)

    def delete_comment(self, item_id: int, comment_id: int) -> None:
        with self.lock:
            item, comment = self._comment(item_id, comment_id)
            comment.deleted, comment.modified = True, self.now
            comment.version += 1
            self._after_comment(item)

    # --- a service that forgets

    def lists_only(self, share: float | None) -> None:
        """Of the items there now, queries and feeds show this share; None: all again. Reading by id still works."""
        with self.lock:
            ids = sorted(item.id for item in self.items.values() if item.living)
            self._listed = None if share is None else frozenset(ids[: math.ceil(len(ids) * share)])
            self._listed_until = len(self.history)

    def shown(self, revision: Revision) -> bool:
        """Whether a query or feed may name this revision's item."""
        item = revision.item
        if item.destroyed or not item.listed or self._project(revision.project).hidden:
            return False
        return self._listed is None or item.id in self._listed or revision.watermark > self._listed_until

    def readable(self, item: Item | None) -> bool:
        """Whether it can be read by id."""
        if item is None or not item.living or item.forbidden:
            return False
        return not self._project(item.now.project).hidden

    # --- inside

    def _project(self, name: str) -> Project:
        project = self.project(name)
        assert project is not None, f"no project {name}"
        return project

    def _living(self, item_id: int) -> Item:
        item = self.items[item_id]
        assert item.living, f"item {item_id} is deleted"
        return item

    def _comment(self, item_id: int, comment_id: int) -> tuple[Item, Comment]:
        item = self._living(item_id)
        return item, next(c for c in item.comments if c.id == comment_id)

    @staticmethod
    def _count(item: Item) -> dict[str, Any]:
        return {"System.CommentCount": sum(not c.deleted for c in item.comments)}

    def _after_comment(self, item: Item) -> None:
        if self.comment_edits_make_revisions:
            self._commit(item, self._count(item))

    def _relate(self, item_id: int, relation: Relation) -> None:
        item = self._living(item_id)
        kept = tuple(r for r in item.now.relations if (r.rel, r.target) != (relation.rel, relation.target))
        parent = {"System.Parent": relation.target} if relation.rel == LINKS["parent"][0] else {}
        self._commit(item, parent, relations=(*kept, relation))

    @staticmethod
    def _node(project: Project, path: str, tree: str) -> str:
        full = (
            path
            if path == project.name or path.startswith(project.name + "\\")
            else f"{project.name}\\{path}"
        )
        parts = full.split("\\")
        getattr(project, tree).update("\\".join(parts[:n]) for n in range(1, len(parts) + 1))
        return full

    def _commit(
        self,
        item: Item,
        changes: Mapping[str, Any],
        *,
        by: str = ROBOT,
        relations: tuple[Relation, ...] | None = None,
    ) -> None:
        """The next revision: what was, the changes on top, empty fields away."""
        old = item.now if item.revisions else None
        fields = dict(old.fields) if old else {}
        fields.pop("System.History", None)  # belongs to the revision that brought it
        changes = dict(changes)
        markdown = changes.pop("markdown", None)
        named = {ALIASES.get(name, name): value for name, value in changes.items()}
        for name, value in named.items():
            assert name in self.fields, f"no field {name}; use add_field"
            fields[name] = "; ".join(value) if isinstance(value, list | tuple) else value
        home = self._project(str(fields["System.TeamProject"]))
        fields["System.AreaPath"] = self._node(home, str(fields["System.AreaPath"]), "areas")
        fields["System.IterationPath"] = self._node(home, str(fields["System.IterationPath"]), "iterations")
        fields["System.ChangedDate"], fields["System.ChangedBy"] = self.now, by
        rev, watermark = len(item.revisions) + 1, len(self.history) + 1
        fields |= {"System.Id": item.id, "System.Rev": rev, "System.Watermark": watermark}
        revision = Revision(
            item=item,
            rev=rev,
            watermark=watermark,
            at=self.now,
            fields={k: v for k, v in fields.items() if v not in (None, "")},
            relations=relations if relations is not None else (old.relations if old else ()),
            formats=self._formats(old, named, markdown),
        )
        item.revisions.append(revision)
        self.history.append(revision)
        self.now += TICK

    def _formats(self, old: Revision | None, changed: Mapping[str, Any], markdown: object) -> dict[str, str]:
        """A field stays what it was unless the change says otherwise."""
        formats = dict(old.formats) if old else {}
        for name in changed:
            if name == "System.History" or self.fields[name].type not in LONG_TEXT or markdown is None:
                continue
            if markdown is True or (isinstance(markdown, list | tuple) and name in markdown):
                formats[name] = "markdown"
            else:
                formats.pop(name, None)
        return formats
