"""Work items, and their documents: fields, links, history and comments as Markdown, with metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urljoin

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.structured import structured_text
from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.headings import headings_of, nested
from connectors.documents.values import clean_text, number_of, number_within, parse_time, scalar_text
from connectors.markup.elements import to_markdown
from connectors.markup.inline import Links
from connectors.markup.parsing import resolved
from pipeline.documents import Document, SourceType

OPEN_END = 9999
"""Year of dates that mean "not yet"."""
LONG_FIELDS = {
    "System.Description": "Description",
    "Microsoft.VSTS.Common.AcceptanceCriteria": "Acceptance criteria",
    "Microsoft.VSTS.TCM.ReproSteps": "Steps to reproduce",
    "Microsoft.VSTS.TCM.SystemInfo": "System info",
    "Microsoft.VSTS.TCM.Steps": "Steps",
    "Microsoft.VSTS.TCM.Parameters": "Parameters",
    "Microsoft.VSTS.TCM.LocalDataSource": "Test data",
    "Microsoft.VSTS.Common.Resolution": "Resolution",
    "System.History": "Discussion",
}
"""Fields in HTML, unless the item states Markdown; the format of other fields is detected."""
TEST_FIELDS = (
    "Microsoft.VSTS.TCM.Steps",
    "Microsoft.VSTS.TCM.Parameters",
    "Microsoft.VSTS.TCM.LocalDataSource",
)
"""Fields in XML, of test cases and shared steps."""
ALWAYS_READ = ("Microsoft.VSTS.TCM.ReproSteps", *TEST_FIELDS, "Microsoft.VSTS.Common.Resolution")
"""Fields that are always read, because they hold the text of bugs and test cases and the resolution."""
SHOWN_ELSEWHERE = frozenset(
    ("System.Title", "System.Tags", "System.CommentCount", "System.Parent", "System.Id", "System.Rev")
)
PARENT = "System.LinkTypes.Hierarchy-Reverse"
DUPLICATE_OF = "System.LinkTypes.Duplicate-Reverse"
"""Link from a duplicate to its master."""
LINK_NAMES = {
    PARENT: "Parent",
    "System.LinkTypes.Hierarchy-Forward": "Child",
    "System.LinkTypes.Related": "Related",
    "System.LinkTypes.Dependency-Forward": "Successor",
    "System.LinkTypes.Dependency-Reverse": "Predecessor",
    "System.LinkTypes.Duplicate-Forward": "Duplicate",
    DUPLICATE_OF: "Duplicate of",
}
"""Names of link types, in their order in the text."""
LONGEST_DETAIL = 100
MOST_LINKS = 200
"""Most links in the text of one item, because some parents have thousands of children."""
METADATA = {
    "state": "System.State",
    "reason": "System.Reason",
    "area": "System.AreaPath",
    "iteration": "System.IterationPath",
    "assigned_to": "System.AssignedTo",
    "created_by": "System.CreatedBy",
    "severity": "Microsoft.VSTS.Common.Severity",
    "resolution": "Microsoft.VSTS.Common.ResolvedReason",
}
"""Metadata -> field; written only if it has a value."""
EFFORTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "story_points": (1000, ("StoryPoints", "Effort", "Size")),
    "estimated_hours": (20_000, ("OriginalEstimate",)),
    "actual_hours": (20_000, ("CompletedWork",)),
    "remaining_hours": (20_000, ("RemainingWork",)),
}
"""Metadata -> largest plausible number, and fields of `Microsoft.VSTS.Scheduling`, which differ by process."""
DATES = {"started_at": "ActivatedDate", "resolved_at": "ResolvedDate", "closed_at": "ClosedDate"}
"""Metadata -> field of `Microsoft.VSTS.Common`."""

_MAIL = re.compile(r"\s*<[^<>]*>\s*$")
_IDENTITY = re.compile(r"[^<>\n]{1,200}<[^<>\s]{1,200}[@\\][^<>\s]{1,200}>\s*")
_TARGET = re.compile(r"/(\d{1,12})(?:\.0+)?/?$")
LARGEST_ID = 10**12
_HTML = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:[a-zA-Z]{2,8}|#\d{1,6});")
_BLOCK = re.compile(
    r"</?(?:p|div|ul|ol|li|table|tr|td|th|h[1-6]|pre|blockquote|hr|dl|section|details)\b[^<>]*>",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"</?(?:a|b|i|u|s|em|strong|span|font|code|br|img|sub|sup|del|ins|mark|small|big|strike|input|label)\b[^<>]*>",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(
    r"^(?:#{1,6}[ \t]|[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+\S|```|~~~|>|\|.*\|[ \t]*$)", re.MULTILINE
)
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A link to an item or address, or a file, of an item."""

    kind: str
    """Type, such as `System.LinkTypes.Related` or `AttachedFile`."""
    url: str
    attributes: Mapping[str, Any]

    @property
    def target(self) -> int | None:
        """Id of the linked item, from the end of the address; None if the link is not to an item."""
        if not self.kind.startswith(("System.LinkTypes.", "Microsoft.VSTS.")):
            return None
        match = _TARGET.search(self.url)
        return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class BoardsComment:
    """A comment of the discussion."""

    author: str
    at: datetime | None
    text: str
    markdown: bool


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """A work item as the service returns it. Empty fields are absent; dates are text, persons are objects."""

    id: int
    rev: int
    fields: Mapping[str, Any]
    relations: Sequence[Relation] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    """Field -> `markdown` for long fields in Markdown; others are HTML."""
    page: str = ""
    """Address for people; empty if it was not returned."""

    def text(self, name: str) -> str:
        """A field as text: a person's name, a number, a date as returned; empty if it has no value."""
        value = self.fields.get(name)
        is_person = isinstance(value, Mapping) or (isinstance(value, str) and _IDENTITY.fullmatch(value))
        if isinstance(value, float) and value.is_integer():  # as written by tools that copy items
            value = int(value)
        return person(value) if is_person else scalar_text(value)

    def moment(self, name: str) -> datetime | None:
        """Time of a field; None if it has none or means "not yet"."""
        moment = parse_time(self.fields.get(name))
        return None if moment is None or moment.year >= OPEN_END else moment

    def day(self, name: str) -> str:
        """Day of a field, such as `2025-03-04`; empty if it has none."""
        return _day(self.moment(name))

    def linked(self, kind: str) -> int | None:
        """Id of the first item linked by a link of this type; None if there is none."""
        return next((r.target for r in self.relations if r.kind == kind), None)

    @property
    def shown_relations(self) -> list[Relation]:
        """Relations for the text, at most MOST_LINKS, parents first."""
        ranks = {kind: rank for rank, kind in enumerate(LINK_NAMES)}
        return sorted(self.relations, key=lambda r: ranks.get(r.kind, len(ranks)))[:MOST_LINKS]

    @property
    def project(self) -> str:
        """Name of its project."""
        return self.text("System.TeamProject")

    @property
    def type(self) -> str:
        """Type, such as `User Story`."""
        return self.text("System.WorkItemType")

    @property
    def title(self) -> str:
        """Title, or its type and id if it has none."""
        return " ".join(self.text("System.Title").split()) or f"{self.type or 'Work item'} {self.id}"

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags, each once; the service joins them with semicolons."""
        return tuple(dict.fromkeys(tag.strip() for tag in self.text("System.Tags").split(";") if tag.strip()))


def whole_number(value: Any) -> int | None:
    """An id or a count, also from `12.0` or from text; None for other values."""
    number = number_within(number_of(value), LARGEST_ID)
    return number if isinstance(number, int) else None


def person(value: Any) -> str:
    """Name of an identity: of an object, or of `Name <mail>` as in the feed."""
    if isinstance(value, Mapping):
        return scalar_text(value.get("displayName")) or scalar_text(value.get("uniqueName"))
    return _MAIL.sub("", scalar_text(value))


def document_of(
    item: WorkItem,
    options: AzureDevOpsOptions,
    linked_items: Mapping[int, WorkItem],
    comments: Sequence[BoardsComment],
) -> Document:
    """The document of one item.

    Args:
        item: with all its fields.
        options: of its source.
        linked_items: items linked from this one whose titles may be shown, by id.
        comments: of the item, oldest first.
    """
    writer = _TextWriter(item, options, linked_items)
    text, title = clean_text(writer.text(comments)), clean_text(item.title)
    source_type = options.source_type or SourceType.AZURE_DEVOPS
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
    # By type and tag only: headings and paths of work items are no signs of a decision.
    rules = options.decisions.model_copy(update={"paths": (), "headings": ()})
    kind, facts = kind_and_facts(rules, evidence, source_type)
    # The address from the service if valid, else a built one.
    url = item.page if item.page.startswith(("https://", "http://")) else _url(item, options)
    capped = {"capped": True} if writer.capped else {}
    return Document(
        external_id=str(item.id),
        title=title,
        text=text if text.strip() else title,
        source_type=source_type,
        kind=kind,
        url=url,
        tags=tuple(clean_text(tag) for tag in item.tags),
        metadata={
            **options.fixed_metadata, **_metadata(item), **facts, **capped, "source_path": url,
        },
        created_at=item.moment("System.CreatedDate"),
        updated_at=item.moment("System.ChangedDate"),
        fingerprint=str(item.rev),
    )  # fmt: skip


def _metadata(item: WorkItem) -> dict[str, Any]:
    metadata: dict[str, Any] = {"rev": item.rev, "work_item_type": item.type, "project": item.project}
    metadata |= {key: clean_text(item.text(name)) for key, name in METADATA.items() if item.text(name)}
    priority = whole_number(item.fields.get("Microsoft.VSTS.Common.Priority"))
    if priority is not None:
        metadata["priority"] = priority
    parent = whole_number(item.fields.get("System.Parent"))
    links = {
        "parent_id": item.linked(PARENT) if parent is None else parent,
        "duplicate_of": item.linked(DUPLICATE_OF),
    }
    metadata |= {key: str(target) for key, target in links.items() if target is not None}
    for key, (most, names) in EFFORTS.items():
        # The first field with a plausible number counts.
        numbers = (number_of(item.fields.get(f"Microsoft.VSTS.Scheduling.{name}")) for name in names)
        effort = next((n for number in numbers if (n := number_within(number, most)) is not None), None)
        if effort is not None:
            metadata[key] = effort
    return metadata | {
        key: moment.isoformat()
        for key, name in DATES.items()
        if (moment := item.moment(f"Microsoft.VSTS.Common.{name}"))
    }


def heading_of(name: str) -> str:
    """Heading of a field: `Risk assessment` for `Custom.RiskAssessment`."""
    if name in LONG_FIELDS:
        return LONG_FIELDS[name]
    first, *words = _WORDS.sub(" ", name.rpartition(".")[2]).split() or [name]
    return " ".join([first, *(word if word.isupper() else word.lower() for word in words)])


def is_plain(text: str) -> bool:
    """Whether a field meant for HTML holds Markdown or plain text, as written by scripts and in old items."""
    if _BLOCK.search(text):
        return False
    return not _TAG.search(text) or ("\n" in text and _MARKDOWN.search(text) is not None)


class BoardLinks(Links):
    """Makes addresses in an item's HTML absolute; only `href` is needed for work items."""

    def __init__(self, base_url: str) -> None:
        self._base = base_url + "/"

    def href(self, href: str) -> str | None:
        """The absolute address; None for mentions, whose address is `#`."""
        if not href.strip() or href.startswith("#"):
            return None
        try:
            return urljoin(self._base, href.strip())
        except ValueError:
            return None


