"""Populated services of every kind, sources that read them, and the world of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from connectors import ProtectedSource
from connectors.documents.options import DecisionRules, SourceContext
from connectors.rest.options import RestOptions
from connectors.rest.source import RestSource
from connectors.web.limiter import LocalRequestLimiter
from tests.connectors.worlds import Clock, World, options_facts, with_access
from tests.fakes.rest_service import TOKEN, FakeGitHub, FakeJira, FakeRest, FakeTickets, Style
from tests.fakes.server import Fault, Seen

PAGING: dict[str, dict[str, Any]] = {
    "cursor": {"cursor": "meta.next", "param": "cursor"},
    "number": {"number": 1, "param": "page", "total": "meta.total"},
    "offset": {"offset": True, "param": "offset", "total": "meta.total"},
    "link": {"link": True},
    "url": {"url": "meta.next_url"},
}
TICKETS: dict[str, Any] = {
    "list": {
        "path": "/tickets",
        "params": {"updated_since": "{cursor}", "page_size": 50},
        "records": "data.items",
        "next": PAGING["cursor"],
    },
    "walk": {"params": {"sort": "created"}},
    "changed": {"field": "updated_at"},
    "item": {"path": "/tickets/{id}", "record": "ticket"},
    "children": [
        {
            "name": "Comments", "path": "/tickets/{id}/comments", "records": "data", "next": PAGING["cursor"],
            "count": "comments", "text": "body", "author": "user.name", "created": "at",
        }
    ],
    "document": {
        "title": "subject", "url": "links.web", "text": "description", "format": "html", "kind": "work", "status": "state",
        "created": "created_at", "tags": "labels",
    },
}  # fmt: skip
"""A section for the tickets, as a person would write it."""


def options_for(fake: FakeRest, *, clock: Clock | None = None, **changes: Any) -> RestOptions:
    """Reads the tickets, or what a preset names; impatient enough for tests."""
    limiter = LocalRequestLimiter(clock) if clock else LocalRequestLimiter()
    tickets = TICKETS if isinstance(fake, FakeTickets) else {}
    section: dict[str, Any] = {
        "name": "desk",
        "bearer": TOKEN,
        "connect_timeout": 2,
        "read_timeout": 2,
        **tickets,
    }
    section["base_url"] = fake.address + "/api" * bool(tickets)
    if isinstance(fake, FakeTickets):
        section["list"] = {**TICKETS["list"], "next": PAGING[fake.style]}
    access, facts = changes.pop("access", None), options_facts(changes)
    observe = changes.pop("observe", lambda _kind, _text: None)
    context = SourceContext(
        limiter=lambda: limiter, decisions=changes.pop("decisions", DecisionRules()), observe=observe
    )
    options = RestOptions.model_validate({**section, **facts, **changes}).with_context(context)
    return with_access(options, access)


def source_for(fake: FakeRest, *, clock: Clock | None = None, **changes: Any) -> ProtectedSource:
    """Opened anew, as another process would."""
    options = options_for(fake, clock=clock, **changes)
    return ProtectedSource(RestSource(options), options)


def at(path: str) -> Callable[[Seen], bool]:
    """Accepts requests of exactly this path."""
    return lambda seen: seen.path == path


@contextmanager
def tickets_world(style: Style, *, items: int = 60, most: int = 50) -> Iterator[World[FakeTickets]]:
    """Tickets with every way of paging, so many in an answer and on a page."""
    with FakeTickets(style) as fake:
        fake.most = most
        ids = [fake.add(f"<p>Text first of {n}.</p>") for n in range(items)]

        def edit(word: str) -> str:
            fake.edit(ids[11], description=f"<p>Text {word} of 11.</p>")
            return ids[11]

        def remove() -> str:
            del fake.records[ids[5]]
            return ids[5]

        def add() -> str:
            return fake.add("<p>Text new.</p>")

        def spoil() -> tuple[str, str]:
            fake.faults.next(Fault.status(500), when=at(f"/api/tickets/{ids[7]}"), times=None)
            return ids[7], ids[7]

        opened = partial(source_for, page_items=most)
        yield World.served(fake, opened, items, edit=edit, remove=remove, add=add, spoil=spoil)


@contextmanager
def jira_world(*, cloud: bool, items: int = 60, most: int = 50) -> Iterator[World[FakeJira]]:
    """Issues of Jira, one of which has more comments than a list shows."""
    with FakeJira(cloud=cloud) as fake:
        fake.most = most
        ids = [fake.add(f"Text first of {n}.") for n in range(items)]
        for n in range(25):
            fake.comment(ids[7], f"Comment {n}")

        def edit(word: str) -> str:
            fake.edit(ids[11], f"Text {word} of 11.")
            return ids[11]

        def remove() -> str:
            del fake.records[ids[5]]
            return ids[5]

        def add() -> str:
            return fake.add("Text new.")

        def spoil() -> tuple[str, str]:
            fake.faults.next(Fault.status(500), when=at(f"{fake.base}/issue/{ids[7]}/comment"), times=None)
            return ids[7], ids[7]

        preset = "jira" if cloud else "jira_datacenter"
        yield World.served(
            fake,
            partial(source_for, preset=preset, values={"jql": "project = SHOP"}, page_items=most),
            items,
            edit=edit,
            remove=remove,
            add=add,
            spoil=spoil,
        )


@contextmanager
def github_world(*, items: int = 60, most: int = 50) -> Iterator[World[FakeGitHub]]:
    """Issues of a repository."""
    with FakeGitHub() as fake:
        fake.most = most
        ids = [fake.add(f"Text first of {n}.") for n in range(items)]
        fake.comment(ids[7], "A comment")

        def edit(word: str) -> str:
            fake.edit(ids[11], body=f"Text {word} of 11.")
            return ids[11]

        def remove() -> str:
            del fake.records[ids[5]]
            return ids[5]

        def add() -> str:
            return fake.add("Text new.")

        def spoil() -> tuple[str, str]:
            fake.faults.next(
                Fault.status(500), when=at(f"/repos/example/shop/issues/{ids[7]}/comments"), times=None
            )
            return ids[7], ids[7]

        yield World.served(
            fake,
            partial(source_for, preset="github", values={"repo": "example/shop"}, page_items=most),
            items,
            edit=edit,
            remove=remove,
            add=add,
            spoil=spoil,
        )
