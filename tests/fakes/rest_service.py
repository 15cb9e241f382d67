"""Small services: tickets with every way of paging, Jira (Cloud and Data Center), GitHub and GitLab."""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tests.fakes.server import Answer, FakeServer, Seen

Style = Literal["cursor", "number", "offset", "link", "url"]
STYLES: tuple[Style, ...] = ("cursor", "number", "offset", "link", "url")
TOKEN = "secret-token"


class FakeRest(FakeServer):
    """Records by id, each with the times of a clock that goes on by a minute with each change."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, dict[str, Any]] = {}
        self.comments: dict[str, list[dict[str, Any]]] = {}
        self.most = 50
        """Records of an answer at most."""
        self.clock = datetime.now(UTC).replace(microsecond=0) - timedelta(days=20)

    def tick(self, seconds: int = 60) -> str:
        """A later time, in the form of the service."""
        self.clock += timedelta(seconds=seconds)
        return self.clock.strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(self, seen: Seen) -> Answer:
        if (
            TOKEN
            not in f"{seen.headers.get('Authorization', '')}{seen.headers.get('X-Key', '')}{seen.first('who')}"
        ):
            return Answer(status=401, json={"message": "who are you"})
        with self.lock:
            return copy.deepcopy(self.routed(seen)) or Answer(status=404, json={"message": "no such record"})

    def routed(self, seen: Seen) -> Answer | None:
        raise NotImplementedError


def _since(records: list[dict[str, Any]], text: str, updated: str = "updated_at") -> list[dict[str, Any]]:
    return [record for record in records if record[updated] >= text]


class FakeTickets(FakeRest):
    """Tickets below /api: the list is brief, /tickets/ID has the text, /tickets/ID/comments the comments."""

    def __init__(self, style: Style = "cursor", *, most: int = 50) -> None:
        super().__init__()
        self.style, self.most = style, most
        self.expired = False
        """True: cursors given out before are refused, once."""

    def add(self, body: str = "<p>Text.</p>", **fields: Any) -> str:
        number = str(max(map(int, self.records), default=0) + 1)
        at = self.tick()
        self.records[number] = {
            "id": int(number), "subject": f"Ticket {number}", "description": body, "state": "open", "labels": ["a", "b"],
            "links": {"web": f"/desk/{number}"}, "created_at": at, "updated_at": at, "groups": ["agents"], **fields,
        }  # fmt: skip
        return number

    def edit(self, number: str, **fields: Any) -> None:
        self.records[number] |= {"updated_at": self.tick(), **fields}

    def comment(self, number: str, body: str, author: str = "Ann Lee") -> None:
        self.comments.setdefault(number, []).append(
            {"body": body, "user": {"name": author}, "at": self.tick()}
        )
        self.edit(number)

    def routed(self, seen: Seen) -> Answer | None:
        match = re.fullmatch(r"/api/tickets(?:/(\d+)(/comments)?)?", seen.path)
        if match is None:
            return None
        number, comments = match.groups()
        if comments:
            return Answer(json={"data": self.comments.get(number, [])})
        if number:
            record = self.records.get(number)
            return (
                Answer(json={"ticket": {**record, "comments": len(self.comments.get(number, []))}})
                if record
                else None
            )
        return self.listed(seen)

    def listed(self, seen: Seen) -> Answer:
        order = "created_at" if seen.first("sort") == "created" else "updated_at"
        rows = _since(list(self.records.values()), seen.first("updated_since"))
        rows.sort(key=lambda row: (row[order], row["id"]), reverse=seen.first("sort") == "-updated")
        size = min(self.most, int(seen.first("page_size", "50")))
        position = seen.first("page") or seen.first("offset") or seen.first("cursor", "c0").removeprefix("c")
        if self.expired and seen.first("cursor"):
            self.expired = False
            return Answer(status=400, json={"message": "that cursor has expired"})
        start = (int(position) - 1) * size if self.style == "number" else int(position)
        page = [{k: v for k, v in row.items() if k != "description"} for row in rows[start : start + size]]
        after = start + size if start + size < len(rows) else None
        query = "&".join(f"{k}={v[0]}" for k, v in seen.query.items() if k not in ("cursor", "who"))
        key = f"&who={seen.first('who')}" if seen.first("who") else ""
        address = f"{self.address}/api/tickets?{query}&cursor=c{after}{key}" if after else None
        headers = {"Link": f'<{address}>; rel="next", <{self.address}/api>; rel="first"'} if address else {}
        meta = {"next": f"c{after}" if after else None, "next_url": address, "total": len(rows)}
        return Answer(
            json={"data": {"items": page}, "meta": meta}, headers=headers if self.style == "link" else {}
        )


class FakeGitHub(FakeRest):
    """Issues of example/shop, with the header Link."""

    def add(self, body: str = "Text.", **fields: Any) -> str:
        number, at = str(len(self.records) + 1), self.tick()
        self.records[number] = {
            "number": int(number), "title": f"Issue {number}", "body": body, "state": "open", "state_reason": None,
            "html_url": f"https://github.example/example/shop/issues/{number}", "user": {"login": "ann"}, "comments": 0,
            "labels": [{"name": "bug"}], "assignees": [], "created_at": at, "updated_at": at, **fields,
        }  # fmt: skip
        return number

    def edit(self, number: str, **fields: Any) -> None:
        self.records[number] |= {"updated_at": self.tick(), **fields}

    def comment(self, number: str, body: str) -> None:
        self.comments.setdefault(number, []).append(
            {"body": body, "user": {"login": "bob"}, "created_at": self.tick()}
        )
        self.edit(number, comments=len(self.comments[number]))

    def routed(self, seen: Seen) -> Answer | None:
        match = re.fullmatch(r"/repos/example/shop/issues(?:/(\d+)(/comments)?)?", seen.path)
        if match is None:
            return None
        number, comments = match.groups()
        if number and not comments:
            return Answer(json=self.records[number]) if number in self.records else None
        order = "created_at" if seen.first("sort") == "created" else "updated_at"
        rows = (
            self.comments.get(number, [])
            if comments
            else _since(list(self.records.values()), seen.first("since"))
        )
        if not comments:
            rows.sort(key=lambda row: (row[order], row["number"]))
        size, page = min(self.most, int(seen.first("per_page", "30"))), int(seen.first("page", "1"))
        query = "&".join(f"{k}={v[0]}" for k, v in seen.query.items() if k != "page")
        address = f"{self.address}{seen.path}?{query}&page={page + 1}"
        headers = {"Link": f'<{address}>; rel="next"'} if page * size < len(rows) else {}
        return Answer(json=rows[(page - 1) * size : page * size], headers=headers)


class FakeGitLab(FakeRest):
    """Issues of one project, without comments."""

    def add(self, body: str = "Text.", **fields: Any) -> str:
        number, at = str(len(self.records) + 1), self.tick()
        self.records[number] = {
            "id": 100 + int(number), "iid": int(number), "title": f"Issue {number}", "description": body, "state": "opened",
            "web_url": f"https://gitlab.example/shop/-/issues/{number}", "author": {"name": "Ann"}, "user_notes_count": 0,
            "confidential": False, "labels": [], "created_at": at, "updated_at": at, **fields,
        }  # fmt: skip
        return number

    def edit(self, number: str, body: str) -> None:
        self.records[number] |= {"updated_at": self.tick(), "description": body}

    def routed(self, seen: Seen) -> Answer | None:
        match = re.fullmatch(r"/projects/example(?:%2F|/)shop/issues(?:/(\d+))?", seen.path)
        if match is None:
            return None
        if match[1]:
            return Answer(json=self.records[match[1]]) if match[1] in self.records else None
        return Answer(json=_since(list(self.records.values()), seen.first("updated_after")))


def _paragraph(text: str) -> dict[str, Any]:
    return {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": text}]}],
    }


class FakeJira(FakeRest):
    """Issues of one project, asked by JQL: Cloud with tokens of pages, Data Center with startAt."""

    def __init__(self, *, cloud: bool = True) -> None:
        super().__init__()
        self.cloud = cloud
        self.base = "/rest/api/3" if cloud else "/rest/api/2"

    def add(self, text: str = "Text.", **fields: Any) -> str:
        key, at = f"SHOP-{len(self.records) + 1}", self.tick()
        self.records[key] = {
            "id": str(10_000 + len(self.records)), "key": key,
            "fields": {
                "summary": f"Issue {key}", "description": _paragraph(text) if self.cloud else text,
                "issuetype": {"name": "Story"}, "status": {"name": "To Do"}, "labels": ["web"], "created": at, "updated": at,
                "project": {"key": "SHOP"}, **fields,
            },
        }  # fmt: skip
        return key

    def edit(self, key: str, text: str | None = None, **fields: Any) -> None:
        new = {} if text is None else {"description": _paragraph(text) if self.cloud else text}
        self.records[key]["fields"] |= {"updated": self.tick(), **new, **fields}

    def comment(self, key: str, text: str, **more: Any) -> None:
        body = _paragraph(text) if self.cloud else text
        author = {"displayName": "Ann Lee"}
        self.comments.setdefault(key, []).append(
            {"author": author, "body": body, "created": self.tick(), **more}
        )
        self.edit(key)

    def shown(self, key: str) -> dict[str, Any]:
        """The issue as both the list and its own request have it."""
        record, comments = copy.deepcopy(self.records[key]), self.comments.get(key, [])
        record["fields"]["comment"] = {"comments": comments[:20], "total": len(comments)}
        if not self.cloud:
            record["renderedFields"] = {"description": f"<p>{record['fields']['description']}</p>"}
        return record

    def routed(self, seen: Seen) -> Answer | None:
        if seen.path == f"{self.base}/search/jql" if self.cloud else seen.path == f"{self.base}/search":
            return self.searched(seen)
        match = re.fullmatch(rf"{self.base}/issue/([A-Z]+-\d+)(/comment)?", seen.path)
        if match is None or match[1] not in self.records:
            return None
        if not match[2]:
            return Answer(json=self.shown(match[1]))
        start, rows = int(seen.first("startAt", "0")), list(self.comments.get(match[1], []))
        if not self.cloud:
            rows = [{**row, "renderedBody": f"<p>{row['body']}</p>"} for row in rows]
        return Answer(json={"comments": rows[start : start + 50], "startAt": start, "total": len(rows)})

    def searched(self, seen: Seen) -> Answer:
        jql, size = seen.first("jql"), min(self.most, int(seen.first("maxResults", "50")))
        order = "updated" if "ORDER BY updated" in jql else "created"
        keys = sorted(self.records, key=lambda key: (self.records[key]["fields"][order], len(key), key))
        ago = re.search(r"updated >= -(\d+)m", jql)
        since = (
            datetime.now(UTC) - timedelta(minutes=int(ago[1])) if ago else datetime(1970, 1, 1, tzinfo=UTC)
        )
        keys = [
            key
            for key in keys
            if self.records[key]["fields"]["updated"] >= since.strftime("%Y-%m-%dT%H:%M:%SZ")
        ]
        if key := re.search(r'AND key = "([^"]+)"', jql):
            keys = [one for one in keys if one == key[1]]
        if project := re.search(r"\(project = (\w+)\)", jql):
            keys = [one for one in keys if one.startswith(f"{project[1]}-")]
        start = int(seen.first("nextPageToken", "t0")[1:]) if self.cloud else int(seen.first("startAt", "0"))
        issues = [self.shown(key) for key in keys[start : start + size]]
        if not self.cloud:
            return Answer(json={"issues": issues, "startAt": start, "maxResults": size, "total": len(keys)})
        is_last = start + size >= len(keys)
        return Answer(
            json={
                "issues": issues,
                "isLast": is_last,
                **({} if is_last else {"nextPageToken": f"t{start + size}"}),
            }
        )