class _TextWriter:
    """Writer of an item's Markdown: a section per long field, then details, links, history and comments."""

    def __init__(
        self, item: WorkItem, options: AzureDevOpsOptions, linked_items: Mapping[int, WorkItem]
    ) -> None:
        self._item = item
        self._options = options
        self._linked_items = linked_items
        self._links = BoardLinks(options.organization)
        self.capped = False
        """True if text is missing because it is too large."""

    def text(self, comments: Sequence[BoardsComment]) -> str:
        """The complete text of the item."""
        details: list[str] = []
        sections: list[str] = []
        for name in dict.fromkeys((*self._options.fields, *ALWAYS_READ)):
            text = "" if name in SHOWN_ELSEWHERE else self._field(name)
            if text and name not in LONG_FIELDS and "\n" not in text and len(text) <= LONGEST_DETAIL:
                details.append(f"- {heading_of(name)}: {text}")
            elif text:
                sections.append(f"## {heading_of(name)}\n\n{text}")
        further = {
            "Details": "\n".join(details),
            "Links": "\n".join(self._link_lines()) if self._options.include_links else "",
            "History": "\n".join(self._history()),
            "Comments": "\n\n".join(map(self._comment, comments)),
        }
        sections += [f"## {name}\n\n{text}" for name, text in further.items() if text]
        return "\n\n".join(sections)

    def _field(self, name: str) -> str:
        """Value of a field as Markdown, for a section with a heading of level 2."""
        item, value = self._item, self._item.fields.get(name)
        if isinstance(value, str) and _DATE.fullmatch(value):
            return item.day(name)
        text = item.text(name)
        if name in TEST_FIELDS and (structured := structured_text(text, self._label)):
            return nested(structured, 2)
        if item.formats.get(name) == "markdown":
            return nested(text, 2)
        if name in LONG_FIELDS or "\n" in text or _HTML.search(text):
            return nested(self._converted(text), 2)
        return text

    def _comment(self, comment: BoardsComment) -> str:
        text = comment.text.strip() if comment.markdown else self._converted(comment.text)
        head = ", ".join(filter(None, (comment.author or "Somebody", _day(comment.at))))
        return f"### {head}\n\n{nested(text, 3)}"

    def _converted(self, html: str) -> str:
        if is_plain(html):
            return resolved(html).strip()
        if not _BLOCK.search(html) and "<br" not in html.lower():  # it is divided by line ends only
            html = html.replace("\n", "<br>")
        rendered = to_markdown(html, self._links)
        self.capped = self.capped or rendered.capped
        return rendered.text.strip()

    def _link_lines(self) -> Iterator[str]:
        relations = self._item.shown_relations
        yield from filter(None, map(self._link, relations))
        if len(self._item.relations) > len(relations):
            yield f"- and {len(self._item.relations) - len(relations)} more"

    def _link(self, relation: Relation) -> str:
        if (target := relation.target) is not None:
            name = LINK_NAMES.get(relation.kind) or _attribute(relation, "name") or "Link"
            return f"- {name}: {self._label(target)}"
        if relation.kind == "AttachedFile":
            return f"- Attachment: {_attribute(relation, 'name') or 'without a name'}"
        if relation.kind == "Hyperlink" and relation.url.startswith(("http://", "https://")):
            note = _attribute(relation, "comment")
            return f"- Hyperlink: {f'{note}: ' if note else ''}<{relation.url}>"
        return ""

    def _label(self, item_id: int) -> str:
        """Link with type and title for an item that may be shown, else its number."""
        other = self._linked_items.get(item_id)
        if other is None:
            return f"#{item_id}"
        title = other.title.replace("[", "(").replace("]", ")")
        # Always a built address: not all items have one from the service, and the text must not depend on that.
        return f"[{other.type or 'Work item'} {item_id}: {title}]({_url(other, self._options)})"

    def _history(self) -> Iterator[str]:
        """Lines on the item's history, from its fields, without a request for its revisions."""
        item, common = self._item, "Microsoft.VSTS.Common."
        steps = {
            "Created": ("System.CreatedDate", "System.CreatedBy", ""),
            "Resolved": (f"{common}ResolvedDate", f"{common}ResolvedBy", f"{common}ResolvedReason"),
            "Closed": (f"{common}ClosedDate", f"{common}ClosedBy", "System.Reason"),
        }
        for word, (date_field, person_field, reason_field) in steps.items():
            if day := item.day(date_field):
                name, reason = person(item.fields.get(person_field)), item.text(reason_field)
                yield f"- {word} {day}{f' by {name}' if name else ''}{f': {reason}' if reason else ''}"
        if state := item.text("System.State"):
            since = item.day(f"{common}StateChangeDate")
            reason_field = f" ({item.text('System.Reason')})" if item.text("System.Reason") else ""
            yield f"- State {state}{reason_field}" + (f" since {since}" if since else "")


def _url(item: WorkItem, options: AzureDevOpsOptions) -> str:
    return f"{options.organization}/{quote(item.project, safe='')}/_workitems/edit/{item.id}"


def _attribute(relation: Relation, name: str) -> str:
    value = relation.attributes.get(name)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _day(moment: datetime | None) -> str:
    return moment.date().isoformat() if moment else ""
