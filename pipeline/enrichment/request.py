"""Requests of Step 4: a backlog item, filters, and numbers of entries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

from pipeline.chunking.prose import prose_of
from pipeline.documents import Json, Kind, SourceType
from pipeline.documents.plain_text import composed, is_same_title, json_type_name, plain_keys
from pipeline.enrichment.text import single_line
from pipeline.errors import RequestRejected
from pipeline.ledger import ALL, All
from pipeline.search.records import Filter

SECTIONS: Mapping[Kind, str] = {
    Kind.WORK: "similar_work",
    Kind.DECISION: "past_decisions",
    Kind.REFERENCE: "technical_docs",
}
"""Kind of document -> the section of the answer that shows it."""

MOST_ITEMS = 20
"""Most entries of one section."""
LONGEST_TITLE = 300
LONGEST_DESCRIPTION = 600
"""Most characters of a description in the query: after the first sentences come details or logs, and with all of them
nDCG@10 on two sets of work items was .01 lower (docs/search.md)."""
LONGEST_CRITERIA = 600

ID_KEYS = ("id", "pbiid", "key", "userstoryid")
TITLE_KEYS = ("title", "name", "summary")
DESCRIPTION_KEYS = ("description", "userstory", "body")
_MARK = re.compile(r"(?:[-*•](?:\s+|$)|•)+")
"""Bullet of a list item; `-i asks first` begins with an option instead."""
CRITERIA_KEYS = ("acceptancecriteria", "criteria")
PROJECT_KEYS = ("project", "projectid")
_TYPE_KEYS = ("sourcetypes", "sourcetype")
_NUMBER_KEYS = ("topk", "numbers")
_NUMBERED = re.compile(r"(?i)pbi[-_ ]?\d+")
"""Ids that each run of a pipeline assigns again."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_RIGHTS = ("securitylevels", "readers")
"""Filters for rights, set by the door that authenticates the caller; they only narrow the request's own filters."""
_FILTER_KEYS = (*_TYPE_KEYS, "tags", "since", "until", "daterange", "metadata", *_RIGHTS)


