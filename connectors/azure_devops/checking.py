"""What `larder sources check` says of a source of work items."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.azure_devops.client import SCOPE, BoardsClient, id_ranges, select
from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.reader import conditions
from connectors.web import ServerFault
from pipeline.documents import Finding
from pipeline.errors import LarderError

SHOWN_TYPES = 12
HTTP_BAD_REQUEST, HTTP_SERVER_ERROR = 400, 500


def findings(options: AzureDevOpsOptions, client: BoardsClient) -> list[Finding]:
    """One line per thing that was tried; ends where nothing more can be tried.

    Raises:
        SourceUnavailable: the service cannot be reached, or asks to come back later.
    """
    found: list[Finding] = []
    for project in options.projects:
        try:
            for finding in _project(options, client, project):
                found.append(finding)  # noqa: PERF402 (what was found before an error counts)
        except LarderError as error:
            # A web page with a 4xx status: something answers, and it is not the interface we want.
            refused = isinstance(error, ServerFault) and HTTP_BAD_REQUEST <= error.status < HTTP_SERVER_ERROR
            if error.transient and not refused:
                raise
            found.append(Finding(ok=False, subject=f"project {project}", detail=error.message, fix=error.fix))
    return found


def _project(options: AzureDevOpsOptions, client: BoardsClient, project: str) -> Iterator[Finding]:
    """Raises where the rest depends on it."""
    name = client.project_name(project)
    types = client.types(name)
    yield Finding(ok=True, subject=f"project {project}", detail=f"{client.base_url} lets us in and knows it")
    yield from _types(options, types, project)
    query = conditions(options, name)
    ranges = id_ranges(lambda more: client.query(name, select([*query, *more])), 0)
    ids = [n for found in ranges for n in found]
    yield _count(options, project, len(ids))
    client.feed(name, start=client.now(name))
    yield Finding(ok=True, subject=f"changes in {project}", detail="the revision feed can be read")
    if ids:
        readable = client.items(ids[-1:])
        fix = "" if readable else SCOPE
        detail = (
            "a work item can be read" if readable else f"work item {ids[-1]} is listed and cannot be read"
        )
        yield Finding(ok=bool(readable), subject=f"contents of {project}", detail=detail, fix=fix)


def _types(options: AzureDevOpsOptions, known: list[str], project: str) -> Iterator[Finding]:
    names = {name.casefold() for name in known}
    for wanted in options.work_item_types:
        if wanted.casefold() not in names:
            shown = ", ".join(sorted(known)[:SHOWN_TYPES])
            yield Finding(
                ok=False,
                subject=f"type {wanted}",
                detail=f"project {project} has no such work item type",
                fix=f"take it out of workItemTypes, or choose among {shown}",
            )


def _count(options: AzureDevOpsOptions, project: str, count: int) -> Finding:
    subject = f"work items of {project}"
    if not count:
        fix = "widen workItemTypes, areaPaths, states or wiql, or check that the account may view the areas"
        return Finding(ok=False, subject=subject, detail="nothing matches the selection", fix=fix)
    detail = f"{count} match{'es' if count == 1 else ''} the selection"
    if options.max_items is not None and count > options.max_items:
        detail += f"; maxItems takes the newest {options.max_items}"
    return Finding(ok=True, subject=subject, detail=detail)
