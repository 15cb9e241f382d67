"""The projects that a person names, and what is to be told of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from pipeline.database.tenancy import ALL, SHARED, project_id, searched
from pipeline.ledger import sources
from workers.runtime import Runtime

MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where a command looks."""

    project: str | None = None
    """None: each item's own, else that of the installation."""
    projects: tuple[str, ...] = ()
    """Those searched besides; `*` is all of the tenant."""

    @classmethod
    def of(cls, words: Iterable[str]) -> Self:
        """Of what an option was given, several divided by commas: the first name is the project, the rest are more."""
        names = names_of(words)
        own = next((name for name in names if name != ALL), None)
        return cls(project=own, projects=tuple(name for name in names if name != own))


def names_of(words: Iterable[str]) -> list[str]:
    """Names that are divided by commas, each once."""
    return list(dict.fromkeys(name for word in words for part in word.split(",") if (name := part.strip())))


def unknown(parts: Runtime, tenant: UUID, names: Iterable[str]) -> list[str]:
    """A sentence for each of these projects that holds no documents; what is shared may be empty."""
    with parts.database.tenant(tenant) as connection:
        held = sources.projects(connection)
    there = {*held, project_id(tenant, SHARED)}
    missing = [n for n in names if n != ALL and project_id(tenant, n) not in there]
    listed = f"there are {_listed([*held.values()])}" if held else "nothing is indexed yet"
    return [f"project {name!r} holds no documents; {listed}" for name in missing]


def left_out(parts: Runtime, tenant: UUID, own: Iterable[str], more: Sequence[str]) -> list[str]:
    """A sentence for each of these projects whose items are not looked for in all there is."""
    with parts.database.tenant(tenant) as connection:
        held = sources.projects(connection)
    said = []
    for name in own:
        where = searched(tenant, project_id(tenant, name), more)
        others = [] if where is None else [held[ident] for ident in held if ident not in where]
        if others:
            said.append(
                f"project {name}: documents of other projects ({_listed(others)}) are left out;"
                f" --projects '{ALL}' asks all"
            )
    return said


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
