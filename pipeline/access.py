"""Callers: their permissions, projects and the documents that they may see."""

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
"""Permissions: to search and enrich; to upload and give feedback; to manage sources and dead letters; all of these."""

UNNAMED = Filter(security_levels=LEVELS[: LEVELS.index("internal") + 1], readers=("unnamed",))
"""Filter for requests without a caller: documents up to `internal` that every authenticated caller may see."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """An authenticated caller with their rights."""

    tenant: UUID
    tenant_name: str
    subject: str
    """User id; never empty."""
    projects: tuple[str, ...] = ()
    """Ids or names; `*` means all projects of the tenant."""
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
        """True if the caller has this permission."""
        return permission in self.permissions or ADMIN in self.permissions

    def require(self, permission: str) -> Self:
        """Return the caller; raises Forbidden without this permission."""
        if not self.may(permission):
            raise Forbidden(f"this needs the permission {permission!r}")
        return self

    @property
    def levels(self) -> tuple[str, ...]:
        """Security levels that the caller may see; unknown level names are never among them."""
        return LEVELS[: LEVELS.index(self.level) + 1]

    @property
    def readers(self) -> tuple[str, ...]:
        """The caller's names in ACLs; each layer of a document's `acl` must contain one of them."""
        admin = (documents.ADMINS_ALONE,) if ADMIN in self.permissions else ()
        return (f"user:{self.subject}", *(f"group:{name}" for name in self.groups), *admin)

    @property
    def search_filter(self) -> Filter:
        """Filter by level and readers for all their searches; projects are filtered separately."""
        return Filter(security_levels=self.levels, readers=self.readers)

    @property
    def own_projects(self) -> tuple[UUID, ...] | All:
        """Ids of the projects that the caller may see, the shared one included."""
        names = (SHARED, *self.projects)
        return ALL if ALL in names else tuple(sorted({project_id(self.tenant, name) for name in names}))

    def may_see(self, project: UUID) -> bool:
        """True if the caller may see documents of this project."""
        return self.own_projects == ALL or project in self.own_projects

    def may_change(self, project: UUID) -> bool:
        """True if the token names this project, also for the shared one; permissions are checked elsewhere."""
        names = self.projects
        return ALL in names or project in {project_id(self.tenant, name) for name in names}

    def project(self, connection: Connection, named: str, *, to_change: bool = False) -> UUID:
        """Id of one of the caller's projects, given as id or name; `to_change` needs the right to change its documents.

        Raises:
            NotFound: no such project in the tenant; projects of other tenants look the same.
            Forbidden: not one of the caller's projects.
        """
        requested_id = project_id(self.tenant, named) if named.strip() else None
        if requested_id is None or not sources.has_project(connection, requested_id):
            raise NotFound("there is no such project")
        if not (self.may_change(requested_id) if to_change else self.may_see(requested_id)):
            raise Forbidden("the project is not among those of the token")
        return requested_id


class Operator(Caller):
    """A caller with the database's password, who may do and see everything of the tenant."""

    @property
    def search_filter(self) -> Filter:
        """No restriction."""
        return Filter()
