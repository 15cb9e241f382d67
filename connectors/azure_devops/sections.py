"""The text of a work item: its fields, links, history and comments as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from urllib.parse import urljoin

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.work_item import Comment, Relation, WorkItem
from connectors.documents.headings import nested
from connectors.markup import to_markdown

LONG_FIELDS = {
    "System.Description": "Description",
    "Microsoft.VSTS.Common.AcceptanceCriteria": "Acceptance criteria",
    "Microsoft.VSTS.TCM.ReproSteps": "Steps to reproduce",
    "Microsoft.VSTS.TCM.SystemInfo": "System info",
    "Microsoft.VSTS.Common.Resolution": "Resolution",
    "System.History": "Discussion",
}
"""HTML unless the item says Markdown; all other fields are looked at."""

ALWAYS = ("Microsoft.VSTS.TCM.ReproSteps", "Microsoft.VSTS.Common.Resolution")
"""Read though not configured: bugs have their text in the first, and nobody looks for the second."""

ELSEWHERE = ("System.Title", "System.Tags", "System.CommentCount", "System.Parent", "System.Id", "System.Rev")
"""Configured or not, they have a place of their own."""

LINK_NAMES = {
    "System.LinkTypes.Hierarchy-Reverse": "Parent",
    "System.LinkTypes.Hierarchy-Forward": "Child",
    "System.LinkTypes.Related": "Related",
    "System.LinkTypes.Dependency-Forward": "Successor",
    "System.LinkTypes.Dependency-Reverse": "Predecessor",
    "System.LinkTypes.Duplicate-Forward": "Duplicate",
    "System.LinkTypes.Duplicate-Reverse": "Duplicate of",
}
LONGEST_DETAIL = 100
MOST_LINKS = 200
"""Shown; some parents have thousands of children."""

_HTML = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:[a-zA-Z]{2,8}|#\d{1,6});")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")


class BoardLinks:
    """Addresses inside an item's HTML, made absolute; everything else keeps its label only."""

    def __init__(self, base_url: str) -> None:
        self._base = base_url + "/"

    def page(self, title: str, space: str | None) -> str | None:  # noqa: ARG002 (Confluence's)
        """Boards have no such links."""
        return None

    def attachment(self, name: str, page_title: str | None) -> str | None:  # noqa: ARG002 (Confluence's)
        """Boards link attachments by address."""
        return None

    def user(self, key: str) -> str | None:  # noqa: ARG002 (Confluence's)
        """Mentions bring the name as their label."""
        return None

    def href(self, href: str) -> str | None:
        """None for mentions, whose address is `#`."""
        if not href.strip() or href.startswith("#"):
            return None
        try:
            return urljoin(self._base, href.strip())
        except ValueError:
            return None


Label = Callable[[int], str]
"""What is shown of another item: its title with a link, or only its number."""


def body_of(
    item: WorkItem,
    options: AzureDevOpsOptions,
    base_url: str,
    label: Label,
    comments: Sequence[Comment],
) -> tuple[str, bool]:
    """The whole text, and whether some of it was too much to be kept."""
    writer = _Writer(item=item, links=BoardLinks(base_url))
    details: list[str] = []
    sections: list[str] = []
    for name in dict.fromkeys((*options.fields, *ALWAYS)):
        text = "" if name in ELSEWHERE else writer.field(name)
        if text and name not in LONG_FIELDS and "\n" not in text and len(text) <= LONGEST_DETAIL:
            details.append(f"- {heading_of(name)}: {text}")
        elif text:
            sections.append(f"## {heading_of(name)}\n\n{text}")
    lists = {
        "Details": details,
        "Links": list(_links(item, label)) if options.include_links else [],
        "History": list(_history(item)),
    }
    sections += [f"## {name}\n\n" + "\n".join(lines) for name, lines in lists.items() if lines]
    if comments:
        sections.append("## Comments\n\n" + "\n\n".join(writer.comment(comment) for comment in comments))
    return "\n\n".join(sections), writer.capped


