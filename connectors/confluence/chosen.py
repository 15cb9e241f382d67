"""Reads chosen pages and attachments again: those the id walk shows to differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from connectors.confluence.faults import Refused
from connectors.confluence.missing_pages import Vanished
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.reader import Outcome, Reader
from pipeline.documents import Page, Problem


class Chosen:
    """Finds the page of each attachment first; `known` are those the id walk has shown."""

    def __init__(
        self, options: ConfluenceOptions, reader: Reader, vanished: Vanished, known: Mapping[str, str]
    ) -> None:
        self._options = options
        self._reader = reader
        self._vanished = vanished
        self._known = known

    def pages(self, ids: Sequence[str]) -> Iterator[Page]:
        """What became of each id, a batch a page."""
        pages = [key for key in ids if _is_page_id(key)]
        owners: dict[str, str] = {}
        problems: list[Problem] = []
        for key in ids:
            if not _is_page_id(key):
                try:
                    owners[key] = self._owner(key)
                except Refused as error:
                    reason = f"{error.message}; it is left as it is until it can be looked at"
                    problems.append(Problem(external_id=key, reason=reason))
        gone = tuple(key for key, owner in owners.items() if not owner)
        if gone or problems:
            yield Page(cursor={}, deleted=gone, failed=tuple(problems))
        todo = list(dict.fromkeys((*pages, *(owner for owner in owners.values() if owner))))
        wanted = frozenset(ids)
        for at in range(0, len(todo), self._options.batch):
            batch = todo[at : at + self._options.batch]
            outcome = self._reader.read(batch, only=wanted)
            _note_detached(outcome, {key: owner for key, owner in owners.items() if owner in batch})
            yield from outcome.pages({}, {})

    def _owner(self, key: str) -> str:
        """The page it hangs on; empty if it is gone, or attachments are not wanted."""
        if not self._options.include_attachments:
            return ""
        return self._known.get(key) or self._vanished.page_of_file(key)


def _note_detached(outcome: Outcome, owners: Mapping[str, str]) -> None:
    """Files that hang no more on a page that could be looked at are gone, and so are those of a page that is."""
    present = {row.rpartition(":")[0] for row in outcome.rows}
    unread = {problem.external_id for problem in outcome.failed}
    for key, owner in owners.items():
        looked_at = (owner in present and owner not in unread) or owner in outcome.deleted
        if key not in present and looked_at:
            outcome.deleted.append(key)


def _is_page_id(key: str) -> bool:
    return key.isascii() and key.isdigit()
