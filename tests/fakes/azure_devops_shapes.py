"""Work items, comments, identities as the JSON a pretended Azure DevOps sends."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from tests.fakes.azure_devops_fields import LONG_TEXT, STATES
from tests.fakes.azure_devops_model import Boards
from tests.fakes.azure_devops_records import Comment, Item, Project, Relation, Revision

Json = dict[str, Any]
OPEN_END = "9999-01-01T00:00:00Z"
ASKED_FOR = ("System.Id", "System.Rev", "System.Watermark", "System.IsDeleted")


def moment(value: datetime) -> str:
    """UTC with milliseconds, zeros at the end dropped, as is the dot before them."""
    text = value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    return text.rstrip("0").rstrip(".") + "Z"


def american(value: datetime) -> str:
    """As the recycle bin writes it: 3/4/2025 9:30:00 AM."""
    hour = value.hour % 12 or 12
    half = "AM" if value.hour < 12 else "PM"
    return f"{value.month}/{value.day}/{value.year} {hour}:{value:%M:%S} {half}"


class Shapes:
    """Writes what the boards hold; `base` is the address of the organisation."""

    def __init__(self, boards: Boards, base: str) -> None:
        self._boards = boards
        self._base = base

    # --- small things

    def person(self, text: str) -> Json:
        """An identity as an object, made of `Name <mail>`."""
        name, _, mail = text.partition("<")
        mail = mail.rstrip("> ") or name.strip().lower().replace(" ", ".") + "@acme.example"
        person_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, mail))
        avatar = f"{self._base}/_apis/GraphProfile/MemberAvatars/aad.{person_id}"
        return {
            "displayName": name.strip(),
            "url": f"{self._base}/_apis/Identities/{person_id}",
            "_links": {"avatar": {"href": avatar}},
            "id": person_id,
            "uniqueName": mail,
            "imageUrl": avatar,
            "descriptor": f"aad.{person_id}",
        }

    def project(self, project: Project) -> Json:
        return {
            "id": project.id,
            "name": project.name,
            "url": f"{self._base}/_apis/projects/{project.id}",
            "state": "wellFormed",
            "revision": 11,
            "visibility": "private",
            "lastUpdateTime": "2025-01-02T03:04:05.6Z",
        }

    def type(self, project: Project, name: str) -> Json:
        states = [{"name": state, "color": "b2b2b2", "category": category} for state, category in STATES]
        return {
            "name": name,
            "referenceName": "Microsoft.VSTS.WorkItemTypes." + name.replace(" ", ""),
            "description": "",
            "color": "009CCC",
            "isDisabled": False,
            "states": states,
            "url": f"{self._base}/{project.id}/_apis/wit/workItemTypes/{name.replace(' ', '%20')}",
        }

    def item_url(self, item_id: int, project: str = "") -> str:
        """The address for programs, with the project's guid."""
        home = self._boards.project(project) if project else None
        return f"{self._base}/{home.id + '/' if home else ''}_apis/wit/workItems/{item_id}"

    # --- work items

    def value(self, name: str, value: Any, *, people: bool) -> Any:
        """A field's value; a person as an object or as `Name <mail>`."""
        if isinstance(value, datetime):
            return moment(value)
        if people and self._boards.fields[name].type == "identity":
            return self.person(str(value))
        return value

    def item(self, revision: Revision, *, fields: Collection[str] = (), expand: str = "none") -> Json:
        """With `fields` only these, in any case; with `expand` relations, links or all."""
        wanted = {name.lower() for name in fields}
        known = self._known(revision, asked=bool(wanted))
        found: Json = {
            "id": revision.item.id,
            "rev": revision.rev,
            "fields": {
                name: self.value(name, value, people=True)
                for name, value in known.items()
                if not wanted or name.lower() in wanted
            },
            "url": self.item_url(revision.item.id, revision.project),
        }
        formats = {n: f for n, f in revision.formats.items() if n in found["fields"]}
        if formats:
            found["multilineFieldsFormat"] = formats
        if expand in ("relations", "all"):
            relations = [self.relation(r) for r in revision.relations if self._visible(r)]
            if relations:
                found["relations"] = relations
        if expand in ("links", "all"):
            found["_links"] = self._links(revision)
        return found

    def _known(self, revision: Revision, *, asked: bool) -> dict[str, Any]:
        """Id, Rev and Watermark are in the fields only where they were asked for."""
        known = dict(revision.fields)
        if not asked:
            known = {name: value for name, value in known.items() if name not in ASKED_FOR}
        parent = known.get("System.Parent")
        if parent is not None and not self._boards.items[parent].living:
            del known["System.Parent"]
        return known

    def _visible(self, relation: Relation) -> bool:
        """Links to deleted items are hidden as long as these are in the recycle bin."""
        return isinstance(relation.target, str) or self._boards.items[relation.target].living

    def _links(self, revision: Revision) -> Json:
        item_id = revision.item.id
        here = self.item_url(item_id, revision.project)
        project = self._boards.project(revision.project)
        html = f"{self._base}/{project.id if project else ''}/_workitems/edit/{item_id}"
        return {
            "self": {"href": here},
            "workItemUpdates": {"href": here + "/updates"},
            "workItemRevisions": {"href": here + "/revisions"},
            "workItemComments": {"href": here + "/comments"},
            "html": {"href": html},
        }

    def relation(self, relation: Relation) -> Json:
        target = relation.target
        url = target
        if isinstance(target, int):
            url = self.item_url(target, self._boards.items[target].now.project)
        return {"rel": relation.rel, "url": url, "attributes": dict(relation.attributes)}

    # --- feed and history

    def reported(
        self, revision: Revision, *, fields: Collection[str], long_text: bool, people: bool, deleted: bool
    ) -> Json:
        """A revision as the reporting feed shows it."""
        item = revision.item
        following = item.revisions[revision.rev] if revision.rev < len(item.revisions) else None
        known = {**revision.fields, "System.RevisedDate": following.at if following else OPEN_END}
        gone = bool(known.pop("System.IsDeleted", False))
        if deleted:
            known["System.IsDeleted"] = gone
        wanted = {name.lower() for name in fields}
        types = self._boards.fields
        shown = {
            name: self.value(name, value, people=people)
            for name, value in known.items()
            if (not wanted or name.lower() in wanted) and (long_text or types[name].type not in LONG_TEXT)
        }
        return {"id": item.id, "rev": revision.rev, "fields": shown}

    def update(self, item: Item, rev: int) -> Json:
        """What one revision changed, old and new."""
        new = item.revisions[rev - 1]
        old = item.revisions[rev - 2] if rev > 1 else None
        before, after = dict(old.fields) if old else {}, dict(new.fields)
        fields: Json = {}
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                pair = (("oldValue", before.get(name)), ("newValue", after.get(name)))
                fields[name] = {k: self.value(name, v, people=True) for k, v in pair if v is not None}
        found: Json = {
            "id": rev,
            "workItemId": item.id,
            "rev": rev,
            "revisedBy": self.person(str(after["System.ChangedBy"])),
            "revisedDate": moment(item.revisions[rev].at) if rev < len(item.revisions) else OPEN_END,
            "fields": fields,
            "url": f"{self.item_url(item.id, new.project)}/updates/{rev}",
        }
        was = old.relations if old else ()
        changed = {
            "added": [self.relation(r) for r in new.relations if r not in was],
            "removed": [self.relation(r) for r in was if r not in new.relations],
        }
        relations = {k: v for k, v in changed.items() if v}
        return found | ({"relations": relations} if relations else {})

    def comment(self, item: Item, comment: Comment, *, rendered: bool) -> Json:
        found: Json = {
            "workItemId": item.id,
            "id": comment.id,
            "version": comment.version,
            "text": comment.text,
            "format": comment.format,
            "createdBy": self.person(comment.author),
            "createdDate": moment(comment.created),
            "modifiedBy": self.person(comment.author),
            "modifiedDate": moment(comment.modified),
            "url": f"{self.item_url(item.id, item.now.project)}/comments/{comment.id}",
        }
        if rendered:
            plain = comment.format == "html"
            found["renderedText"] = comment.text if plain else render(comment.text)
        if comment.deleted:
            found["isDeleted"] = True
        return found

    def binned(self, item: Item) -> Json:
        """One item of the recycle bin, in detail."""
        return {
            "id": item.id,
            "type": item.now.fields["System.WorkItemType"],
            "name": item.now.fields["System.Title"],
            "project": item.now.project,
            "deletedDate": american(item.now.at),
            "deletedBy": str(item.now.fields["System.ChangedBy"]),
            "code": 200,
            "url": f"{self._base}/_apis/wit/recyclebin/{item.id}",
            "message": None,
        }


def render(markdown: str) -> str:
    """A little of Markdown as HTML, so that a reader who takes the wrong one is seen."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", markdown)
    return "".join(f"<p>{part}</p>" for part in text.split("\n\n"))