def heading_of(name: str) -> str:
    """`Custom.RiskAssessment` as people read it: `Risk assessment`."""
    if name in LONG_FIELDS:
        return LONG_FIELDS[name]
    first, *rest = _WORDS.sub(" ", name.rpartition(".")[2]).split() or [name]
    return " ".join([first, *(word if word.isupper() else word.lower() for word in rest)])


class _Writer:
    def __init__(self, *, item: WorkItem, links: BoardLinks) -> None:
        self._item = item
        self._links = links
        self.capped = False

    def field(self, name: str) -> str:
        """A field's value as Markdown below a heading of level 2."""
        value = self._item.fields.get(name)
        if isinstance(value, str) and _DATE.fullmatch(value):
            return _day(self._item.moment(name))
        text = self._item.text(name)
        if self._item.formats.get(name) == "markdown":
            return nested(text, 2)
        if name in LONG_FIELDS or _HTML.search(text):
            return nested(self._converted(text), 2)
        return text

    def comment(self, comment: Comment) -> str:
        """One comment below a heading of its own."""
        text = comment.text.strip() if comment.markdown else self._converted(comment.text)
        head = ", ".join(part for part in (comment.author or "Somebody", _day(comment.at)) if part)
        return f"### {head}\n\n{nested(text, 3)}"

    def _converted(self, html: str) -> str:
        rendered = to_markdown(html, self._links)
        self.capped = self.capped or rendered.capped
        return rendered.text.strip()


def shown_relations(item: WorkItem) -> list[Relation]:
    """What hangs on an item, parents first, at most MOST_LINKS."""
    ranks = {kind: rank for rank, kind in enumerate(LINK_NAMES)}
    return sorted(item.relations, key=lambda r: ranks.get(r.kind, len(ranks)))[:MOST_LINKS]


def _links(item: WorkItem, label: Label) -> Iterator[str]:
    for relation in shown_relations(item):
        if line := _link(relation, label):
            yield line
    if len(item.relations) > MOST_LINKS:
        yield f"- and {len(item.relations) - MOST_LINKS} more"


def _link(relation: Relation, label: Label) -> str:
    if (target := relation.target) is not None:
        name = LINK_NAMES.get(relation.kind) or _attribute(relation, "name") or "Link"
        return f"- {name}: {label(target)}"
    if relation.kind == "AttachedFile":
        return f"- Attachment: {_attribute(relation, 'name') or 'without a name'}"
    if relation.kind == "Hyperlink" and relation.url.startswith(("http://", "https://")):
        note = _attribute(relation, "comment")
        return f"- Hyperlink: {f'{note}: ' if note else ''}<{relation.url}>"
    return ""


def _attribute(relation: Relation, name: str) -> str:
    value = relation.attributes.get(name)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _history(item: WorkItem) -> Iterator[str]:
    """How it came to be what it is; fields tell it, so that no item costs a request for its revisions."""
    common = "Microsoft.VSTS.Common."
    steps: Mapping[str, tuple[str, str, str]] = {
        "Created": ("System.CreatedDate", "System.CreatedBy", ""),
        "Resolved": (f"{common}ResolvedDate", f"{common}ResolvedBy", f"{common}ResolvedReason"),
        "Closed": (f"{common}ClosedDate", f"{common}ClosedBy", "System.Reason"),
    }
    for word, (date, who, why) in steps.items():
        if moment := item.moment(date):
            by = f" by {item.who(who)}" if item.who(who) else ""
            reason = f": {item.text(why)}" if why and item.text(why) else ""
            yield f"- {word} {_day(moment)}{by}{reason}"
    if state := item.text("System.State"):
        since = _day(item.moment(f"{common}StateChangeDate"))
        why = f" ({item.text('System.Reason')})" if item.text("System.Reason") else ""
        yield f"- State {state}{why}" + (f" since {since}" if since else "")


def _day(moment: datetime | None) -> str:
    return moment.date().isoformat() if moment else ""
