"""Headers of files: YAML or TOML between fences, or fields at the top of a text; broken ones are read in part."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from textwrap import dedent
from typing import Any

import yaml
from frontmatter.default_handlers import YAMLHandler

from connectors.documents.rights import canonical_rights, right_of, stated_rights
from connectors.documents.values import (
    BoundedLoader,
    json_able,
    parse_day,
    parse_time,
    scalar_text,
    tags_of,
)
from pipeline.documents.plain_text import plain_key, plain_keys

_LEAD = re.compile(r"\A(?:[\s\ufeff\u200b]|<!--(?!-->).*?-->)*", re.DOTALL)
"""Blanks, byte order marks and comments, such as a licence, before a header."""
_OPENING = re.compile(r"(---|\+\+\+)[ \t]*(?:#.*)?$")
_CLOSING = {"---": re.compile(r"(?:---|\.\.\.)[ \t]*$"), "+++": re.compile(r"\+\+\+[ \t]*$")}
_FIELD = re.compile(r"""(["']?)([^\W\d_][\w .-]{0,60}?)\1[ \t]*(?::(?=[ \t]|$)|=)[ \t]*(.*)$""")
"""`key: value` or `key = value`."""
_ATTRIBUTE = re.compile(r":([^\W\d_][\w .-]{0,60}):[ \t]+(\S.*)$")
"""`:key: value`, as in AsciiDoc and reStructuredText."""
_PLACEHOLDER = re.compile(r"\{\{.*\}\}|<%.*%>|\{%.*%\}")
"""Placeholders of a template engine."""
MAIL_FIELD = re.compile(r"([A-Z][\w-]*(?: [\w-]+){0,2}):(?:[ \t]+|$)(.*)")
"""`Key: value` or `Key:`, as in the heads of mails, PEPs and BIPs."""
MAIL_LINES = 100
_MAIL_END = re.compile(r"\s*$|```|</pre")
FEWEST_MAIL_FIELDS = 3
TOP_LINES = 30
"""Most lines of a text without fences that are searched for fields."""
FEWEST_WORDS = 4
"""Fewest words of a value that is a sentence, if its key is unusual in headers."""
KNOWN_KEYS = frozenset(
    "acl aliases assignee author authors category categories class created createdat createddate cssclass date"  # noqa: SIM905 (a list of words)
    " deciders dependencies description draft excerpt id keywords kind labels lang language lastmod lastmodified"
    " layout linktitle milestone modified name nav navorder order owner parent permalink priority published"
    " securitylevel sidebarlabel sidebarposition slug sources status summary tags template title type updated"
    " updatedat updateddate url version weight".split()
)
"""Usual keys of headers, reduced to their letters."""


@dataclass(frozen=True, kw_only=True)
class FrontMatter:
    """Header of a file, and the text below it."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by key. Numbers, dates and truth values that YAML would respell stay text as written."""
    body: str
    note: str = ""
    """Reason why a part of the header could not be read; empty if all could."""
    rights_unread: bool = False
    """True if the part that could not be read may hold rights, so that the file must be closed."""


NO_HEADER = FrontMatter(body="")


_ANY_RIGHTS = re.compile(r"security\W{0,3}_?level|(?<![^\W_])acl(?![^\W_])", re.IGNORECASE)
"""A key about rights anywhere in a header; if that cannot be read, its file must be closed."""


class _HeaderLoader(BoundedLoader):
    """YAML loader that keeps values that would be respelled as text: `NO`, `1.10`, `0010` and `12:30`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key about rights: the last one would win, even if it is weaker."""
        names = [key.value for key, _ in node.value if right_of(key.value)]
        if len(names) != len({*names}):
            problem = "the same key about rights twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _as_written(kind: str) -> Callable[[Any, yaml.ScalarNode], Any]:
    construct = BoundedLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]

    def value(loader: Any, node: yaml.ScalarNode) -> Any:
        typed = construct(loader, node)
        return typed if scalar_text(typed) == node.value else node.value

    return value


for _kind in ("timestamp", "int", "float", "bool"):
    _HeaderLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _as_written(_kind))


def read_front_matter(text: str) -> FrontMatter:
    """Split a file's text into header and body. An invalid header is read line by line, with a note.

    A rule as the first line, with prose below it, is no header: the whole text is the body. Rights stated at the top of
    the text that are not among the values close the file.
    """
    lead = _LEAD.match(text)
    start = lead.end() if lead else 0
    lines = text[start:].split("\n")
    opening = _OPENING.match(lines[0])
    front = (
        _fenced(text, lines, opening[1], text.count("\n", 0, start) + 1)
        if opening
        else _unfenced(text, lines)
    )
    top = _first_section(front.body)
    stated = stated_rights(top)
    unread = any(count > 1 or name not in front.values for name, count in stated.items())
    if front.rights_unread or not unread:
        return front
    note = front.note or "the rights at the top of the text cannot be read"
    return replace(front, note=note, rights_unread=True)