@dataclass(frozen=True, kw_only=True)
class EnrichmentRequest:
    """A backlog item with its scores, and filters for the search."""

    pbi: Mapping[str, Any]
    """The item as the pipeline sent it; unknown keys are kept."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    filter: Filter = field(default_factory=Filter)
    """Source types, tags, days and metadata; without any all documents. Kinds, projects and `exclude` are separate."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Section -> most entries, instead of the configured number."""
    exclude: tuple[str, ...] = ()
    """Ids of documents that are the item itself under other names, which the search leaves out."""
    project: str = ""
    """Id or name of the project that is searched beside the tenant's shared documents; empty: the caller decides."""
    projects: tuple[str, ...] = ()
    """Further projects to search; `*` means all of the tenant."""

    @classmethod
    def from_json(cls, data: Any) -> EnrichmentRequest:
        """Read `{"pbi", "scores", "filters", "topK", "numbers", "project", "projects"}` in any case, or a bare item.

        Filters are `sourceType` (one or a list), `tags`, `metadata`, and `dateRange` with `start` and `end` or `since`
        and `until`; `options.topK` is read as `topK`, `projectId` as `project`. If the request names no project, a
        text `project` of the item itself is used.

        Raises:
            RequestRejected: a field is missing or of the wrong type; the message names it.
        """
        keys = plain_keys(_mapping(data, "the request"))
        pbi, outer = _mapping(keys.get("pbi", data), "pbi"), keys if "pbi" in keys else {}
        of_pbi = plain_keys(pbi).get("project")  # it may have any type, and only a text is a name
        named = of_pbi.strip() if isinstance(of_pbi, str) else ""
        request = cls(
            pbi=pbi,
            scores=_mapping(outer.get("scores") or {}, "scores"),
            filter=_filter(next(filter(None, map(outer.get, ("filters", "filter"))), {})),
            numbers=_numbers(plain_keys(_mapping(outer.get("options") or {}, "options")) | outer),
            exclude=_texts(outer.get("exclude"), "exclude"),
            project=_text(outer, PROJECT_KEYS, "project") or named,
            projects=tuple(filter(None, map(str.strip, _texts(outer.get("projects"), "projects")))),
        )
        _ = request.id  # checked here, where the request can still be refused
        if not request.question.strip():
            raise RequestRejected(
                "the PBI has neither a title nor a description",
                fix="give pbi.title or pbi.description, as text",
            )
        return request

    def to_json(self) -> Json:
        """The request as `from_json` reads it, with JSON types only, so that equal requests give equal texts."""
        f = self.filter
        filters = {
            "source_types": [t.value for t in f.source_types],
            "tags": f.tags,
            "since": f.since and f.since.isoformat(),
            "until": f.until and f.until.isoformat(),
            "metadata": dict(f.metadata),
        }
        rights = {"security_levels": f.security_levels, "readers": f.readers}
        plain = {
            "pbi": self.pbi,
            "scores": self.scores,
            "filters": {
                **{name: value for name, value in filters.items() if value},
                **{name: value for name, value in rights.items() if value != ALL},
            },
            "numbers": self.numbers,
            **({"exclude": self.exclude} if self.exclude else {}),
            "project": self.project,
            "projects": self.projects,
        }
        normalised: Json = json.loads(json.dumps(plain, default=str))
        return normalised

    @cached_property
    def _keys(self) -> dict[str, Any]:
        return plain_keys(self.pbi)

    @cached_property
    def id(self) -> str:
        """Id of the backlog item; empty if it has none."""
        return _text(self._keys, ID_KEYS, "pbi.id")

    @cached_property
    def own_ids(self) -> tuple[str, ...]:
        """Ids under which the item itself may be indexed: its id, and those of `exclude`."""
        return tuple(dict.fromkeys(filter(None, (self.id, *self.exclude))))

    def is_itself(self, ref: str, title: str) -> bool:
        """Whether a document with this id and title is the backlog item itself.

        Pipelines number items from PBI-001 in each run: with such an id the titles must be nearly equal, too.
        """
        if ref not in self.own_ids:
            return False
        certain = ref in self.exclude or not _NUMBERED.fullmatch(ref) or not self.title
        return certain or is_same_title(self.title, title)

    @cached_property
    def title(self) -> str:
        """Title on one line; empty if the item has none."""
        return single_line(_text(self._keys, TITLE_KEYS, "pbi.title"))

    @cached_property
    def description(self) -> str:
        """Description, a list with one entry on each line; empty if the item has none."""
        value = next((self._keys[key] for key in DESCRIPTION_KEYS if self._keys.get(key)), "")
        if isinstance(value, list | tuple):
            return "\n".join(text for item in value if (text := _criterion(item)))
        return _text(self._keys, DESCRIPTION_KEYS, "pbi.description")

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """The acceptance criteria; a text has one on each line, an object is one."""
        value = next((self._keys[key] for key in CRITERIA_KEYS if self._keys.get(key)), ())
        items = (
            value.split("\n") if isinstance(value, str) else [value] if isinstance(value, Mapping) else value
        )
        if not isinstance(items, list | tuple):
            raise wrong_type("pbi.acceptance_criteria", "a text or a list", value)
        return tuple(composed(text) for item in items if (text := _criterion(item)))

    @cached_property
    def text(self) -> str:
        """Full text of the item: title, description and criteria."""
        return "\n".join(part for part in (self.title, self.description, *self.criteria) if part.strip())

    @cached_property
    def question(self) -> str:
        """The query: the title, the beginning of the description, and the criteria."""
        texts = (
            _beginning(self.title, LONGEST_TITLE),
            _beginning(prose_of(self.description), LONGEST_DESCRIPTION),
            _beginning("\n".join(self.criteria), LONGEST_CRITERIA),
        )
        return "\n".join(part for part in texts if part.strip())


