"""What `larder sources check` says about a Confluence."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.confluence.client import (
    PERMISSION,
    ConfluenceClient,
    ConfluenceNotFound,
    ConfluenceRefused,
    Deployment,
    cql_texts,
    missing_keys,
)
from connectors.confluence.options import PRODUCT, ConfluenceOptions
from connectors.confluence.reader import ContentFilter
from connectors.web import ServerFault
from pipeline.documents import Finding
from pipeline.errors import LarderError, SourceDenied

SHOWN_SPACES = 20
WRONG_ADDRESS = "check baseUrl: on Cloud https://NAME.atlassian.net/wiki, on a Server with its context path"


def findings(client: ConfluenceClient, options: ConfluenceOptions) -> list[Finding]:
    """What was tried, what came back, what to do.

    Raises:
        SourceUnavailable: the host cannot be reached, or asks to come back later.
    """
    subject = f"sign in at {options.base_url}"
    try:
        deployment = client.deployment
    except (SourceDenied, ConfluenceNotFound, ServerFault) as error:
        return [_sign_in_problem(subject, error)]
    found = [_deployment(subject, deployment, options), _clock(deployment)]
    if deployment.looks_cloud != deployment.cloud:
        return found  # what else goes wrong follows from that
    try:
        found += _contents(client, options)
    except (ConfluenceRefused, ConfluenceNotFound) as error:
        found.append(Finding(ok=False, subject="spaces", detail=error.message, fix=error.fix))
    return found


def _sign_in_problem(subject: str, error: LarderError) -> Finding:
    detail, fix = error.message, error.fix
    if isinstance(error, ServerFault) and error.status != 404:  # noqa: PLR2004 (a web page that says Not Found)
        raise error
    if isinstance(error, ConfluenceNotFound | ServerFault):
        detail, fix = f"there is no API of {PRODUCT} at this address (404)", WRONG_ADDRESS
    elif isinstance(error, ConfluenceRefused) and error.status == 403:  # noqa: PLR2004 (Forbidden)
        fix = f"{PERMISSION}; on Cloud check that auth.username and auth.apiToken are both given"
    return Finding(ok=False, subject=subject, detail=detail, fix=fix)


def _deployment(subject: str, deployment: Deployment, options: ConfluenceOptions) -> Finding:
    kind = "Confluence Cloud" if deployment.looks_cloud else "Confluence Server or Data Center"
    if deployment.looks_cloud != deployment.cloud:
        detail = f"{kind} answers, and deployment says {options.deployment}"
        fix = f"set deployment to {'cloud' if deployment.looks_cloud else 'server'}, or to auto"
        return Finding(ok=False, subject=subject, detail=detail, fix=fix)
    return Finding(
        ok=True, subject=subject, detail=f"{kind} accepts the credentials, API at {deployment.base}"
    )


def _clock(deployment: Deployment) -> Finding:
    if deployment.zone:
        return Finding(ok=True, subject="time zone", detail=f"the account's is {deployment.zone.key}")
    detail = "the account's is not shown; each sync looks at 26 hours more than it would have to"
    return Finding(ok=True, subject="time zone", detail=f"{detail}; set timezone to save that")


def _contents(client: ConfluenceClient, options: ConfluenceOptions) -> Iterator[Finding]:
    found = client.spaces(options.space_keys)
    for key in missing_keys(found, options.space_keys):
        detail = "does not exist, or this account may not see it"
        fix = f"check the key in spaceKeys (it stands in the space's address), or {PERMISSION}"
        yield Finding(ok=False, subject=f"space {key}", detail=detail, fix=fix)
    content_filter = ContentFilter(options)
    if options.space_keys:
        for key in sorted(found)[:SHOWN_SPACES]:
            count = client.count(f"{content_filter.page_clause()} and space in ({cql_texts([key])})")
            archived = found[key].get("status") == "archived" and not options.include_archived
            fix = "set includeArchived, or leave the space out" if archived else ""
            state = "is archived; " if archived else ""
            yield Finding(ok=not archived, subject=f"space {key}", detail=f"{state}{_pages(count)}", fix=fix)
    count = client.count(content_filter.page_clause())
    # A list of configured spaces that are all invisible has been said already.
    ok = bool(found)
    detail = f"{len(found)} spaces visible, {_pages(count)}{_cap(count, options)}"
    yield Finding(ok=ok, subject="spaces", detail=detail, fix="" if ok else PERMISSION)


def _cap(count: int, options: ConfluenceOptions) -> str:
    if options.max_pages is None or count <= options.max_pages:
        return ""
    return (
        f", of which maxPages lets the {options.max_pages} oldest in; pages removed there stay in the index"
    )


def _pages(count: int) -> str:
    return f"{count} page{'' if count == 1 else 's'} found by search"
