"""Sources that are services of other people: Confluence and Azure DevOps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import annotated_types
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from workers.settings.sources import SourceSettings
from workers.settings.values import (
    Expected,
    Flag,
    Mismatch,
    Secret,
    Section,
    Size,
    Text,
    Texts,
    WebUrl,
    Whole,
    refusal,
    refuse,
    zone,
)

Positive = Annotated[Whole, annotated_types.Ge(1), Expected("a whole number from 1")]

_ACCOUNT_ZONE = "auto, or the name of a time zone such as Europe/Berlin"


def _account_zone(value: str) -> str:
    try:
        return value if value == "auto" else zone(value)
    except PydanticCustomError:
        raise refusal(_ACCOUNT_ZONE) from None


AccountZone = Annotated[Text, AfterValidator(_account_zone), Expected(_ACCOUNT_ZONE)]


class ServiceSource(SourceSettings):
    """What every service has."""

    max_concurrency: Positive = 4
    """Requests at once to the service's host, over all workers."""
    requests_per_minute: Positive | None = Field(default=None, examples=[300])
    """Requests a minute to the service's host, over all workers. Empty: only what the service says."""
    connect_timeout: Positive = 10
    """Seconds to wait for a connection."""
    read_timeout: Positive = 60
    """Seconds to wait for the next part of an answer."""


class ConfluenceAuth(Section):
    """Who reads: e-mail and API token (Cloud), name and password (Server), or a personal access token (Server)."""

    username: Text | None = Field(default=None, examples=["${CONFLUENCE_USER}"])
    """E-mail of a Cloud account, or a user name."""
    api_token: Secret | None = Field(default=None, examples=["${CONFLUENCE_TOKEN}"])
    """API token or password of that user."""
    token: Secret | None = Field(default=None, examples=["${CONFLUENCE_PAT}"])
    """Personal access token, without a user name."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        wrong = []
        if self.token is not None and (self.username or self.api_token):
            wrong.append(Mismatch(key="token", expected="either token, or username and apiToken"))
        elif self.token is None and self.username and not self.api_token:
            wrong.append(Mismatch(key="api_token", expected="the token of that user"))
        elif self.token is None and self.api_token and not self.username:
            wrong.append(Mismatch(key="username", expected="the user of that token"))
        refuse(self, wrong)
        return self


class LabelFilter(Section):
    """Which pages by their labels."""

    include: Texts = ()
    """Only pages with one of these. Empty: all."""
    exclude: Texts = ()
    """No page with one of these."""


class ConfluenceOptions(Section):
    """What is read of a space."""

    include_comments: Flag = True
    """Comments become a section of their page."""
    include_attachments: Flag = False
    """Text-like attachments (.md .txt .csv .json .html) become documents; others are named on the page."""
    include_blog_posts: Flag = False
    """Read blog posts as well as pages."""
    include_archived: Flag = False
    """Read archived spaces as well."""
    include_restricted: Flag = False
    """Read pages that only some may view; who may is kept with them."""
    max_pages: Positive | None = 1000
    """At most so many pages, the oldest by creation: a choice that edits do not move (docs/confluence.md).
    While there are more, nothing is deleted by absence. null: all."""
    page_size: Annotated[Whole, annotated_types.Interval(ge=1, le=250), Expected("1 to 250")] = 50
    """Pages asked for at once; the service may give fewer."""
    labels: LabelFilter = LabelFilter()
    """Which pages by their labels."""
    ancestors: Texts = ()
    """Ids of pages: only these and what lies below them."""
    timezone: AccountZone = "auto"
    """Zone of the account that reads; auto: as the service says."""
    attachment_max_bytes: Size = Field(default="1m", validate_default=True)
    """Larger attachments are only named."""
    max_concurrency: Positive | None = None
    """The same as the source's own key."""
    requests_per_minute: Positive | None = None
    """The same as the source's own key."""


OPTION_KEYS = frozenset(
    str(name)
    for field, info in ConfluenceOptions.model_fields.items()
    if field not in ("max_concurrency", "requests_per_minute", "timezone")
    for name in (field, info.alias)
)
"""Keys of syncOptions that mean the same one level higher."""


class ConfluenceSource(ServiceSource):
    """Pages of a Confluence, Cloud or Server/Data Center."""

    base_url: WebUrl = Field(examples=["https://example.atlassian.net/wiki"])
    """Where people open it, with its context path."""
    deployment: Literal["auto", "cloud", "server"] = "auto"
    """Which product it is: auto, cloud or server (Data Center too)."""
    space_keys: Texts = Field(default=(), examples=[["TECH", "ARCH"]])
    """Keys of spaces. Empty: all that the account sees."""
    auth: ConfluenceAuth = ConfluenceAuth()
    """Who reads."""
    sync_options: ConfluenceOptions = ConfluenceOptions()
    """What is read. Its keys may also stand beside it."""


class AzureAuth(Section):
    """Who reads."""

    pat: Secret | None = Field(default=None, examples=["${AZURE_PAT}"])
    """Personal access token with the scope Work Items (read)."""


class AzureDevOpsSource(ServiceSource):
    """Work items of Azure DevOps Boards, Services or Server."""

    organization: Text = Field(examples=["example"])
    """Name of the organization, or the full address of a server's collection."""
    projects: Annotated[Texts, annotated_types.MinLen(1), Expected("a project or a list of them")] = Field(
        examples=["Shop"]
    )
    """Project of the service, or several. May be written project; with projects there, project is Larder's
    own, as for every source."""
    auth: AzureAuth = AzureAuth()
    """Who reads."""
    work_item_types: Texts = ("User Story", "Bug", "Task", "Feature")
    """Types of work items. Empty: all."""
    fields: Texts = (
        "System.Title",
        "System.Description",
        "Microsoft.VSTS.Common.AcceptanceCriteria",
        "System.Tags",
    )
    """Fields whose text is indexed, by reference name; what a person needs besides is always read."""
    max_items: Positive | None = 5000
    """At most so many work items; while there are more, nothing is deleted by absence. null: all."""
    area_paths: Texts = Field(default=(), examples=[["Shop\\Web"]])
    """Only below these areas."""
    states: Texts = Field(default=(), examples=[["Closed", "Resolved"]])
    """Only in these states."""
    include_comments: Flag = True
    """Comments become a section of their work item."""
    include_links: Flag = True
    """Parents, children and related items are named."""
    wiql: Text | None = Field(default=None, examples=["[System.Tags] CONTAINS 'api'"])
    """One more condition in the service's query language."""

    @model_validator(mode="before")
    @classmethod
    def _one_project(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("project") is not None and "projects" not in value:
            return {("projects" if key == "project" else key): item for key, item in value.items()}
        return value