def _beginning(text: str, length: int) -> str:
    """The beginning of a text, at most `length` characters, cut at a blank if there is one."""
    if len(text) <= length:
        return text
    blank = text.rfind(" ", length // 2, length)
    return text[: blank if blank > 0 else length]


def _text(keys: Mapping[str, Any], names: tuple[str, ...], field_name: str) -> str:
    value = next((keys[name] for name in names if keys.get(name) not in (None, "", [], {})), "")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong_type(field_name, "a text", value)
    return composed(str(value)).strip()


def _criterion(item: Any) -> str:
    """Text of one list item, which is a text, or an object with a text or with given, when and then."""
    if not isinstance(item, Mapping):
        return _MARK.sub("", single_line(str(item))) if item is not None else ""
    keys = plain_keys(item)
    steps = [f"{word} {keys[word]}" for word in ("given", "when", "then") if keys.get(word)]
    named = (keys.get(name) for name in ("criterion", "description", "text", "title"))
    return single_line(" ".join(steps) or str(next((text for text in named if text), "")))


def _filter(value: Any) -> Filter:
    keys = plain_keys(_mapping(value, "filters"))
    if unknown := [str(key)[:40] for key in value if not plain_keys({key: 1}).keys() & set(_FILTER_KEYS)]:
        raise RequestRejected(
            f"filters: there is no filter {unknown[0]!r}",
            fix="known are source_types, tags, since, until, date_range, metadata",
        )
    days = plain_keys(_mapping(keys.get("daterange") or {}, "filters.date_range"))
    type_names = next(filter(None, map(keys.get, _TYPE_KEYS)), None)
    try:
        types = tuple(
            dict.fromkeys(SourceType.parse(name) for name in _texts(type_names, "filters.source_types"))
        )
    except ValueError as error:
        raise RequestRejected(
            f"filters.source_types: {error}", fix="use the known ones, or leave it out"
        ) from None
    return Filter(
        source_types=types,
        tags=_texts(keys.get("tags"), "filters.tags"),
        since=_moment(keys.get("since") or days.get("start"), "filters.since"),
        until=_moment(keys.get("until") or days.get("end"), "filters.until", end=True),
        metadata=tuple(_mapping(keys.get("metadata") or {}, "filters.metadata").items()),
        security_levels=_texts_or_all(keys.get("securitylevels"), "filters.security_levels"),
        readers=_texts_or_all(keys.get("readers"), "filters.readers"),
    )


def _texts_or_all(value: Any, name: str) -> tuple[str, ...] | All:
    return ALL if value is None else _texts(value, name)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """A text or a list of texts as a tuple; an empty one without a value."""
    items = (value,) if value and isinstance(value, str) else value or ()
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise wrong_type(name, "a list of texts", value)
    return tuple(items)


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong_type(name, "an object", value)
    return dict(value)


def _moment(value: Any, name: str, *, end: bool = False) -> datetime | None:
    """Read a time, or a day as its beginning in UTC; with `end` as the day's end, so that a last day is included."""
    if value in (None, ""):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise wrong_type(
            name, "a day such as 2026-01-31 or a time such as 2026-01-31T08:00:00Z", value
        ) from None
    if _DAY.fullmatch(value):
        day = moment.replace(tzinfo=UTC)
        return day + timedelta(days=1) if end and day.date() < date.max else day
    if moment.tzinfo is None:
        raise RequestRejected(f"{name} has no offset", fix="write it with one, such as 2026-01-31T08:00:00Z")
    return moment


def _numbers(keys: Mapping[str, Any]) -> dict[str, int]:
    """Most entries by section: `topK` for all sections, `numbers` by section."""
    every, each = (keys.get(name) for name in _NUMBER_KEYS)
    numbers = {} if every is None else dict.fromkeys(SECTIONS.values(), every)
    numbers |= _mapping(each or {}, "numbers")
    for name, number in numbers.items():
        if name not in SECTIONS.values():
            raise RequestRejected(
                f"numbers: there is no such section {name[:40]!r}",
                fix="known are " + ", ".join(SECTIONS.values()),
            )
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_ITEMS:
            raise RequestRejected(
                f"the number of items in {name} is not a number from 0 to {MOST_ITEMS}",
                fix="correct topK or numbers",
            )
    return numbers


def wrong_type(name: str, expected: str, value: Any) -> RequestRejected:
    """Error that names field and type, never the value, which may be a document's text."""
    return RequestRejected(
        f"{name} is {json_type_name(value)}, not {expected}",
        fix=f"send {name} as {expected}",
    )
