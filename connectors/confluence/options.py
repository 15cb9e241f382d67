"""Options of a Confluence source."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from connectors.documents.options import ServiceOptions
from connectors.sections import (
    ConfigSection,
    Flag,
    Mismatch,
    OneOf,
    Positive,
    Secret,
    Size,
    Text,
    Texts,
    WebUrl,
    Whole,
    refuse,
)
from connectors.web.hooks import members_of, plain_ids, texts_of
from pipeline.documents import Json

PRODUCT = "Confluence"
DEPLOYMENTS = ("auto", "cloud", "server")
MOST_PER_PAGE = 50
"""Most pages of an answer with bodies."""


class LabelFilter(ConfigSection):
    """Selection of pages by their labels."""

    include: Texts = ()
    """Only pages with one of these. Empty: all."""
    exclude: Texts = ()
    """No page with one of these."""


class ConfluenceOptions(ServiceOptions):
    """Pages of a Confluence, Cloud or Server/Data Center.

    The account is an e-mail and an API token (Cloud), a name and a password (Server), or a personal access token
    (Server). These keys may be written below `auth`, those of the selection below `syncOptions`.
    """

    type: Text = "confluence"
    """Type of the source."""
    base_url: WebUrl = Field(examples=["https://example.atlassian.net/wiki"])
    """Address of Confluence for people, with its context path."""
    deployment: Annotated[Literal["auto", "cloud", "server"], OneOf(DEPLOYMENTS)] = "auto"
    """Product: auto (detected), cloud or server (also for Data Center)."""
    space_keys: Texts = Field(default=(), examples=[["TECH", "ARCH"]])
    """Keys of spaces to read. Empty: all that the account sees."""
    username: Text | None = Field(default=None, examples=["${CONFLUENCE_USER}"])
    """E-mail of a Cloud account, or a user name."""
    api_token: Secret | None = Field(default=None, examples=["${CONFLUENCE_TOKEN}"])
    """API token or password of that user."""
    token: Secret | None = Field(default=None, examples=["${CONFLUENCE_PAT}"])
    """Personal access token, without a user name."""
    include_comments: Flag = True
    """Comments become a section of their page."""
    include_attachments: Flag = False
    """Text-like attachments (.md .txt .csv .json .html) become documents; others are named on the page."""
    include_blog_posts: Flag = False
    """Read blog posts as well as pages."""
    include_archived: Flag = False
    """Read archived spaces as well; pages archived one by one are never read."""
    include_restricted: Flag = True
    """Read pages with restrictions; their readers are stored with them, and nobody else finds them."""
    max_pages: Positive | None = 1000
    """Most pages to read, the oldest by creation, so that edits do not change the choice (docs/confluence.md).
    While there are more, missing pages are not deleted. null: all."""
    page_size: Whole = Field(default=MOST_PER_PAGE, ge=1, le=MOST_PER_PAGE)
    """Pages requested at once; the service may return fewer."""
    labels: LabelFilter = LabelFilter()
    """Selection of pages by their labels."""
    ancestors: Texts = ()
    """Ids of pages; only these and the pages below them are read."""
    attachment_max_bytes: Size = Field(default="1m", validate_default=True)
    """Most bytes of an attachment that becomes a document; larger ones are only named on the page."""

    groups: ClassVar[tuple[str, ...]] = ("auth", "syncOptions")
    hook_steps: ClassVar = (
        (
            "Data Center: General configuration > Webhooks > Create webhook, with this URL and secret, and the events "
            "of pages, blog posts, comments, attachments, labels and content permissions"
        ),
        (
            "Cloud: Space settings > Automation > Create rule, with the triggers Page published, Page edited, Page "
            "moved, Page deleted and Comment added, and the action Send web request: this URL, POST, the secret in a "
            'hidden header X-Larder-Token, and as custom data {"ids": ["{{page.id}}"]}'
        ),
    )
    product: ClassVar = PRODUCT
    example: ClassVar = {
        "name": "confluence_kb",
        "type": "confluence",
        "enabled": "${CONFLUENCE_ENABLED:-false}",
        "baseUrl": "${CONFLUENCE_URL}",
        "spaceKeys": "${CONFLUENCE_SPACES:-TECH,ARCH}",
        "username": "${CONFLUENCE_USER}",
        "apiToken": "${CONFLUENCE_TOKEN}",
        "updateSchedule": "0 2 * * *",
    }

    variables: ClassVar = {
        "baseUrl": ("CONFLUENCE_URL", "CONFLUENCE_BASE_URL"),
        "username": ("CONFLUENCE_USER", "CONFLUENCE_USERNAME", "CONFLUENCE_EMAIL"),
        "apiToken": ("CONFLUENCE_TOKEN", "CONFLUENCE_API_TOKEN", "CONFLUENCE_PASSWORD"),
        "token": ("CONFLUENCE_PAT", "CONFLUENCE_PERSONAL_TOKEN"),
        "spaceKeys": ("CONFLUENCE_SPACES", "CONFLUENCE_SPACE_KEYS", "CONFLUENCE_SPACE_KEY"),
    }
    required_variables: ClassVar = (("baseUrl", "username", "apiToken"), ("baseUrl", "token"))

    @model_validator(mode="after")
    def _one_way_to_sign_in(self) -> Self:
        wrong = []
        if self.token is not None and (self.username or self.api_token):
            wrong.append(Mismatch(key="token", expected="either token, or username and apiToken"))
        elif self.username and not self.api_token:
            wrong.append(Mismatch(key="api_token", expected="the token of that user"))
        elif self.api_token and not self.username:
            wrong.append(Mismatch(key="username", expected="the user of that token"))
        refuse(self, wrong)
        return self

    def hinted_ids(self, event: Json) -> list[str]:
        """Ids of the pages, blog posts and attachments that an event is about; a comment's is that of its page."""
        contents = [*members_of(event, "page", "blog", "blogpost", "content", "attachedTo", "labeled")]
        for comment in members_of(event, "comment"):
            contents += members_of(comment, "parent", "container")
        attachments = event.get("attachments")
        contents += (
            [one for one in attachments if isinstance(one, dict)] if isinstance(attachments, list) else []
        )
        return texts_of([*plain_ids(event), *(content.get("id") for content in contents)])

    @property
    def place(self) -> str:
        """The base URL."""
        return self.base_url

    @property
    def page_types(self) -> tuple[str, ...]:
        """Content types of pages."""
        return ("page", "blogpost") if self.include_blog_posts else ("page",)

    @property
    def attached_types(self) -> tuple[str, ...]:
        """Content types attached to pages, which count as part of them."""
        types = {"comment": self.include_comments, "attachment": self.include_attachments}
        return tuple(kind for kind, included in types.items() if included)

    @property
    def selection_hash(self) -> str:
        """A short hash over all options that select or shape documents; a cursor with another hash is not used."""
        return self._hash_with(
            self.base_url, sorted(self.space_keys), self.page_types, self.attached_types, self.include_archived,
            self.include_restricted, self.max_pages, sorted(self.labels.include), sorted(self.labels.exclude),
            sorted(self.ancestors), self.attachment_max_bytes,
        )  # fmt: skip
