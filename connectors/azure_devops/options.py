"""What an Azure DevOps source is told: AzureDevOpsOptions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from connectors.documents.options import DecisionRules
from connectors.documents.values import json_able
from connectors.web.session import Access
from pipeline.documents import SourceType
from pipeline.errors import ConfigurationError

SERVICES = "https://dev.azure.com"
PRODUCT = "Azure DevOps"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")
_URL = re.compile(r"https?://[^/?#\s@{}]+(?:/[^?#\s{}]*)?")


@dataclass(frozen=True, kw_only=True)
class AzureDevOpsOptions:
    """One configured source that reads work items.

    Raises:
        ConfigurationError: no project, a limit below 1, or a condition that is a whole query.
    """

    type: ClassVar[str] = "azure_devops"
    name: str
    organization: str
    """A name at dev.azure.com, or the full address of an organization or a Server collection."""
    projects: tuple[str, ...]
    """Names, or ids."""
    pat: str = field(default="", repr=False)
    work_item_types: tuple[str, ...] = ("User Story", "Bug", "Task", "Feature")
    """Empty: all types."""
    fields: tuple[str, ...] = (
        "System.Title",
        "System.Description",
        "Microsoft.VSTS.Common.AcceptanceCriteria",
        "System.Tags",
    )
    """Reference names; each with a value becomes a section of the text."""
    max_items: int | None = 5000
    """Of the first walk: the newest items. None: no limit."""
    area_paths: tuple[str, ...] = ()
    """With all below them."""
    states: tuple[str, ...] = ()
    wiql: str = ""
    """One more condition, as after WHERE."""
    include_comments: bool = True
    include_links: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Fixed metadata of every document; what an item says of itself goes first."""
    source_type: SourceType | None = None
    decisions: DecisionRules = field(default_factory=DecisionRules)
    access: Access

    def __post_init__(self) -> None:
        if not any(project.strip() for project in self.projects):
            raise ConfigurationError(
                f"source {self.name} names no project", fix="set project to one or more names"
            )
        if self.max_items is not None and self.max_items < 1:
            raise ConfigurationError(
                f"source {self.name} has maxItems {self.max_items}",
                fix="set it to 1 or more, or leave it out",
            )
        if re.match(r"\s*select\b", self.wiql, re.IGNORECASE):
            raise ConfigurationError(
                f"source {self.name} has a whole query as wiql", fix="give only what follows WHERE"
            )

    @property
    def selection(self) -> str:
        """A short hash over all that decides what documents there are and what is in them.

        A cursor of another selection is of no use. Projects are left out: each has a position of its own.
        """
        parts = [
            self.organization, sorted(self.work_item_types), list(self.fields), self.max_items,
            sorted(self.area_paths), sorted(self.states), self.wiql, self.include_comments, self.include_links,
            json_able(self.metadata), self.source_type, json_able(vars(self.decisions)),
        ]  # fmt: skip
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def base_url_of(organization: str) -> str:
    """The address of an organization given by name or in full, without a slash at its end.

    Raises:
        ConfigurationError: it is neither.
    """
    text = organization.strip().rstrip("/")
    if _URL.fullmatch(text):
        return text
    if _NAME.fullmatch(text):
        return f"{SERVICES}/{text}"
    raise ConfigurationError(
        "organization is neither a name nor an address",
        fix="give the name as in https://dev.azure.com/NAME, or the full address of a Server collection, "
        "without user name, query or fragment",
    )
