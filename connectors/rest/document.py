"""Records of a service as documents, by the expressions of the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.headings import headings_of, nested
from connectors.documents.values import clean_text, is_blank, json_able, parse_time, scalar_text, tags_of
from connectors.markup.elements import to_markdown
from connectors.markup.inline import Links
from connectors.pbi.effort import KEYS, course_facts, effort_facts
from connectors.rest.adf import html_of
from connectors.rest.expressions import filled, value_at
from connectors.rest.options import Child, Condition, Format, RestOptions
from pipeline.documents import ACL, ADMINS_ALONE, Document, Json, Kind, SourceType
from pipeline.documents.plain_text import plain_key, plain_keys

IDENTITIES = ("parent_id", "duplicate_of")
"""Metadata that are ids of other items, and so text."""
_JAVA_OBJECT = re.compile(r"[\w.]{1,200}@[0-9a-f]{1,16}\[")
"""Beginning of an object as Jira Data Center prints it, such as a sprint."""
_JAVA_NAME, _JAVA_MEMBER = re.compile(r"[\[,]name="), re.compile(r",\w{1,40}=|\]$")
_FALSE = ("", "false", "0")


class RestLinks(Links):
    """Makes addresses in HTML absolute; only `href` is needed."""

    def __init__(self, base_url: str) -> None:
        self._base = base_url

    def href(self, href: str) -> str | None:
        """The absolute address; None for an invalid one and for one within the page."""
        if not href.strip() or href.startswith("#"):
            return None
        try:
            return urljoin(self._base, href.strip())
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Item:
    """A record of the list, with what belongs to it."""

    id: str
    mark: str
    """Fingerprint, as the list shows it."""
    record: Json
    """The record of the item's request, else of the list."""
    children: Sequence[tuple[Child, Sequence[Json]]] = field(default=())


def identity_of(value: Any) -> str:
    """Id of another item as text; of its address in the service the last part."""
    text = scalar_text(value)
    return urlsplit(text).path.rstrip("/").rpartition("/")[2] if text.startswith("http") else text


def fact_of(value: Any) -> Any:
    """A value as metadata; of an object that was printed as text its name."""
    if isinstance(value, str) and _JAVA_OBJECT.match(value) and (name := _JAVA_NAME.search(value)):
        return _JAVA_MEMBER.split(value[name.end() :], maxsplit=1)[0]
    return json_able(value)


def holds(condition: Condition, record: Json) -> bool:
    """Whether a condition holds for a record."""
    value = value_at(condition.field, record)
    if condition.is_:
        return scalar_text(value).casefold() in {one.casefold() for one in condition.is_}
    return bool(value) if isinstance(value, list | dict) else scalar_text(value).casefold() not in _FALSE


