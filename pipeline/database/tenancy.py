"""Names of tenants and projects as the ids the tables know."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID, uuid5

from pipeline.errors import ConfigurationError

_NAMESPACE = UUID("5f0c2a76-3d0e-5b55-9a57-6c6172646572")
"""Never changes: a new value would give every named tenant a new, empty id."""

SHARED = "default"
"""The project whose documents every request of the tenant finds; `shared` is another name for it."""
ALL = "*"
"""Stands for all projects of the tenant."""

_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def tenant_id(text: str) -> UUID:
    """The id of a tenant given as an id in the usual form with hyphens, or as a name.

    A name gives the same id on every machine; upper and lower case are different names.

    Raises:
        ConfigurationError: the text is empty.
    """
    return _id(text, prefix="tenant:")


def project_id(tenant: UUID, text: str) -> UUID:
    """The id of a project given as an id or as a name; the same name in two tenants is two projects.

    Raises:
        ConfigurationError: the text is empty.
    """
    return _id(SHARED if text.strip() == "shared" else text, prefix=f"project:{tenant}:")


def searched(tenant: UUID, own: UUID, more: Iterable[str] = ()) -> tuple[UUID, ...] | None:
    """The projects that a request of `own` looks into: that one, what all share, and `more` of them; None is all.

    Raises:
        ConfigurationError: a name is empty.
    """
    names = set(more)
    if ALL in names:
        return None
    return tuple(sorted({own, *(project_id(tenant, name) for name in (SHARED, *names))}))


def _id(text: str, *, prefix: str) -> UUID:
    name = text.strip().encode(errors="replace").decode()
    if not name:
        what = prefix.partition(":")[0]
        raise ConfigurationError(f"the {what} is empty", fix=f"give the {what}'s id or its name")
    # Only the form with hyphens: a project may well be called by 32 hexadecimal digits.
    return UUID(name) if _CANONICAL.fullmatch(name) else uuid5(_NAMESPACE, prefix + name)
