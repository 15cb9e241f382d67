"""Where a source of work items stopped: the cursor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pipeline.documents import Cursor

Tokens = Mapping[str, str | None]
"""Places in the feeds by project; None is the very start of a feed."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Every step gives a new one; each can be kept and resumed from."""

    selection: str
    tokens: Tokens = field(default_factory=dict)
    """Projects whose first walk ended: where their feed goes on."""
    starts: Tokens = field(default_factory=dict)
    """Projects still to be walked: where their feed stood before."""
    floor: int | None = None
    """The walk takes ids above this one (maxItems); None as long as nobody counted."""
    project: str = ""
    """The one that is being walked."""
    after: int = 0
    """The last id of `project` that was taken."""
    todo: tuple[int, ...] = ()
    """Ids the feed has named and that were not read yet."""

    @classmethod
    def of(cls, since: Cursor | None, selection: str) -> Self:
        """What a cursor says; the very start for none, for one of other settings, and for one that is broken."""
        since = since or {}
        walk = since.get("walk") or {}
        tokens, todo = since.get("tokens") or {}, since.get("todo") or []
        if since.get("selection") != selection or not (isinstance(walk, Mapping) and isinstance(todo, list)):
            return cls(selection=selection)
        return cls(
            selection=selection,
            tokens=_tokens(tokens),
            starts=_tokens(walk.get("tokens")),
            floor=None if walk.get("floor") is None else _number(walk.get("floor")),
            project=str(walk.get("project") or ""),
            after=_number(walk.get("after")),
            todo=tuple(n for n in todo if isinstance(n, int)),
        )

    def cursor(self) -> dict[str, Any]:
        """As JSON."""
        walk = {
            "tokens": dict(self.starts),
            "floor": self.floor,
            "project": self.project,
            "after": self.after,
        }
        return {
            "selection": self.selection,
            "tokens": dict(self.tokens),
            **({"walk": walk} if self.starts else {}),
            **({"todo": list(self.todo)} if self.todo else {}),
        }

    def starting(self, starts: Tokens) -> Self:
        """These projects are to be walked; their feeds stand there."""
        return replace(self, starts={**self.starts, **starts})

    def above(self, floor: int) -> Self:
        """The walk leaves out these ids and all below."""
        return replace(self, floor=floor)

    def walking(self, project: str) -> Self:
        """In the walk of this project; from its beginning unless it is the one that was interrupted."""
        return self if self.project == project else replace(self, project=project, after=0)

    def walked(self, project: str) -> Self:
        """At the end of the walk of this project."""
        tokens = {**self.tokens, project: self.starts.get(project)}
        starts = {name: token for name, token in self.starts.items() if name != project}
        return replace(
            self, tokens=tokens, starts=starts, project="", after=0, floor=self.floor if starts else None
        )

    def forgetting(self, project: str) -> Self:
        """As if this project had never been read."""
        return replace(self, tokens={name: token for name, token in self.tokens.items() if name != project})

    def fed(self, project: str, token: str | None, ids: Iterable[int]) -> Self:
        """Further in the feed, with these to be read."""
        return replace(
            self, tokens={**self.tokens, project: token}, todo=tuple(dict.fromkeys((*self.todo, *ids)))
        )

    def took(self, item_id: int) -> Self:
        """One item further in the walk."""
        return replace(self, after=item_id)

    def did(self, item_id: int) -> Self:
        """One item less to do."""
        return replace(self, todo=tuple(n for n in self.todo if n != item_id))

    def only(self, projects: Iterable[str]) -> Self:
        """Without projects that are no longer configured."""
        wanted = set(projects)
        return replace(
            self,
            tokens={name: token for name, token in self.tokens.items() if name in wanted},
            starts={name: token for name, token in self.starts.items() if name in wanted},
        )


def _tokens(value: Any) -> dict[str, str | None]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {str(name): token if isinstance(token, str) else None for name, token in pairs}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
