"""What a Confluence source is told: ConfluenceOptions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from connectors.documents.options import DecisionRules
from connectors.documents.values import json_able
from connectors.web import Access
from pipeline.documents import SourceType
from pipeline.errors import ConfigurationError

PRODUCT = "Confluence"
DEPLOYMENTS = ("auto", "cloud", "server")
MOST_PER_PAGE = 50
"""What Confluence gives at once when bodies are asked for."""


@dataclass(frozen=True, kw_only=True)
class ConfluenceOptions:
    """One configured source that reads Confluence.

    Raises:
        ConfigurationError: an unknown deployment or time zone, a limit below 1, a token without its user.
    """

    type: ClassVar[str] = "confluence"
    name: str
    base_url: str
    """With or without the context path of Cloud (`/wiki`); with that of a Server."""
    deployment: str = "auto"
    """`cloud`, `server`, or `auto`: what answers decides."""
    space_keys: tuple[str, ...] = ()
    """Empty: all spaces the account sees."""
    username: str = ""
    api_token: str = field(default="", repr=False)
    """Goes with `username`: the API token on Cloud, the password on Server."""
    token: str = field(default="", repr=False)
    """A personal access token of a Server, sent as Bearer."""
    include_comments: bool = True
    include_attachments: bool = False
    include_blog_posts: bool = False
    include_archived: bool = False
    """Archived spaces; pages archived one by one are never read."""
    include_restricted: bool = False
    max_pages: int | None = 1000
    """The oldest so many pages and blog posts, by time of creation; None: all."""
    labels_include: tuple[str, ...] = ()
    """Only pages with one of these; empty: with any or none."""
    labels_exclude: tuple[str, ...] = ()
    ancestors: tuple[str, ...] = ()
    """Ids of pages: only these and what is below them."""
    page_size: int = MOST_PER_PAGE
    """Pages that are read at once, up to 50."""
    timezone: str = "auto"
    """The account's, as in its profile: `Europe/Berlin`. `auto`: as Confluence shows it, or none known."""
    attachment_max_bytes: int = 1024 * 1024
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Fixed metadata of every document; what a page says of itself goes first."""
    source_type: SourceType | None = None
    decisions: DecisionRules = field(default_factory=DecisionRules)
    access: Access

    def __post_init__(self) -> None:
        if self.deployment not in DEPLOYMENTS:
            self._refuse(f"deployment {self.deployment!r}", f"set it to one of {', '.join(DEPLOYMENTS)}")
        if self.max_pages is not None and self.max_pages < 1:
            self._refuse(f"maxPages {self.max_pages}", "set it to 1 or more, or leave it out")
        if self.page_size < 1:
            self._refuse(f"pageSize {self.page_size}", f"set it to 1 up to {MOST_PER_PAGE}")
        if bool(self.username) != bool(self.api_token):
            self._refuse("only one of auth.username and auth.apiToken", "give both, or auth.token alone")
        if self.zone is None and self.timezone != "auto":
            self._refuse(f"timezone {self.timezone!r}", "name it as in Europe/Berlin, or write auto")

    @property
    def zone(self) -> ZoneInfo | None:
        """The configured time zone; None if it is to be found out."""
        try:
            return None if self.timezone == "auto" else ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            return None

    @property
    def batch(self) -> int:
        """How many pages are read at once."""
        return min(self.page_size, MOST_PER_PAGE)

    @property
    def page_types(self) -> tuple[str, ...]:
        """Content types that become documents with a body."""
        return ("page", "blogpost") if self.include_blog_posts else ("page",)

    @property
    def annex_types(self) -> tuple[str, ...]:
        """Content types that hang on pages and count as part of them."""
        wanted = {"comment": self.include_comments, "attachment": self.include_attachments}
        return tuple(kind for kind, included in wanted.items() if included)

    @property
    def selection(self) -> str:
        """A short hash over what decides which documents there are; a cursor of another one is of no use."""
        parts = [
            self.base_url, sorted(self.space_keys), self.page_types, self.annex_types, self.include_archived,
            self.include_restricted, self.max_pages, sorted(self.labels_include), sorted(self.labels_exclude),
            sorted(self.ancestors), self.attachment_max_bytes, json_able(self.metadata), self.source_type,
            json_able(vars(self.decisions)),
        ]  # fmt: skip
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _refuse(self, what: str, fix: str) -> None:
        raise ConfigurationError(f"source {self.name} has {what}", fix=fix)
