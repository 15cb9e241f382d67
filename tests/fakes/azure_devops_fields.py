"""The fields, link types and short names of a pretended Azure DevOps Boards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FieldType = Literal[
    "string", "integer", "double", "boolean", "dateTime", "html", "history", "plainText", "treePath", "identity",
    "tags",
]  # fmt: skip
LONG_TEXT: tuple[FieldType, ...] = ("html", "history", "plainText")


@dataclass(frozen=True, kw_only=True)
class Field:
    reference: str
    name: str
    type: FieldType
    """`tags` is a plain text field to the outside, with rules of its own in queries."""


_TABLE: tuple[tuple[str, str, FieldType], ...] = (
    ("System.Id", "ID", "integer"),
    ("System.Rev", "Rev", "integer"),
    ("System.Watermark", "Watermark", "integer"),
    ("System.TeamProject", "Team Project", "string"),
    ("System.WorkItemType", "Work Item Type", "string"),
    ("System.Title", "Title", "string"),
    ("System.State", "State", "string"),
    ("System.Reason", "Reason", "string"),
    ("System.AreaPath", "Area Path", "treePath"),
    ("System.IterationPath", "Iteration Path", "treePath"),
    ("System.AssignedTo", "Assigned To", "identity"),
    ("System.CreatedBy", "Created By", "identity"),
    ("System.ChangedBy", "Changed By", "identity"),
    ("System.CreatedDate", "Created Date", "dateTime"),
    ("System.ChangedDate", "Changed Date", "dateTime"),
    ("System.RevisedDate", "Revised Date", "dateTime"),
    ("System.CommentCount", "Comment Count", "integer"),
    ("System.Parent", "Parent", "integer"),
    ("System.Tags", "Tags", "tags"),
    ("System.History", "History", "history"),
    ("System.Description", "Description", "html"),
    ("System.IsDeleted", "Is Deleted", "boolean"),
    ("Microsoft.VSTS.Common.AcceptanceCriteria", "Acceptance Criteria", "html"),
    ("Microsoft.VSTS.TCM.ReproSteps", "Repro Steps", "html"),
    ("Microsoft.VSTS.TCM.SystemInfo", "System Info", "html"),
    ("Microsoft.VSTS.TCM.Steps", "Steps", "html"),
    ("Microsoft.VSTS.TCM.Parameters", "Parameters", "html"),
    ("Microsoft.VSTS.TCM.LocalDataSource", "Local Data Source", "html"),
    ("Microsoft.VSTS.Common.Resolution", "Resolution", "html"),
    ("Microsoft.VSTS.Common.Priority", "Priority", "integer"),
    ("Microsoft.VSTS.Common.Severity", "Severity", "string"),
    ("Microsoft.VSTS.Common.ValueArea", "Value Area", "string"),
    ("Microsoft.VSTS.Common.StateChangeDate", "State Change Date", "dateTime"),
    ("Microsoft.VSTS.Common.ActivatedDate", "Activated Date", "dateTime"),
    ("Microsoft.VSTS.Common.ClosedDate", "Closed Date", "dateTime"),
    ("Microsoft.VSTS.Common.ClosedBy", "Closed By", "identity"),
    ("Microsoft.VSTS.Common.ResolvedDate", "Resolved Date", "dateTime"),
    ("Microsoft.VSTS.Common.ResolvedBy", "Resolved By", "identity"),
    ("Microsoft.VSTS.Common.ResolvedReason", "Resolved Reason", "string"),
    ("Microsoft.VSTS.Scheduling.StoryPoints", "Story Points", "double"),
    ("Microsoft.VSTS.Scheduling.Effort", "Effort", "double"),
    ("Microsoft.VSTS.Scheduling.Size", "Size", "double"),
    ("Microsoft.VSTS.Scheduling.OriginalEstimate", "Original Estimate", "double"),
    ("Microsoft.VSTS.Scheduling.CompletedWork", "Completed Work", "double"),
    ("Microsoft.VSTS.Scheduling.RemainingWork", "Remaining Work", "double"),
    ("Microsoft.VSTS.Scheduling.TargetDate", "Target Date", "dateTime"),
)

FIELDS: Mapping[str, Field] = {ref: Field(reference=ref, name=name, type=kind) for ref, name, kind in _TABLE}

ALIASES: Mapping[str, str] = {
    "title": "System.Title",
    "description": "System.Description",
    "acceptance_criteria": "Microsoft.VSTS.Common.AcceptanceCriteria",
    "repro_steps": "Microsoft.VSTS.TCM.ReproSteps",
    "resolution": "Microsoft.VSTS.Common.Resolution",
    "state": "System.State",
    "reason": "System.Reason",
    "area": "System.AreaPath",
    "iteration": "System.IterationPath",
    "assigned_to": "System.AssignedTo",
    "tags": "System.Tags",
    "priority": "Microsoft.VSTS.Common.Priority",
    "story_points": "Microsoft.VSTS.Scheduling.StoryPoints",
    "effort": "Microsoft.VSTS.Scheduling.Effort",
    "size": "Microsoft.VSTS.Scheduling.Size",
    "original_estimate": "Microsoft.VSTS.Scheduling.OriginalEstimate",
    "completed_work": "Microsoft.VSTS.Scheduling.CompletedWork",
    "remaining_work": "Microsoft.VSTS.Scheduling.RemainingWork",
}
"""What the control methods call a field."""

LINKS: Mapping[str, tuple[str, str]] = {
    "parent": ("System.LinkTypes.Hierarchy-Reverse", "System.LinkTypes.Hierarchy-Forward"),
    "child": ("System.LinkTypes.Hierarchy-Forward", "System.LinkTypes.Hierarchy-Reverse"),
    "related": ("System.LinkTypes.Related", "System.LinkTypes.Related"),
    "successor": ("System.LinkTypes.Dependency-Forward", "System.LinkTypes.Dependency-Reverse"),
    "duplicate": ("System.LinkTypes.Duplicate-Forward", "System.LinkTypes.Duplicate-Reverse"),
    "duplicate of": ("System.LinkTypes.Duplicate-Reverse", "System.LinkTypes.Duplicate-Forward"),
    "predecessor": ("System.LinkTypes.Dependency-Reverse", "System.LinkTypes.Dependency-Forward"),
}
"""What another item is to this one: the relation here, and the one over there."""

STATES: tuple[tuple[str, str], ...] = (
    ("New", "Proposed"),
    ("Active", "InProgress"),
    ("Resolved", "Resolved"),
    ("Closed", "Completed"),
    ("Removed", "Removed"),
)
