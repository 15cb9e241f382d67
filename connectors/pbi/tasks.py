"""Backlog items written as text files: a header with id, title and status above their description and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from connectors.documents.values import scalar_text
from connectors.pbi.record import work_facts
from connectors.pbi.shapes import ID_KEYS, text_of
from pipeline.documents.plain_text import plain_keys

_TYPES = frozenset(
    "bug chore defect epic feature featurerequest improvement initiative issue pbi productbacklogitem spike story"  # noqa: SIM905 (a list of words)
    " subtask task tasks ticket todo userstory workitem".split()
)
"""Values of `type` in the header of a backlog item, reduced to their letters."""
_FIELDS = frozenset(
    "assignee assignees assignedto blockedby dependencies dependson duedate epic estimate iteration labels milestone"  # noqa: SIM905 (a list of words)
    " ordinal parent parentid parenttaskid points priority reporter severity sprint storypoints subtasks".split()
)
"""Keys in headers of backlog items, but not of pages."""
_STATES = frozenset(
    "backlog blocked canceled cancelled closed complete completed doing done fixed icebox inprogress inreview"  # noqa: SIM905 (a list of words)
    " merged next notstarted onhold open pending planned ready readyfordev resolved review shipped started testing"
    " todo triage unstarted verified wontdo wontfix".split()
)
"""Values of `status` of backlog items, but not of pages, reduced to their letters."""
_PAGE_STATES = frozenset(
    "accepted alpha approved beta current deprecated experimental final live proposed published rejected stable"  # noqa: SIM905 (a list of words)
    " superseded".split()
)
"""Values of `status` of pages and records, but not of backlog items."""
_FOLDERS = frozenset(
    "backlog bugs epics issues pbis stories tasks tickets todos userstories workitems".split()  # noqa: SIM905 (a list of words)
)
_RECORDS = re.compile(r"adrs?|.*decisions?|rfcs?|keps|proposals")
_OTHER_FOLDERS = re.compile(r"docs?|templates?")
"""Folders directly within a backlog's folder whose files are no items."""
_NAME = re.compile(
    r"((?:task|story|bug|issue|epic|ticket|us|pbi)[-_](?:[a-z]+-)?\d[\d.]*)(?![^\W_])", re.IGNORECASE
)
"""File names of items without a header: `task-12 - Oil-the-winch`."""
_NOT_LETTERS = re.compile(r"[\W\d_]+")
PARENT_KEYS = ("parent", "parentid", "parenttaskid", "epic")


def is_backlog_item(path: str, header: Mapping[str, Any]) -> bool:
    """True for a file whose header is that of a task, a story or another work item.

    Without a header, by a name with a number in a folder of work items. Else by its type, or by a status and two of: an
    id with a number, a status of work, a field that only work items have, a folder of work items.
    """
    keys = plain_keys(header)
    folders = [_letters(name) for name in PurePosixPath(path).parts[:-1]]
    status, item_id = text_of(keys, ("status", "state")), text_of(keys, ID_KEYS)
    elsewhere = any(map(_RECORDS.fullmatch, folders)) or any(map(_OTHER_FOLDERS.fullmatch, folders[-1:]))
    if elsewhere or _letters(status) in _PAGE_STATES:
        return False
    if _letters(text_of(keys, ("type", "kind", "issuetype"))) in _TYPES:
        return bool(status or item_id)
    if not keys:
        return not _FOLDERS.isdisjoint(folders) and bool(_NAME.match(PurePosixPath(path).stem))
    signs = (
        any(map(str.isdigit, item_id)),
        _letters(status) in _STATES,
        not _FIELDS.isdisjoint(keys),
        not _FOLDERS.isdisjoint(folders),
    )
    return status != "" and sum(signs) > 1


def backlog_item_facts(path: str, header: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Metadata of a backlog item, with the keys of items in JSON: `pbi_id`, status, priority, parent, effort."""
    keys = plain_keys(header)
    name = _NAME.match(PurePosixPath(path).stem)
    item_id = text_of(keys, ID_KEYS) or (name[1].rstrip(".") if name else "")
    facts = work_facts(header, item_id, [text])
    if parent := next((item for key in PARENT_KEYS if (item := scalar_text(keys.get(key)))), ""):
        facts["parent"] = parent
    return {**facts, **({"pbi_id": item_id} if item_id else {})}


def _letters(text: str) -> str:
    return _NOT_LETTERS.sub("", text.casefold())
