"""Who asks, what they may do, and which documents they may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from sqlalchemy import Connection

from pipeline import documents
from pipeline.errors import Forbidden, NotFound, RequestRejected
from pipeline.ledger import ALL, SHARED, All, project_id, sources
from pipeline.search.records import Filter

LEVELS = documents.LEVELS
READ, WRITE, OPERATE, ADMIN = PERMISSIONS = ("read", "write", "operate", "admin")
"""What a caller may do: search and ask, upload and mark, see to sources and dead letters, and all of these."""

UNNAMED = Filter(security_levels=LEVELS[: LEVELS.index("internal") + 1], readers=("unnamed",))
"""What is shown where nobody says who asks: as to a caller of whom no more is known than that they were let in."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who was let in, with the rights that were proved."""

    tenant: UUID
    tenant_name: str
    subject: str
    """User id; never empty."""
    projects: tuple[str, ...] = ()
    """Ids or names; `*` is all of the tenant."""
    permissions: frozenset[str] = frozenset({READ})
    level: str = "internal"
    """Highest security level of documents that they may see."""
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong: Mapping[str, object] = {
            "sub": "" if self.subject else "a user id",
            "security_level": "" if self.level in LEVELS else f"one of {', '.join(LEVELS)}",
            "permissions": "" if self.permissions <= {*PERMISSIONS} else f"of {', '.join(PERMISSIONS)}",
        }
        for claim, expected in wrong.items():
            if expected:
                raise RequestRejected(f"{claim} must be {expected}")

    def may(self, permission: str) -> bool:
        """True if they may do what needs this permission."""
        return permission in self.permissions or ADMIN in self.permissions

    def require(self, permission: str) -> Self:
        """The caller themselves; raises Forbidden without this permission."""
        if not self.may(permission):
            raise Forbidden(f"this needs the permission {permission!r}")
        return self

    @property
    def levels(self) -> tuple[str, ...]:
        """Security levels of documents that they may see; one of another name is never seen."""
        return LEVELS[: LEVELS.index(self.level) + 1]

    @property
    def readers(self) -> tuple[str, ...]:
        """The names by which a document's `acl` may let them in; each layer of the `acl` must hold one of them."""
        admin = (documents.ADMINS_ALONE,) if ADMIN in self.permissions else ()
        return (f"user:{self.subject}", *(f"group:{name}" for name in self.groups), *admin)

    @property
    def search_filter(self) -> Filter:
        """The levels and readers that every search for them is limited to; projects are not in it."""
        return Filter(security_levels=self.levels, readers=self.readers)

    @property
    def own_projects(self) -> tuple[UUID, ...] | All:
        """Ids of the projects they may see, the shared one included."""
        names = (SHARED, *self.projects)
        return ALL if ALL in names else tuple(sorted({project_id(self.tenant, name) for name in names}))

    def may_see(self, project: UUID) -> bool:
        """True if they may see documents of this project."""
        return self.own_projects == ALL or project in self.own_projects

    def may_change(self, project: UUID) -> bool:
        """True if the token names this project, even the shared one; permissions are checked elsewhere."""
        names = self.projects
        return ALL in names or project in {project_id(self.tenant, name) for name in names}

    def project(self, connection: Connection, named: str, *, to_change: bool = False) -> UUID:
        """The id of a project of theirs, given as id or name; `to_change` asks for one whose documents they may change.

        Raises:
            NotFound: the tenant has none of this name; those of other tenants are not told apart.
            Forbidden: it is not among theirs.
        """
        wanted = project_id(self.tenant, named) if named.strip() else None
        if wanted is None or not sources.has_project(connection, wanted):
            raise NotFound("there is no such project")
        if not (self.may_change(wanted) if to_change else self.may_see(wanted)):
            raise Forbidden("the project is not among those of the token")
        return wanted


class Operator(Caller):
    """Whoever has the database's password: they may do and see everything of the tenant."""

    @property
    def search_filter(self) -> Filter:
        """All there is."""
        return Filter()
