"""The stream of revisions and the recycle bin of a pretended Azure DevOps."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlencode

from tests.fakes.azure_devops_call import Call, collection
from tests.fakes.azure_devops_errors import bad_request, no_item, too_many
from tests.fakes.azure_devops_places import Places
from tests.fakes.azure_devops_records import Revision
from tests.fakes.server import Answer

_TOKEN = re.compile(r"(\d+);(\d+);(\d+)")


class Feed(Places):
    """What changed, in commit order."""

    def feed(self, call: Call) -> Answer:
        """Revisions in commit order, from a token or a date on."""
        wanted = call.body() if call.seen.method == "POST" and call.seen.body else {}

        def flag(name: str) -> bool:
            return bool(wanted.get(name)) or (call.seen.method == "GET" and call.flag(name))

        fields, _ = self._selection(tuple(wanted.get("fields") or call.names("fields")), "none")
        types = {t.lower() for t in (wanted.get("types") or call.names("types"))}
        start, since = self._feed_start(call)
        deleted, latest = flag("includeDeleted"), flag("includeLatestOnly")

        def fits(revision: Revision) -> bool:
            return (
                self._boards.shown(revision)
                and (call.project is None or revision.project == call.project.name)
                and (deleted or not revision.item.deleted)
                and (not latest or revision is revision.item.now)
                and (not types or str(revision.fields["System.WorkItemType"]).lower() in types)
                and (since is None or revision.at >= since)
            )

        page, end = self._feed_page(call, start, fits)
        last = end >= len(self._boards.history)
        token = self._token(end)
        long_text = call.text("$expand").lower() == "fields"
        people = flag("includeIdentityRef")
        values = [
            self._shapes.reported(r, fields=fields, long_text=long_text, people=people, deleted=deleted)
            for r in page
        ]
        return Answer(
            json={
                "values": values,
                "nextLink": self._next_link(call, token),
                "continuationToken": token,
                "isLastBatch": last,
            }
        )

    def _next_link(self, call: Call, token: str) -> str:
        """The same request behind this batch."""
        place = f"{self._base}/{call.project.id}" if call.project else self._base
        over = ("continuationtoken", "startdatetime")
        kept = {name: values[0] for name, values in call.seen.query.items() if name.lower() not in over}
        return (
            f"{place}/_apis/wit/reporting/workItemRevisions?{urlencode({**kept, 'continuationToken': token})}"
        )

    def _feed_start(self, call: Call) -> tuple[int, datetime | None]:
        raw, since = call.text("continuationToken"), call.date("startDateTime")
        if raw and since:
            raise bad_request("VS402395: startDateTime and continuationToken cannot be used together.")
        match = _TOKEN.fullmatch(raw) if raw else None
        start = int(match[1]) if match else 0
        if (raw and not match) or start > len(self._boards.history):
            raise bad_request("VS402394: The continuation token is not valid.")
        return start, since

    def _feed_page(
        self, call: Call, start: int, fits: Callable[[Revision], bool]
    ) -> tuple[list[Revision], int]:
        """The next revisions that fit, and the watermark up to which was looked."""
        size = min(call.number("$maxPageSize", self._limits.feed_page) or 1, self._limits.feed_most)
        history, page, at = self._boards.history, list[Revision](), start
        stop = start + size if self._limits.feed_scans else len(history)
        while at < min(stop, len(history)):
            if fits(history[at]):
                if len(page) == size:
                    return page, at
                page.append(history[at])
            at += 1
        return page, at

    def _token(self, watermark: int) -> str:
        if not watermark:
            return "0;0;0"
        revision = self._boards.history[watermark - 1]
        return f"{watermark};{revision.item.id};{revision.rev}"

    def recycle_bin(self, call: Call) -> Answer:
        binned = [
            item
            for item in self._boards.items.values()
            if item.deleted
            and not item.destroyed
            and (call.project is None or item.now.project == call.project.name)
        ]
        if "id" in call.args:
            one = next((i for i in binned if i.id == call.item_id()), None)
            if one is None:
                raise no_item(call.args["id"])
            return Answer(json={**self._shapes.binned(one), "resource": self._shapes.item(one.now)})
        wanted = call.names("ids")
        if wanted:
            return collection([self._shapes.binned(i) for i in binned if str(i.id) in wanted])
        if len(binned) > self._limits.hits:
            raise too_many(self._limits.hits)
        return collection([{"id": i.id, "url": f"{self._base}/_apis/wit/recyclebin/{i.id}"} for i in binned])
