"""A work item as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.sections import Label, body_of
from connectors.azure_devops.work_item import Comment, WorkItem
from connectors.documents.decisions import Evidence, decision_facts, is_decision
from connectors.documents.headings import headings_of
from connectors.documents.options import DecisionRules
from connectors.documents.redaction import redact
from connectors.documents.values import clean_text, json_able, measure, number_of
from pipeline.documents import DEFAULT_KIND, Document, Kind, SourceType

PARENT = "System.LinkTypes.Hierarchy-Reverse"
MASTER = "System.LinkTypes.Duplicate-Reverse"
"""`Duplicate Of`: leads from the copy to the item that it repeats, as to a parent."""
SHOWN = {
    "state": "System.State",
    "reason": "System.Reason",
    "area": "System.AreaPath",
    "iteration": "System.IterationPath",
    "assigned_to": "System.AssignedTo",
    "created_by": "System.CreatedBy",
    "severity": "Microsoft.VSTS.Common.Severity",
    "resolution": "Microsoft.VSTS.Common.ResolvedReason",
}
"""Metadata by field, where there is a value."""
EFFORTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "story_points": (1000, ("StoryPoints", "Effort", "Size")),
    "estimated_hours": (20_000, ("OriginalEstimate",)),
    "actual_hours": (20_000, ("CompletedWork",)),
    "remaining_hours": (20_000, ("RemainingWork",)),
}
"""Metadata by fields of `Microsoft.VSTS.Scheduling`; more than the number is a slip. Each process has its own size."""
DATES = {"started_at": "ActivatedDate", "resolved_at": "ResolvedDate", "closed_at": "ClosedDate"}
"""Metadata by field of `Microsoft.VSTS.Common`."""


def document_of(
    item: WorkItem,
    options: AzureDevOpsOptions,
    base_url: str,
    label: Label,
    comments: Sequence[Comment],
) -> Document:
    """The document of one item; secrets in addresses are taken out of every text."""
    text, capped = body_of(item, options, base_url, label, comments)
    text, title = _clean(text), _clean(item.title)
    source_type = options.source_type or SourceType.AZURE_DEVOPS
    kind, facts = _kind(item, options.decisions, text, source_type)
    url = page_of(item, base_url)
    own = {**_metadata(item), **facts, **({"capped": True} if capped else {}), "source_path": url}
    return Document(
        external_id=str(item.id),
        title=title,
        text=text if text.strip() else title,
        source_type=source_type,
        kind=kind,
        url=url,
        tags=tuple(_clean(tag) for tag in item.tags),
        metadata={**json_able(options.metadata), **own},
        created_at=item.moment("System.CreatedDate"),
        updated_at=item.moment("System.ChangedDate"),
        fingerprint=str(item.rev),
    )


def page_of(item: WorkItem, base_url: str) -> str:
    """The address for people."""
    return redact(item.page) if item.page.startswith(("https://", "http://")) else _built(item, base_url)


def label_of(others: Mapping[int, WorkItem], base_url: str) -> Callable[[int], str]:
    """Shows the items that are known with type and title, all others by their number."""

    def label(item_id: int) -> str:
        other = others.get(item_id)
        if other is None:
            return f"#{item_id}"
        shown = other.title.replace("[", "(").replace("]", ")")
        # Always the built address: the given one is not known of all, and a text must not depend on that.
        return f"[{other.type or 'Work item'} {item_id}: {shown}]({_built(other, base_url)})"

    return label


def _built(item: WorkItem, base_url: str) -> str:
    return f"{base_url}/{quote(item.project, safe='')}/_workitems/edit/{item.id}"


def _kind(
    item: WorkItem, rules: DecisionRules, text: str, source_type: SourceType
) -> tuple[Kind, dict[str, str]]:
    """By type and tag only: headings and paths are no sign on a board."""
    closed = item.moment("Microsoft.VSTS.Common.ClosedDate")
    evidence = Evidence(
        path="",
        text=text,
        front_matter={
            "type": item.type,
            "state": item.text("System.State"),
            "date": closed.isoformat() if closed else "",
        },
        tags=item.tags,
        headings=list(headings_of(text)),
    )
    if is_decision(DecisionRules(types=rules.types, tags=rules.tags, paths=(), headings=()), evidence):
        return Kind.DECISION, decision_facts(evidence)
    return DEFAULT_KIND[source_type], {}


def _metadata(item: WorkItem) -> dict[str, Any]:
    found: dict[str, Any] = {"rev": item.rev, "work_item_type": item.type, "project": item.project}
    found |= {key: _clean(item.text(field)) for key, field in SHOWN.items() if item.text(field)}
    priority = item.fields.get("Microsoft.VSTS.Common.Priority")
    if isinstance(priority, int):
        found["priority"] = priority
    if (parent := _parent(item)) is not None:
        found["parent_id"] = str(parent)
    if (master := _target(item, MASTER)) is not None:
        found["duplicate_of"] = str(master)
    found |= _efforts(item)
    for key, name in DATES.items():
        if moment := item.moment(f"Microsoft.VSTS.Common.{name}"):
            found[key] = moment.isoformat()
    return found


def _efforts(item: WorkItem) -> dict[str, Any]:
    """Of each kind the first field that holds a possible number."""
    found: dict[str, Any] = {}
    for key, (most, names) in EFFORTS.items():
        numbers = (number_of(item.fields.get(f"Microsoft.VSTS.Scheduling.{name}")) for name in names)
        effort = next((n for number in numbers if (n := measure(number, most)) is not None), None)
        if effort is not None:
            found[key] = effort
    return found


def _parent(item: WorkItem) -> int | None:
    value = item.fields.get("System.Parent")
    return value if isinstance(value, int) else _target(item, PARENT)


def _target(item: WorkItem, kind: str) -> int | None:
    return next((r.target for r in item.relations if r.kind == kind), None)


def _clean(text: str) -> str:
    return redact(clean_text(text))