class RecordReader:
    """Reads the facts of a record that the walk needs, and whole documents."""

    def __init__(self, options: RestOptions) -> None:
        self._options = options
        self._fields = options.document
        self._links = RestLinks(options.base_url + "/")

    # -- the walk --------------------------------------------------------------------------------------

    def id_of(self, record: Json) -> str:
        """Id of a record; empty if it has none."""
        return scalar_text(value_at(self._fields.id, record))

    def changed(self, record: Json) -> datetime | None:
        """Time of change; None if it has none."""
        changed = self._options.changed
        return parse_time(value_at(changed.field, record)) if changed else None

    def mark(self, record: Json) -> str:
        """Fingerprint: the time of change, the same in the list and in the item's request; empty without one."""
        moment = self.changed(record)
        return moment.isoformat() if moment else ""

    def is_deleted(self, record: Json) -> bool:
        """Whether the service marks the record as deleted."""
        deleted = self._options.deleted
        return deleted is not None and holds(deleted, record)

    def exclusion(self, record: Json) -> str:
        """Reason why the record is not read; empty if it is."""
        return next((one.because for one in self._options.exclude if holds(one, record)), "")

    # -- documents -------------------------------------------------------------------------------------

    def document(self, item: Item) -> Document:
        """The document of one item."""
        options, fields, record = self._options, self._fields, item.record
        title = " ".join(scalar_text(self._value("title", fields.title, record)).split()) or item.id
        tags = tags_of(self._value("tags", fields.tags, record) or ())
        text = clean_text("\n\n".join(self._sections(item)))
        url = self._url(item)
        created = parse_time(self._value("created", fields.created, record))
        updated = parse_time(self._value("updated", fields.updated, record))
        status = scalar_text(self._value("status", fields.status, record))
        facts = self._facts(record)
        kind, decision_facts = self._kind(text, tags, status, facts)
        state = {"status": status} if status else {}
        if options.changed and self.changed(record) is None:
            options.observe("empty", "changed.field")
        source_path = url or f"{options.base_url}/{item.id}"
        return Document(
            external_id=item.id,
            title=clean_text(title),
            text=text if not is_blank(text) else clean_text(title),
            source_type=options.source_type or SourceType.REST,
            kind=kind,
            url=url,
            tags=tags,
            metadata={
                **options.metadata_of({**facts, **state, **decision_facts, **self._acl(record)}),
                "source_path": source_path,
            },
            created_at=created,
            updated_at=updated or self.changed(record),
            fingerprint=item.mark,
        )

    def _value(self, name: str, expression: str | None, record: Json) -> Any:
        """Value of a field; one that is configured and has none is reported."""
        value = value_at(expression, record)
        if expression and value in (None, "", [], {}):
            self._options.observe("empty", f"document.{name}")
        return value

    def _url(self, item: Item) -> str:
        options, template = self._options, self._fields.url
        if options.url_is_template and template:
            path = filled(template, {**options.values, "id": item.id}, in_path=True)
            return options.base_url + path if path.startswith("/") else path
        url = scalar_text(self._value("url", template, item.record))
        return urljoin(f"{options.base_url}/", url) if url else ""

    def _acl(self, record: Json) -> Json:
        """Readers, if the configuration names their field; a record without any is for admins alone."""
        acl = self._fields.acl
        if acl is None:
            return {}
        names = self._value("acl.field", acl.field, record)
        names = [names] if isinstance(names, str) else names
        readers = [scalar_text(name) for name in names] if isinstance(names, list) else []
        all_named = readers and all(readers)  # a reader without a name may be anybody
        return {ACL: [[f"{acl.prefix}:{name}" for name in readers]] if all_named else [[ADMINS_ALONE]]}

    def _facts(self, record: Json) -> Json:
        """Metadata: effort and times in the units that Step 4 reads, ids as text."""
        values = {
            key: fact_of(self._value(f"metadata.{key}", expression, record))
            for key, expression in self._fields.metadata.items()
        }
        values = {key: value for key, value in values.items() if value not in (None, "", [], {})}
        values |= {key: identity_of(values[key]) for key in IDENTITIES if key in values}
        facts = {key: value for key, value in values.items() if plain_key(key) not in KEYS}
        return {**facts, **effort_facts(values), **course_facts(plain_keys(values))}

    def _kind(self, text: str, tags: Sequence[str], status: str, facts: Json) -> tuple[Kind, dict[str, str]]:
        """The configured kind, or a decision by the rules for tags, types and (of references) headings."""
        options, kind = self._options, self._fields.kind
        front = {"type": facts.get("type", ""), "status": status}
        evidence = Evidence(
            path="", text=text, front_matter=front, tags=tags, headings=list(headings_of(text))
        )
        update = {"paths": ()} if kind is Kind.REFERENCE else {"paths": (), "headings": ()}
        by_rules, decision = kind_and_facts(
            options.decisions.model_copy(update=update), evidence, SourceType.REST
        )
        return (by_rules, decision) if by_rules is Kind.DECISION else (kind, {})

    # -- text ------------------------------------------------------------------------------------------

    def _sections(self, item: Item) -> Iterator[str]:
        for number, part in enumerate(self._fields.text):
            value = self._value(f"text[{number}]", part.field, item.record)
            text = self._text(value, part.format or self._fields.format, 2 if part.heading else 0)
            if not is_blank(text):
                yield f"## {part.heading}\n\n{text}" if part.heading else text
        for child, records in item.children:
            texts = [text for record in records if (text := self._child(child, record))]
            if texts:
                gap = "\n" if all(text.startswith("- ") for text in texts) else "\n\n"
                yield (f"## {child.name}\n\n" if child.heading else "") + gap.join(texts)

    def _child(self, child: Child, record: Json) -> str:
        """A comment below its author and day; a record without both is a line of a list, or a paragraph."""
        is_comment = bool(child.author or child.created)
        depth = 3 if is_comment else 0
        text = self._text(value_at(child.text, record), child.format or self._fields.format, depth)
        if is_blank(text):
            return ""
        if is_comment:
            moment = parse_time(value_at(child.created, record))
            author = " ".join(scalar_text(value_at(child.author, record)).split()) or "Somebody"
            day = moment.date().isoformat() if moment else ""
            return f"### {', '.join(filter(None, (author, day)))}\n\n{text}"
        return f"- {text}" if child.heading and "\n" not in text else text

    def _text(self, value: Any, form: Format, depth: int) -> str:
        """A text as Markdown, with its headings below one of this level."""
        return nested(_FORMATS[form](value, self._links), depth).strip()


def _plain(value: Any, _links: Links) -> str:
    text = "\n".join(map(scalar_text, value)) if isinstance(value, list) else scalar_text(value)
    return text.replace("\r\n", "\n")


def _html(value: Any, links: Links) -> str:
    return to_markdown(scalar_text(value), links).text


def _adf(value: Any, links: Links) -> str:
    return to_markdown(html_of(value), links).text


_FORMATS: Mapping[str, Callable[[Any, Links], str]] = {
    "plain": _plain,
    "markdown": _plain,
    "html": _html,
    "adf": _adf,
}
