"""Reads work items by id: which exist, which belong to the source, what document each becomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from connectors.azure_devops.client import BATCH, BoardsClient, id_in, quoted, select
from connectors.azure_devops.document import BoardsComment, WorkItem, document_of
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions
from connectors.azure_devops.sdk import WorkItemMissing
from connectors.documents.values import build_document
from connectors.web.answers import AnswerTooLarge
from pipeline.documents import Document, Problem
from pipeline.errors import DocumentRejected

HEAD_FIELDS = ("System.Id", "System.Rev", "System.Title", "System.WorkItemType", "System.TeamProject")


@dataclass(frozen=True, kw_only=True)
class WorkItemResult:
    """What became of one id: a document, a failure, or neither: it does not belong to the source any more."""

    id: int
    document: Document | None = None
    failed: Problem | None = None


class WorkItemReader:
    """Makes documents of the items of one source."""

    def __init__(self, options: AzureDevOpsOptions, client: BoardsClient) -> None:
        self._options = options
        self._client = client

    def results(self, ids: Sequence[int], *, queried: bool) -> Iterator[WorkItemResult]:
        """One for each id, in the order given.

        Args:
            ids: of items in any state.
            queried: a query has just found them, so that the configured condition need not be asked again.
        """
        rest = iter(dict.fromkeys(ids))
        while batch := list(islice(rest, BATCH)):
            items, failed = self._load(batch, queried=queried)
            others = self._others(list(items.values()))
            for n in batch:
                if n in items:
                    yield self._result(items.pop(n), others)
                else:
                    yield self._failure(n, failed[n]) if n in failed else WorkItemResult(id=n)

    def _result(self, item: WorkItem, others: Mapping[int, WorkItem]) -> WorkItemResult:
        try:
            comments = self._comments(item)
            document = build_document(
                lambda: document_of(item, self._options, others, comments), f"work item {item.id}"
            )
        except DocumentRejected as error:  # one item must not stop all others
            return self._failure(item.id, str(error))
        return WorkItemResult(id=item.id, document=document)

    def _failure(self, item_id: int, reason: str) -> WorkItemResult:
        url = f"{self._options.organization}/_workitems/edit/{item_id}"
        return WorkItemResult(id=item_id, failed=Problem(external_id=str(item_id), reason=reason, url=url))

    def _load(self, ids: Sequence[int], *, queried: bool) -> tuple[dict[int, WorkItem], dict[int, str]]:
        """The items that belong to the source, and reasons for those that could not be read."""
        items, failed = self._fetch(ids)
        if missing := [n for n in ids if n not in items and n not in failed]:
            # Deleted, destroyed, moved out of sight and forbidden look the same here; queries tell more.
            reason = (
                f"{PRODUCT} lists the item and does not let us read it; "
                "give the token's account the right to view its area"
            )
            failed |= dict.fromkeys(self._listed(missing, in_project), reason)
        items = {n: i for n, i in items.items() if belongs(self._options, i)}
        if self._options.wiql.strip() and not queried:
            matching = self._listed(items, partial(conditions, self._options)) if items else set()
            doubtful = set(items) - matching
            # A service that has lost its index lists nothing: that says nothing about the condition.
            unlisted = doubtful - self._listed(doubtful, in_project) if doubtful else set()
            reason = f"{PRODUCT} lets us read the item and does not list it; look at it again later"
            failed |= dict.fromkeys(unlisted, reason)
            items = {n: i for n, i in items.items() if n not in doubtful}
        return items, failed

    def _fetch(self, ids: Sequence[int]) -> tuple[dict[int, WorkItem], dict[int, str]]:
        """Those that can be read; a batch that is too large as an answer is halved."""
        items: dict[int, WorkItem] = {}
        failed: dict[int, str] = {}
        stack = [list(ids)]
        while stack:
            part = stack.pop()
            try:
                items |= self._client.items(part)
            except AnswerTooLarge as error:
                if len(part) == 1:
                    failed[part[0]] = str(error)
                else:
                    stack += [part[len(part) // 2 :], part[: len(part) // 2]]
        return items, failed

    def _listed(self, ids: Collection[int], of: Callable[[str], list[str]]) -> set[int]:
        """Those that queries with these conditions find in one of the projects."""
        queries = [
            (project, select([*of(project), id_in(sorted(ids))])) for project in self._options.projects
        ]
        return {n for project, wiql in queries for n in self._client.query(project, wiql)} & set(ids)

    def _others(self, items: Sequence[WorkItem]) -> dict[int, WorkItem]:
        """The items at the other ends of links, as far as they are in a configured project."""
        if not self._options.include_links:
            return {}
        known = {item.id: item for item in items}
        targets = {r.target for item in items for r in item.shown_relations} - {None, *known}
        wanted = sorted(n for n in targets if n is not None)
        for start in range(0, len(wanted), BATCH):
            known |= self._client.items(wanted[start : start + BATCH], HEAD_FIELDS)
        names = {project.casefold() for project in self._options.projects}
        return {n: item for n, item in known.items() if item.project.casefold() in names}

    def _comments(self, item: WorkItem) -> list[BoardsComment]:
        if not self._options.include_comments or not item.fields.get("System.CommentCount"):
            return []
        try:
            return self._client.comments(item.project, item.id)
        except WorkItemMissing:  # deleted since it was read; the feed will say so
            return []


def in_project(project: str) -> list[str]:
    """The query condition of an item of this project."""
    return [f"[System.TeamProject] = {quoted(project)}"]


def conditions(options: AzureDevOpsOptions, project: str) -> list[str]:
    """The query conditions of an item of this source; without the first, other projects would leak in."""
    found = in_project(project)
    if options.work_item_types:
        found.append(f"[System.WorkItemType] IN ({quoted(*options.work_item_types)})")
    if options.area_paths:
        places = [f"[System.AreaPath] UNDER {quoted(_area(path))}" for path in options.area_paths]
        found.append(f"({' OR '.join(places)})")
    if options.states:
        found.append(f"[System.State] IN ({quoted(*options.states)})")
    if options.wiql.strip():
        found.append(f"({options.wiql.strip()})")
    return found


def belongs(options: AzureDevOpsOptions, item: WorkItem) -> bool:
    """Whether an item fulfils all that `conditions` ask, but for the configured `wiql`, in any case."""
    area = item.text("System.AreaPath").casefold() + "\\"
    chosen = (
        (item.project, options.projects),
        (item.type, options.work_item_types),
        (item.text("System.State"), options.states),
    )
    return all(
        not allowed or value.casefold() in {one.strip().casefold() for one in allowed}
        for value, allowed in chosen
    ) and (
        not options.area_paths
        or any(area.startswith(_area(path).casefold() + "\\") for path in options.area_paths)
    )


def _area(path: str) -> str:
    r"""`\Shop\Web\` as the service writes it: `Shop\Web`."""
    return path.strip().replace("/", "\\").strip("\\")
