"""What Step 4 asks for: a product backlog item, and how much context it wants."""

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
"""In one section."""
LONGEST_TITLE = 300
LONGEST_DESCRIPTION = 600
"""Characters of a description that are searched for: what comes after its first sentences is detail or a log, and with
all of it nDCG@10 on two sets of work items was .01 lower (docs/search.md)."""
LONGEST_CRITERIA = 600

ID_KEYS = ("id", "pbiid", "key", "userstoryid")
TITLE_KEYS = ("title", "name", "summary")
DESCRIPTION_KEYS = ("description", "userstory", "body")
_MARK = re.compile(r"(?:[-*•](?:\s+|$)|•)+")
"""Of an item of a list; `-i asks first` begins with an option."""
CRITERIA_KEYS = ("acceptancecriteria", "criteria")
PROJECT_KEYS = ("project", "projectid")
_TYPE_KEYS = ("sourcetypes", "sourcetype")
_NUMBER_KEYS = ("topk", "numbers")
_NUMBERED = re.compile(r"(?i)pbi[-_ ]?\d+")
"""Ids that each run of a pipeline gives anew."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_RIGHTS = ("securitylevels", "readers")
"""Set by whoever knows who asks, over what a request says itself; they only narrow what is found."""
_FILTER_KEYS = (*_TYPE_KEYS, "tags", "since", "until", "daterange", "metadata", *_RIGHTS)


@dataclass(frozen=True, kw_only=True)
class EnrichmentRequest:
    """A PBI with its scores, and filters on what may be found for it."""

    pbi: Mapping[str, Any]
    """As the pipeline gave it; unknown keys are kept."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    filter: Filter = field(default_factory=Filter)
    """Source types, tags and days; all when nothing is said. Kinds, project and own document are not for it."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Section -> items at most, where the configured number is not wanted."""
    exclude: tuple[str, ...] = ()
    """Ids of documents that are the PBI itself under other names, and not to be found."""
    project: str = ""
    """Whose documents are searched, beside what the tenant shares: an id or a name. Empty: whoever asks knows."""
    projects: tuple[str, ...] = ()
    """More projects to search; `*` is all of the tenant."""

    @classmethod
    def from_json(cls, data: Any) -> EnrichmentRequest:
        """`{"pbi", "scores", "filters", "topK", "numbers", "project", "projects"}` in any case, or a bare PBI.

        Filters are `sourceType` (one or a list), `tags`, `metadata`, and `dateRange` with `start` and `end` or
        `since` and `until`; `options.topK` is read as `topK`, `projectId` as `project`. Where no project is named
        beside the PBI, a text `project` of the PBI itself is it.

        Raises:
            RequestRejected: a field is missing or of the wrong type; the message names it.
        """
        keys = plain_keys(_mapping(data, "the request"))
        pbi, own = _mapping(keys.get("pbi", data), "pbi"), keys if "pbi" in keys else {}
        of_pbi = plain_keys(pbi).get("project")  # there it may be anything, and only a text is a name
        named = of_pbi.strip() if isinstance(of_pbi, str) else ""
        request = cls(
            pbi=pbi,
            scores=_mapping(own.get("scores") or {}, "scores"),
            filter=_filter(next(filter(None, map(own.get, ("filters", "filter"))), {})),
            numbers=_numbers(plain_keys(_mapping(own.get("options") or {}, "options")) | own),
            exclude=_texts(own.get("exclude"), "exclude"),
            project=_text(own, PROJECT_KEYS, "project") or named,
            projects=tuple(filter(None, map(str.strip, _texts(own.get("projects"), "projects")))),
        )
        _ = request.id  # read here, where it can still be refused
        if not request.question.strip():
            raise RequestRejected(
                "the PBI has neither a title nor a description",
                fix="give pbi.title or pbi.description, as text",
            )
        return request

    def to_json(self) -> Json:
        """What `from_json` reads; JSON only, so that equal requests give equal texts."""
        f = self.filter
        filters = {
            "source_types": [t.value for t in f.source_types],
            "tags": f.tags,
            "since": f.since and f.since.isoformat(),
            "until": f.until and f.until.isoformat(),
            "metadata": f.metadata,
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
        found: Json = json.loads(json.dumps(plain, default=str))
        return found

    @cached_property
    def _keys(self) -> dict[str, Any]:
        return plain_keys(self.pbi)

    @cached_property
    def id(self) -> str:
        """Of the PBI; empty if it has none."""
        return _text(self._keys, ID_KEYS, "pbi.id")

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The ids under which the PBI may be indexed itself: its own, and those that the request says are its own."""
        return tuple(dict.fromkeys(filter(None, (self.id, *self.exclude))))

    def is_itself(self, ref: str, title: str) -> bool:
        """True if a work item of this id and title is the PBI itself.

        A pipeline numbers from PBI-001 in each run: with such an id it is if the title is nearly the same as well.
        """
        if ref not in self.own:
            return False
        told = ref in self.exclude or not _NUMBERED.fullmatch(ref) or not self.title
        return told or is_same_title(self.title, title)

    @cached_property
    def title(self) -> str:
        """On one line; empty if it has none."""
        return single_line(_text(self._keys, TITLE_KEYS, "pbi.title"))

    @cached_property
    def description(self) -> str:
        """Empty if it has none; of a list one item on each line."""
        parts = next((self._keys[key] for key in DESCRIPTION_KEYS if self._keys.get(key)), "")
        if isinstance(parts, list | tuple):
            return "\n".join(text for part in parts if (text := _criterion(part)))
        return _text(self._keys, DESCRIPTION_KEYS, "pbi.description")

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """The acceptance criteria, one each; a text has one on each line, an object is one."""
        value = next((self._keys[key] for key in CRITERIA_KEYS if self._keys.get(key)), ())
        items = (
            value.split("\n") if isinstance(value, str) else [value] if isinstance(value, Mapping) else value
        )
        if not isinstance(items, list | tuple):
            raise wrong_type("pbi.acceptance_criteria", "a text or a list", value)
        return tuple(composed(text) for item in items if (text := _criterion(item)))

    @cached_property
    def text(self) -> str:
        """All that the PBI says: title, description and criteria."""
        return "\n".join(part for part in (self.title, self.description, *self.criteria) if part.strip())

    @cached_property
    def question(self) -> str:
        """What is searched for: the title, the beginning of the description, and the criteria."""
        parts = (
            _beginning(self.title, LONGEST_TITLE),
            _beginning(prose_of(self.description), LONGEST_DESCRIPTION),
            _beginning("\n".join(self.criteria), LONGEST_CRITERIA),
        )
        return "\n".join(part for part in parts if part.strip())


def _beginning(text: str, length: int) -> str:
    """At most so many characters, cut at a blank where there is one: not every language writes blanks."""
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
    """One item of a list: a text, or an object with its text or with given, when and then."""
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
    wanted = next(filter(None, map(keys.get, _TYPE_KEYS)), None)
    try:
        types = tuple(
            dict.fromkeys(SourceType.parse(name) for name in _texts(wanted, "filters.source_types"))
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
        metadata=_mapping(keys.get("metadata") or {}, "filters.metadata"),
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
    """A day alone is one of UTC; with `end` it is the day's end, so that a day given as the last one counts whole."""
    if value in (None, ""):
        return None
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise wrong_type(
            name, "a day such as 2026-01-31 or a time such as 2026-01-31T08:00:00Z", value
        ) from None
    if _DAY.fullmatch(value):
        day = found.replace(tzinfo=UTC)
        return day + timedelta(days=1) if end and day.date() < date.max else day
    if found.tzinfo is None:
        raise RequestRejected(f"{name} has no offset", fix="write it with one, such as 2026-01-31T08:00:00Z")
    return found


def _numbers(keys: Mapping[str, Any]) -> dict[str, int]:
    """`topK` for all sections, `numbers` by section."""
    every, each = (keys.get(name) for name in _NUMBER_KEYS)
    found = {} if every is None else dict.fromkeys(SECTIONS.values(), every)
    found |= _mapping(each or {}, "numbers")
    for name, number in found.items():
        if name not in SECTIONS.values():
            raise RequestRejected(
                f"numbers: there is no such section {name[:40]!r}",
                fix="known are " + ", ".join(SECTIONS.values()),
            )
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_ITEMS:
            raise RequestRejected(
                f"the number of items in {name} is none from 0 to {MOST_ITEMS}", fix="correct topK or numbers"
            )
    return found


def wrong_type(name: str, wanted: str, found: Any) -> RequestRejected:
    """Names field and type, never the value: it may be a document's text."""
    return RequestRejected(
        f"{name} is {json_type_name(found)}, not {wanted}",
        fix=f"send {name} as {wanted}",
    )
