"""From a configured source to its connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from connectors import SourceOptions, open_source
from pipeline.documents import Source
from pipeline.errors import ConfigurationError
from pipeline.languages import as_metadata
from workers.settings import (
    AzureDevOpsSource,
    ConfluenceSource,
    FileSource,
    ServiceSource,
    Settings,
    SourceSettings,
)

if TYPE_CHECKING:
    # The clients of both services cost 30 MB and a quarter of a second: only who opens such a source pays.
    from connectors.azure_devops import AzureDevOpsOptions
    from connectors.confluence import ConfluenceOptions
    from connectors.web import Access, RequestLimiter


def source_of(settings: Settings, source: SourceSettings, gate: Callable[[], RequestLimiter]) -> Source:
    """The connector of a configured source; nothing is read yet. `gate` is asked for by services only.

    Raises:
        ConfigurationError: no connector reads this type, or what it is told is wrong.
    """
    for kind, options in _OPTIONS.items():
        if isinstance(source, kind):
            return open_source(options(settings, source, gate))
    raise ConfigurationError(f"source {source.name} has no connector for its type {source.type}")


def _files(settings: Settings, source: FileSource, _gate: Callable[[], RequestLimiter]) -> SourceOptions:
    return SourceOptions(
        name=source.name,
        type=source.type,
        root=settings.root_of(source),
        paths=source.paths,
        exclude=source.exclude,
        closed=settings.data,
        frontmatter_fields=getattr(source, "frontmatter_fields", ("title", "tags", "category")),
        max_bytes=int(source.max_bytes),
        base_url=str(source.base_url or ""),
        **_common(settings, source),
    )


def _confluence(
    settings: Settings, source: ConfluenceSource, gate: Callable[[], RequestLimiter]
) -> ConfluenceOptions:
    from connectors.confluence import ConfluenceOptions

    options = source.sync_options
    return ConfluenceOptions(
        name=source.name,
        base_url=source.base_url,
        deployment=source.deployment,
        space_keys=source.space_keys,
        username=source.auth.username or "",
        api_token=_revealed(source.auth.api_token),
        token=_revealed(source.auth.token),
        include_comments=options.include_comments,
        include_attachments=options.include_attachments,
        include_blog_posts=options.include_blog_posts,
        include_archived=options.include_archived,
        include_restricted=options.include_restricted,
        max_pages=options.max_pages,
        labels_include=options.labels.include,
        labels_exclude=options.labels.exclude,
        ancestors=options.ancestors,
        page_size=options.page_size,
        timezone=options.timezone,
        attachment_max_bytes=int(options.attachment_max_bytes),
        access=_access(
            source,
            source.base_url,
            "Confluence",
            gate,
            per_minute=options.requests_per_minute,
            at_once=options.max_concurrency,
        ),
        **_common(settings, source),
    )


def _azure_devops(
    settings: Settings, source: AzureDevOpsSource, gate: Callable[[], RequestLimiter]
) -> AzureDevOpsOptions:
    from connectors.azure_devops import AzureDevOpsOptions, base_url_of

    return AzureDevOpsOptions(
        name=source.name,
        organization=source.organization,
        projects=source.projects,
        pat=_revealed(source.auth.pat),
        work_item_types=source.work_item_types,
        fields=source.fields,
        max_items=source.max_items,
        area_paths=source.area_paths,
        states=source.states,
        wiql=source.wiql or "",
        include_comments=source.include_comments,
        include_links=source.include_links,
        access=_access(source, base_url_of(source.organization), "Azure DevOps", gate),
        **_common(settings, source),
    )


_OPTIONS: Mapping[type[SourceSettings], Callable[..., Any]] = {
    FileSource: _files,
    ConfluenceSource: _confluence,
    AzureDevOpsSource: _azure_devops,
}
"""One line per family of sources: what its connector is told."""


def _common(settings: Settings, source: SourceSettings) -> dict[str, Any]:
    """What every connector is told."""
    fixed = source.metadata.model_dump(mode="json", exclude_none=True)
    own = {k: v for k, v in fixed.items() if k not in {"source_type", "extractors"}}
    return {
        "metadata": own | as_metadata(source.language or settings.rag.language),
        "source_type": source.metadata.source_type,
        "decisions": settings.rag.decisions.rules(),
    }


def _access(
    source: ServiceSource,
    address: str,
    product: str,
    gate: Callable[[], RequestLimiter],
    *,
    per_minute: int | None = None,
    at_once: int | None = None,
) -> Access:
    from connectors.web import Access, RequestLimits

    return Access(
        base_url=address,
        limiter=gate(),
        limits=RequestLimits(
            per_minute=per_minute or source.requests_per_minute, at_once=at_once or source.max_concurrency
        ),
        connect_timeout=float(source.connect_timeout),
        read_timeout=float(source.read_timeout),
        product=product,
    )


def _revealed(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
