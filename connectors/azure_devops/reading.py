"""Work items by id: which are there, which belong to the source, what each has become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from connectors.azure_devops.boards import BATCH, Boards
from connectors.azure_devops.document import document_of, label_of
from connectors.azure_devops.faults import ItemMissing
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions
from connectors.azure_devops.sections import Label, shown_relations
from connectors.azure_devops.selection import conditions, fits, literal
from connectors.azure_devops.wiql import among, select
from connectors.azure_devops.work_item import Comment, WorkItem
from connectors.web import AnswerTooLarge
from pipeline.documents import Document, Problem
from pipeline.errors import DocumentRejected

SLICE = 100
"""Items whose links are looked up together."""

HEAD_FIELDS = ("System.Id", "System.Rev", "System.Title", "System.WorkItemType", "System.TeamProject")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one id: a document, a failure, or neither: it is no part of the source any more."""

    id: int
    document: Document | None = None
    failed: Problem | None = None


@dataclass(kw_only=True)
class _Loaded:
    items: dict[int, WorkItem] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    """Reasons."""


class Reader:
    """Makes documents of the items of one source."""

    def __init__(self, options: AzureDevOpsOptions, boards: Boards, projects: Sequence[str]) -> None:
        self._options = options
        self._boards = boards
        self._projects = projects

    def outcomes(self, ids: Sequence[int], *, asked: bool) -> Iterator[Outcome]:
        """One for each id, in the order given.

        Args:
            ids: of items in any state.
            asked: a query has just found them, so that the configured condition need not be asked again.
        """
        rest = iter(dict.fromkeys(ids))
        while batch := list(islice(rest, BATCH)):
            loaded = self._loaded(batch, asked=asked)
            for start in range(0, len(batch), SLICE):
                yield from self._slice(batch[start : start + SLICE], loaded)

    def _slice(self, ids: Sequence[int], loaded: _Loaded) -> Iterator[Outcome]:
        items = [loaded.items[n] for n in ids if n in loaded.items]
        others = self._others(items) if self._options.include_links else {}
        label = label_of(others, self._boards.base_url)
        for item_id in ids:
            if item_id in loaded.failed:
                yield self._failure(item_id, loaded.failed[item_id])
            elif item_id in loaded.items:
                yield self._made(loaded.items.pop(item_id), label)
            else:
                yield Outcome(id=item_id)

    def _made(self, item: WorkItem, label: Label) -> Outcome:
        try:
            comments = self._comments(item)
            made = document_of(item, self._options, self._boards.base_url, label, comments)
        except DocumentRejected as error:  # one item must not stop all others
            return self._failure(item.id, str(error))
        return Outcome(id=item.id, document=made)

    def _failure(self, item_id: int, reason: str) -> Outcome:
        url = f"{self._boards.base_url}/_workitems/edit/{item_id}"
        return Outcome(id=item_id, failed=Problem(external_id=str(item_id), reason=reason, url=url))

    def _loaded(self, ids: Sequence[int], *, asked: bool) -> _Loaded:
        loaded = self._fetched(ids)
        missing = [n for n in ids if n not in loaded.items and n not in loaded.failed]
        if missing:
            # Deleted, destroyed, moved out of sight and forbidden look the same here; queries tell more.
            for item_id in self._listed(missing):
                loaded.failed[item_id] = (
                    f"{PRODUCT} lists the item and does not let us read it; "
                    "give the token's account the right to view its area"
                )
        loaded.items = {n: i for n, i in loaded.items.items() if fits(self._options, self._projects, i)}
        if self._options.wiql.strip() and not asked:
            self._ask(loaded)
        return loaded

    def _ask(self, loaded: _Loaded) -> None:
        """Drop what the configured condition does not hold for."""
        doubtful = set(loaded.items) - self._found(sorted(loaded.items), loaded.items)
        if not doubtful:
            return
        # A service that has lost its index lists nothing: that is no word about the condition.
        for item_id in doubtful - self._listed(sorted(doubtful)):
            loaded.failed[item_id] = (
                f"{PRODUCT} lets us read the item and does not list it; look at it again later"
            )
        for item_id in doubtful:
            del loaded.items[item_id]

    def _fetched(self, ids: Sequence[int]) -> _Loaded:
        """Those that can be read; a batch that is too large as an answer is halved."""
        loaded = _Loaded()
        stack = [list(ids)]
        while stack:
            part = stack.pop()
            try:
                loaded.items.update(self._boards.items(part))
            except AnswerTooLarge as error:
                if len(part) == 1:
                    loaded.failed[part[0]] = str(error)
                else:
                    stack += [part[len(part) // 2 :], part[: len(part) // 2]]
        return loaded

    def _found(self, ids: Sequence[int], items: Mapping[int, WorkItem]) -> set[int]:
        """Those that fulfil the conditions of their project."""
        found: set[int] = set()
        for project in self._projects:
            own = [n for n in ids if items[n].project.casefold() == project.casefold()]
            if own:
                found |= set(
                    self._boards.query(project, select([*conditions(self._options, project), among(own)]))
                )
        return found

    def _listed(self, ids: Sequence[int]) -> set[int]:
        """Those that queries find at all in one of the projects."""
        found: set[int] = set()
        for project in self._projects:
            parts = [f"[System.TeamProject] = {literal(project)}", among(ids)]
            found |= set(self._boards.query(project, select(parts)))
        return found & set(ids)

    def _others(self, items: Sequence[WorkItem]) -> dict[int, WorkItem]:
        """The items at the other ends of links, as far as they are in a configured project."""
        known = {item.id: item for item in items}
        targets = {r.target for item in items for r in shown_relations(item)} - {None, *known}
        wanted = sorted(n for n in targets if n is not None)
        for start in range(0, len(wanted), BATCH):
            known |= self._boards.heads(wanted[start : start + BATCH], HEAD_FIELDS)
        names = {project.casefold() for project in self._projects}
        return {n: item for n, item in known.items() if item.project.casefold() in names}

    def _comments(self, item: WorkItem) -> list[Comment]:
        if not self._options.include_comments or not item.comment_count:
            return []
        try:
            return self._boards.comments(item.project, item.id)
        except ItemMissing:  # deleted since it was read; the feed will say so
            return []
