"""What hangs on pages: comments and attachments, grouped by their page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from connectors.confluence.item import COMMENT_FULL, COMMENT_WALK, FILE, Item, item_of, nested
from connectors.confluence.options import MOST_PER_PAGE, ConfluenceOptions
from connectors.confluence.scope import Scope
from connectors.confluence.search import MOST_ROWS, Query, Rows, numbers
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics


@dataclass(kw_only=True)
class Annex:
    """Comments and attachments of one page, oldest first."""

    comments: list[Item] = field(default_factory=list)
    files: list[Item] = field(default_factory=list)

    @property
    def marks(self) -> list[str]:
        """What changes with them, for the fingerprint."""
        return [*sorted(comment_mark(c) for c in self.comments), *sorted(f"f{f.row}" for f in self.files)]

    def add(self, item: Item) -> None:
        """Take one in."""
        (self.comments if item.kind == "comment" else self.files).append(item)


def comment_mark(comment: Item) -> str:
    """Id, version, and whether an inline comment is resolved: that alone makes no version."""
    return f"c{comment.row}{'r' if resolved(comment) else ''}"


def is_inline(comment: Item) -> bool:
    """Whether it stands at a place in the text."""
    return nested(comment.raw, "extensions", "location") in ("inline", "resolved")


def resolved(comment: Item) -> bool:
    """Whether somebody has ticked an inline comment off."""
    status = nested(comment.raw, "extensions", "resolution", "status")
    return "resolved" in (status, nested(comment.raw, "extensions", "location"))


class Annexes:
    """Finds them by search, because the endpoints per page are gone from Cloud or cost a request each."""

    def __init__(self, site: Site, options: ConfluenceOptions, tactics: Tactics) -> None:
        self._site = site
        self._options = options
        self._tactics = tactics

    def of_pages(self, pages: Sequence[str], *, texts: bool = True) -> dict[str, Annex]:
        """For a batch of pages, with the comments' texts or without."""
        comments = COMMENT_FULL if texts else COMMENT_WALK
        found = {page: Annex() for page in pages}
        for kind in self._options.annex_types if pages else ():
            query = Query(
                cql=f"type = {kind} and container in ({numbers(pages)}) order by created asc",
                expand=comments if kind == "comment" else FILE,
                limit=MOST_PER_PAGE if kind == "comment" else MOST_ROWS,
                archived=self._options.include_archived,
            )
            for item in map(item_of, Rows(self._site, query, self._tactics, _by_id).all()):
                found.setdefault(item.container, Annex()).add(item)
        return found

    def of_everything(self, scope: Scope) -> tuple[dict[str, Annex], bool]:
        """Without texts, for all pages, and whether the walk reached its end."""
        found: dict[str, Annex] = {}
        complete = True
        for kind in self._options.annex_types:
            query = Query(
                cql=f"{scope.clause([kind])} order by created asc",
                expand=COMMENT_WALK if kind == "comment" else FILE,
                archived=self._options.include_archived,
            )
            rows = Rows(self._site, query, self._tactics, _by_id)
            for item in _items(rows):
                found.setdefault(item.container, Annex()).add(item)
            complete = complete and rows.complete
        return found, complete


def _items(rows: Iterable[list[dict[str, object]]]) -> Iterator[Item]:
    return (item_of(row) for batch in rows for row in batch)


def _by_id(row: dict[str, object]) -> str:
    return str(row.get("id"))
