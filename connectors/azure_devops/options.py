"""Options of an Azure DevOps source."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from connectors.documents.options import ServiceOptions
from connectors.sections import Expected, Flag, Positive, Secret, Text, Texts, no_metadata_service, refusal
from connectors.web.hooks import members_of, plain_ids, texts_of
from pipeline.documents import Json

SERVICES = "https://dev.azure.com"
PRODUCT = "Azure DevOps"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")
_URL = re.compile(r"https?://[^/?#\s@{}]+(?:/[^?#\s{}]*)?")


def base_url_of(organization: str) -> str:
    """Address of an organization, given by name or address, without a slash at its end.

    Raises:
        PydanticCustomError: it is neither.
    """
    text = organization.strip().rstrip("/")
    if _URL.fullmatch(text):
        return no_metadata_service(text)
    if _NAME.fullmatch(text):
        return f"{SERVICES}/{text}"
    raise refusal(
        "the name or the address of an organization",
        "give the name as in https://dev.azure.com/NAME, or the full address of a Server collection, "
        "without user name, query or fragment",
    )


def _named(value: tuple[str, ...]) -> tuple[str, ...]:
    if not (named := tuple(name.strip() for name in value if name.strip())):
        raise ValueError
    return named


def _condition(value: str) -> str:
    if re.match(r"\s*select\b", value, re.IGNORECASE):
        raise refusal("a condition, not a whole query", "write only the part after WHERE")
    return value


class AzureDevOpsOptions(ServiceOptions):
    """Work items of Azure DevOps Boards, Services or Server. `pat` may be written below `auth`."""

    type: Text = "azure_devops"
    """Type of the source."""
    organization: Annotated[Text, AfterValidator(base_url_of), Expected("text")] = Field(examples=["example"])
    """Name of the organization, or the full address of a server's collection."""
    projects: Annotated[Texts, AfterValidator(_named), Expected("a project or a list of them")] = Field(
        examples=["Shop"]
    )
    """Project of the service, or several. May be written project; if projects is given too, project is
    Larder's own, as for every source."""
    pat: Secret | None = Field(default=None, examples=["${AZURE_PAT}"])
    """Personal access token with the scope Work Items (read)."""
    work_item_types: Texts = ("User Story", "Bug", "Task", "Feature")
    """Types of work items to read. Empty: all."""
    fields: Texts = (
        "System.Title",
        "System.Description",
        "Microsoft.VSTS.Common.AcceptanceCriteria",
        "System.Tags",
    )
    """Fields whose text is indexed, by reference name; state, people and dates are always read."""
    max_items: Positive | None = 5000
    """Most work items to read, the newest; while there are more, missing ones are not deleted. null: all."""
    area_paths: Texts = Field(default=(), examples=[["Shop\\Web"]])
    """Areas; only work items in or below them are read."""
    states: Texts = Field(default=(), examples=[["Closed", "Resolved"]])
    """States; only work items in them are read."""
    include_comments: Flag = True
    """Comments become a section of their work item."""
    include_links: Flag = True
    """Parents, children and related items are named in the text."""
    wiql: Annotated[
        str,
        BeforeValidator(lambda value: "" if value is None else value),
        AfterValidator(_condition),
        Expected("text, or nothing"),
    ] = Field(default="", examples=["[System.Tags] CONTAINS 'api'"])
    """Further condition in the service's query language, as after WHERE."""

    hook_steps: ClassVar = (
        (
            "Project settings > Service hooks > Create subscription > Web Hooks, one for each trigger: Work item "
            "created, updated, commented on, deleted, restored"
        ),
        "Action: this URL; basic authentication with any user name and the secret as password",
    )
    product: ClassVar = PRODUCT
    example: ClassVar = {
        "name": "azure_devops",
        "type": "azure_devops",
        "enabled": "${AZURE_ENABLED:-false}",
        "organization": "${AZURE_ORG}",
        "projects": "${AZURE_PROJECT}",
        "pat": "${AZURE_PAT}",
        "updateSchedule": "0 3 * * *",
    }

    variables: ClassVar = {
        "organization": (
            "AZURE_ORG", "AZURE_DEVOPS_ORG", "AZURE_DEVOPS_ORGANIZATION", "AZURE_DEVOPS_ORG_URL",
            "AZURE_DEVOPS_URL",
        ),
        "projects": ("AZURE_PROJECT", "AZURE_DEVOPS_PROJECT", "AZURE_DEVOPS_PROJECTS"),
        "pat": ("AZURE_PAT", "AZURE_DEVOPS_PAT", "AZURE_DEVOPS_EXT_PAT", "AZURE_DEVOPS_TOKEN"),
    }  # fmt: skip
    required_variables: ClassVar = (("organization", "projects", "pat"),)

    @model_validator(mode="before")
    @classmethod
    def _one_project(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("project") is not None and "projects" not in value:
            return {("projects" if key == "project" else key): item for key, item in value.items()}
        return value

    def hinted_ids(self, event: Json) -> list[str]:
        """Ids of the work items that an event of a service hook is about; of an update it is not `resource.id`."""
        is_about_work = str(event.get("eventType", "")).startswith("workitem.")
        resources = members_of(event, "resource") if is_about_work else ()
        return texts_of([*plain_ids(event), *(one.get("workItemId", one.get("id")) for one in resources)])

    @property
    def place(self) -> str:
        """The address of the organization."""
        return self.organization

    @property
    def selection_hash(self) -> str:
        """A short hash over all options that select or shape documents.

        A cursor with another hash is not used. Projects are not included, because each has its own position.
        """
        return self._hash_with(
            self.organization, sorted(self.work_item_types), list(self.fields), self.max_items,
            sorted(self.area_paths), sorted(self.states), self.wiql, self.include_comments, self.include_links,
        )  # fmt: skip