def _first_section(body: str) -> list[str]:
    """First lines of a text, up to its second heading, at most TOP_LINES."""
    lines = body.lstrip().split("\n", TOP_LINES)[:TOP_LINES]
    end = next((n for n, line in enumerate(lines) if n and line.startswith(("# ", "## "))), len(lines))
    return lines[:end]


def _fenced(text: str, lines: list[str], fence: str, first: int) -> FrontMatter:
    """Header between fences, and body; `first` is the line number of the opening fence."""
    closing = _CLOSING[fence]
    end = next((n for n, line in enumerate(lines) if n and closing.match(line)), 0)
    if not end:
        return _never_closed(text, lines, fence, first)
    head, body = "\n".join(lines[1:end]), "\n".join(lines[end + 1 :]).strip("\n")
    values, problem = _parsed(head, fence)
    note = ""
    if problem:
        values = _by_lines(lines[1:end], fence)
        note = f"the header is not valid {problem[0]} at line {first + problem[1]}; it was read line by line"
    nested = [value for value in values.values() if isinstance(value, Mapping)]
    rights_unread = bool(note) and bool(_ANY_RIGHTS.search(head))
    if rights_unread or _is_header(values) or not head.strip():
        values = canonical_rights(values, *nested)
        return FrontMatter(values=values, body=body, note=note, rights_unread=rights_unread)
    return FrontMatter(body=text)


def _never_closed(text: str, lines: list[str], fence: str, first: int) -> FrontMatter:
    """Header without its closing fence, read up to the first line that is no field."""
    end = next((n for n, line in enumerate(lines) if n and not _continues(line)), len(lines))
    values = _by_lines(lines[1:end], fence)
    if not (_has_known_key(values) or stated_rights(lines[1:TOP_LINES])):
        return FrontMatter(body=text)
    return FrontMatter(
        values=canonical_rights(values),
        body="\n".join(lines[end:]).strip("\n"),
        note=f"the header opened at line {first} is never closed; it was read line by line",
        rights_unread=bool(stated_rights(lines[1:TOP_LINES])),
    )


def _continues(line: str) -> bool:
    return bool(_FIELD.match(line)) or line.startswith((" ", "\t", "- "))


def _unfenced(text: str, lines: list[str]) -> FrontMatter:
    """Header of fields at the top of a text without fences; the fields stay in the body.

    The fields are attributes, the head of a mail with a title, or a paragraph of fields with rights among them.
    """
    above = lines[:TOP_LINES]
    attributes = {m[1]: m[2].strip() for m in map(_ATTRIBUTE.match, above) if m}
    paragraph = above[: next((n for n, line in enumerate(above) if not line.strip()), len(above))]
    fields = [line.strip() for line in paragraph if line.strip(" \t-+")]
    values: Mapping[str, Any] = {}
    if _has_known_key(attributes):
        values = attributes
    elif stated_rights(fields) and all(map(_FIELD.match, fields)):
        values = _by_lines(fields, "---")
    return FrontMatter(values=canonical_rights(values or _mail_head(lines)), body=text)


def _mail_head(lines: list[str]) -> dict[str, str]:
    """Fields of a head like that of a mail, in a code block or not; empty if there is none, or it has no title."""
    quoted = lines[0].strip().startswith(("```", "<pre"))
    above = lines[quoted:MAIL_LINES]
    end = next((n for n, line in enumerate(above) if _MAIL_END.match(line)), 0)
    unwrapped = re.sub(r"[ \t]*\n[ \t]+", " ", dedent("\n".join(above[:end])))
    fields = [MAIL_FIELD.match(line) for line in unwrapped.split("\n")]
    values = {field[1]: field[2].strip() for field in fields if field}
    title = values.get("Title") or values.get("Subject")
    example = quoted and "Status" not in values
    if not title or example or len(values) < FEWEST_MAIL_FIELDS or not all(fields):
        return {}
    return {**values, "Title": title.replace("\\ ", "")}  # an escaped blank is invisible in reStructuredText


