"""Queries, work items and comments as a pretended Azure DevOps answers them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from tests.fakes.azure_devops_call import Call, collection
from tests.fakes.azure_devops_errors import Refusal, bad_request, no_item, too_many
from tests.fakes.azure_devops_feed import Feed
from tests.fakes.azure_devops_records import Item, Project, Revision
from tests.fakes.azure_devops_shapes import Json, moment
from tests.fakes.azure_devops_wiql import Query, Scope, parse
from tests.fakes.server import Answer

BATCH = 200


class Endpoints(Feed):
    """The methods are named in `azure_devops_resources.RESOURCES`."""

    # --- queries

    def wiql(self, call: Call) -> Answer:
        text = call.body().get("query")
        if not isinstance(text, str) or not text.strip():
            raise bad_request("TF400898: The query text is missing.")
        homes = list(self._boards.projects.values())
        scope = Scope(
            fields=self._boards.fields,
            areas={path.lower() for p in homes for path in (*p.areas, *p.iterations)},
            now=self._boards.now,
            zone=self._zone,
            precise=call.flag("timePrecision"),
            me="Robo Reader",
            project=call.project.name if call.project else None,
        )
        query = parse(text, scope)
        ids = self._hits(query)
        if len(ids) > self._limits.hits:
            raise too_many(self._limits.hits)
        top = call.number("$top", len(ids))
        columns = [self._column(f.reference) for f in query.columns]
        order = [{"field": self._column(f.reference), "descending": down} for f, down in query.order]
        return Answer(
            json={
                "queryType": "flat",
                "queryResultType": "workItem",
                "asOf": moment(self._boards.now),
                "columns": columns,
                **({"sortColumns": order} if order else {}),
                "workItems": [{"id": n, "url": self._shapes.item_url(n)} for n in ids[:top]],
            }
        )

    def _hits(self, query: Query) -> list[int]:
        living = (i.now for i in self._boards.items.values() if i.living and self._boards.shown(i.now))
        found = [revision for revision in living if query.match(revision.fields)]
        found.sort(key=lambda r: -r.watermark)  # nobody may rely on an order that was not asked for
        for field, descending in reversed(query.order):
            found.sort(key=_sorter(field.reference), reverse=descending)
        return [revision.item.id for revision in found]

    # --- items

    def items(self, call: Call) -> Answer:
        if "id" not in call.args:
            return self._batch(
                call,
                ids=self._ids(list(call.names("ids"))),
                fields=call.names("fields"),
                expand=call.text("$expand", "none"),
                omit=call.text("errorPolicy").lower() == "omit",
                as_of=call.date("asOf"),
            )
        fields, expand = self._selection(call.names("fields"), call.text("$expand", "none"))
        revision = self._readable(call.item_id(), call.project, call.date("asOf"))
        return Answer(json=self._shapes.item(revision, fields=fields, expand=expand))

    def items_batch(self, call: Call) -> Answer:
        body = call.body()
        as_of = body.get("asOf")
        return self._batch(
            call,
            ids=self._ids(body.get("ids")),
            fields=tuple(body.get("fields") or ()),
            expand=str(body.get("$expand") or "none"),
            omit=str(body.get("errorPolicy")).lower() in ("omit", "2"),
            as_of=datetime.fromisoformat(as_of) if as_of else None,
        )

    def _batch(
        self,
        call: Call,
        *,
        ids: list[int],
        fields: Sequence[str],
        expand: str,
        omit: bool,
        as_of: datetime | None,
    ) -> Answer:
        """One answer per id, in the order asked for; null for what cannot be read if that is to be omitted."""
        if len(ids) > BATCH:
            text = f"VS403474: You have requested {len(ids)} work items which exceeds the limit of {BATCH}."
            raise Refusal(400, "WorkItemPageSizeExceededException", text)
        fields, expand = self._selection(fields, expand)
        found: list[Json | None] = []
        for item_id in ids:
            try:
                revision = self._readable(item_id, call.project, as_of)
            except Refusal:
                if not omit:
                    raise
                found.append(None)
            else:
                found.append(self._shapes.item(revision, fields=fields, expand=expand))
        return collection(found)

    def updates(self, call: Call) -> Answer:
        item = self._readable(call.item_id(), call.project).item
        if "updateNumber" in call.args:
            return Answer(json=self._shapes.update(item, self._number(call, "updateNumber", item)))
        revs = self._window(call, item)
        return collection([self._shapes.update(item, rev) for rev in revs])

    def revisions(self, call: Call) -> Answer:
        item = self._readable(call.item_id(), call.project).item
        _, expand = self._selection((), call.text("$expand", "none"))
        if "revisionNumber" in call.args:
            revision = item.revisions[self._number(call, "revisionNumber", item) - 1]
            return Answer(json=self._shapes.item(revision, expand=expand))
        return collection(
            [self._shapes.item(item.revisions[r - 1], expand=expand) for r in self._window(call, item)]
        )

    def comments(self, call: Call) -> Answer:
        """Newest first unless `order=asc`, in pages."""
        if call.project is None:
            raise bad_request("The project is missing in the address.")
        item = self._readable(call.item_id("workItemId"), call.project).item
        rendered = call.text("$expand").lower() in ("renderedtext", "renderedtextonly", "all")
        known = [c for c in item.comments if call.flag("includeDeleted") or not c.deleted]
        if "commentId" in call.args:
            one = next((c for c in known if str(c.id) == call.args["commentId"]), None)
            if one is None:
                raise Refusal(404, "CommentNotFoundException", "VS403661: The comment does not exist.")
            return Answer(json=self._shapes.comment(item, one, rendered=rendered))
        total = len(known)
        if call.text("order").lower() != "asc":
            known.reverse()
        wanted = call.names("ids")
        known = [c for c in known if not wanted or str(c.id) in wanted]
        top, after = call.number("$top", BATCH, most=BATCH) or BATCH, self._comment_after(call)
        start = next((n + 1 for n, c in enumerate(known) if c.id == after), 0)
        page = known[start : start + top]
        answer: Json = {
            "totalCount": total,
            "count": len(page),
            "comments": [self._shapes.comment(item, c, rendered=rendered) for c in page],
        }
        if start + len(page) < len(known):
            token = base64.b64encode(b"\xfb\xef\xbe" + str(page[-1].id).encode()).decode()  # has + and =
            answer["continuationToken"] = token
            answer["nextPage"] = f"{self._base}{call.seen.path}?continuationToken={token}"
        return Answer(json=answer)

    @staticmethod
    def _comment_after(call: Call) -> int | None:
        raw = call.text("continuationToken")
        if not raw:
            return None
        try:
            return int(base64.b64decode(raw, validate=True)[3:])
        except ValueError:
            raise bad_request("VS403663: The continuation token is not valid.") from None

    # --- inside

    def _readable(self, item_id: int, project: Project | None, as_of: datetime | None = None) -> Revision:
        item = self._boards.items.get(item_id)
        if item is None or not self._boards.readable(item) or (project and item.now.project != project.name):
            raise no_item(item_id)
        then = [r for r in item.revisions if as_of is None or r.at <= as_of]
        if not then:
            raise no_item(item_id)
        return then[-1]

    @staticmethod
    def _ids(raw: Any) -> list[int]:
        if not isinstance(raw, list) or not raw:
            raise bad_request("TF400898: The ids are missing.")
        if not all(str(n).isdecimal() for n in raw):
            raise bad_request("The ids are not all numbers.")
        return [int(n) for n in raw]

    @staticmethod
    def _window(call: Call, item: Item) -> range:
        """Revision numbers of the asked page; never more than 200."""
        start = call.number("$skip", 0)
        size = min(call.number("$top", BATCH) or BATCH, BATCH)
        return range(start + 1, min(start + size, len(item.revisions)) + 1)

    @staticmethod
    def _number(call: Call, name: str, item: Item) -> int:
        number = call.item_id(name)
        if not 1 <= number <= len(item.revisions):
            raise Refusal(
                404, "WorkItemRevisionNotFoundException", f"TF401233: There is no revision {number}."
            )
        return number


def _sorter(reference: str) -> Callable[[Revision], tuple[bool, Any]]:
    def key(revision: Revision) -> tuple[bool, Any]:
        value = revision.fields.get(reference)
        return (value is not None, value.lower() if isinstance(value, str) else value)

    return key