def _parsed(head: str, fence: str) -> tuple[dict[str, Any], tuple[str, int] | None]:
    """Values of a header, and None; if it is invalid, the name of its format and the line below the fence."""
    if fence == "+++":
        try:
            return tomllib.loads(head), None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            line = re.search(r"at line (\d+)", str(error))
            return {}, ("TOML", int(line[1]) if line else 1)
    try:
        values = YAMLHandler().load(head, Loader=_HeaderLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        return {}, ("YAML", mark.line + 1 if mark else 1)
    if isinstance(values, Mapping | None):
        return {str(key): value for key, value in (values or {}).items()}, None
    return {}, ("YAML", 1)


def _by_lines(lines: list[str], fence: str) -> dict[str, Any]:
    """Values by key, parsed field by field: as YAML if valid, else as the text after the key or the list below it."""
    values: dict[str, Any] = {}
    for block in _fields(lines):
        match = _FIELD.match(block[0])
        if match is None:
            continue
        parsed, problem = _parsed("\n".join(block), fence)
        values[match[2]] = _text_or_list(match[3], block[1:]) if problem else parsed.get(match[2], "")
    return values


def _text_or_list(first: str, below: list[str]) -> str | list[str]:
    """A value that is no YAML: the items below its key, or else the text after it with the lines below."""
    items = [line.strip().removeprefix("-") for line in below if line.lstrip().startswith("- ")]
    if not items and first.startswith("[") and first.rstrip().endswith("]"):
        items = first.strip()[1:-1].split(",")
    texts = [text for text in map(_unquoted, items or [first, *below]) if text and not text.startswith("# ")]
    return texts if items else " ".join(texts)


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _fields(lines: list[str]) -> Iterator[list[str]]:
    """Fields of a header, each with its continuation lines."""
    block: list[str] = []
    for line in lines:
        if block and not _FIELD.match(line):
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _has_known_key(values: Mapping[str, Any]) -> bool:
    return any(plain_key(key) in KNOWN_KEYS for key in values)


def _is_header(values: Mapping[str, Any]) -> bool:
    """True if the values are a header, false for prose with colons between two rules."""
    if not values or _has_known_key(values) or any("_" in key for key in values):
        return bool(values)
    texts = [value for value in values.values() if isinstance(value, str)]
    if len(values) == 1:
        return next(iter(values))[:1].islower() and all(len(text.split()) <= 1 for text in texts)
    sentences = sum(len(text.split()) >= FEWEST_WORDS for text in texts)
    return sentences < len(values)


CREATED = (
    "created",
    "createdat",
    "createddate",
    "createdon",
    "datecreated",
    "creationdate",
    "date",
    "published",
)
UPDATED = (
    "updated", "updatedat", "updateddate", "updatedon", "dateupdated", "lastmod", "lastmodified", "lastupdated",
    "lastmodifiedat", "lastupdatedat", "modified", "modifieddate", "datemodified",
)  # fmt: skip
TAGS = ("tags", "tag", "labels", "label", "keywords")
"""Keys of headers, reduced to their letters, the most reliable first."""
COMMON_FIELDS: Mapping[str, tuple[str, ...]] = {
    "author": ("author", "authors"),
    "date": ("date",),
    "created": ("created",),
    "updated": ("updated",),
    "status": ("status", "state"),
    "assignee": ("assignee", "assignees", "assignedto"),
    "labels": ("labels", "label"),
    "priority": ("priority",),
    "dependencies": ("dependencies", "dependson"),
    "parent": ("parent", "parentid", "parenttaskid"),
    "type": ("type",),
}
"""Metadata of every file -> keys of its header, reduced to their letters."""


def header_tags(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags, labels and keywords, each once."""
    keys = plain_keys(values)
    return tuple(dict.fromkeys(tag for key in TAGS for tag in tags_of(keys.get(key))))


def header_times(
    values: Mapping[str, Any], modified: datetime | None, *, prefer_created: bool
) -> tuple[datetime | None, datetime | None]:
    """Times of creation and update: from the header, else of the file; creation is never after the update.

    `prefer_created`: without an update in the header, the creation counts as one, and not the time of the file.
    """
    keys = plain_keys(values)
    if isinstance(keys.get("date"), Mapping):  # `date: {created: ..., updated: ...}`
        keys = {**plain_keys(keys.pop("date")), **keys}
    created, updated = (
        next(filter(None, map(_time, map(keys.get, names))), None) for names in (CREATED, UPDATED)
    )
    updated = updated or (created if prefer_created else None) or modified
    first = created or min(filter(None, (updated, modified)), default=None)
    return first, max(filter(None, (updated, created)), default=None)


def _time(value: Any) -> datetime | None:
    return parse_time(value) or (parse_time(parse_day(value)) if isinstance(value, str) and value else None)


def header_fields(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Fields as metadata: those of `names` as spelled, and the `COMMON_FIELDS`."""
    keys = plain_keys(values)
    fields = {
        name: next((keys[key] for key in spellings if key in keys), None)
        for name, spellings in COMMON_FIELDS.items()
    }
    fields |= {name: values[name] for name in names if name in values}
    metadata = {name: json_able(value) for name, value in fields.items() if value not in (None, "", [])}
    return {**metadata, **({"tags": list(header_tags(values))} if "tags" in metadata else {})}


DESCRIPTIONS = ("description", "summary", "abstract", "excerpt")


def with_description(values: Mapping[str, Any], body: str) -> str:
    """The body below the descriptions of the header that it does not contain itself.

    Without a body: title and descriptions, or the title of a work item; empty if there is neither.
    """
    keys = plain_keys(values)
    texts = dict.fromkeys(header_text(keys.get(key)) for key in DESCRIPTIONS)
    words = " ".join(body.split())
    new = [text for text in texts if text and " ".join(text.split()) not in words]
    if body.strip():
        return "\n\n".join([*new, body])
    title = header_text(keys.get("title"))
    return "\n\n".join([f"# {title}"] * bool(title) + new) if new or (title and "status" in keys) else ""


def header_text(value: Any) -> str:
    """A value of a header as text; empty for none, collections, and placeholders of a template engine."""
    text = scalar_text(value)
    return "" if _PLACEHOLDER.fullmatch(text) else text
