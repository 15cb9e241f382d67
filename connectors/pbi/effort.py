"""Estimated and actual effort of a PBI, and when work on it began and ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from connectors.documents.values import clean_text, number_of, number_within, parse_time, scalar_text
from pipeline.documents.plain_text import plain_key, plain_keys

Unit = tuple[str, float]
"""`points` or `hours`, and how many of them a unit is. A day has 8 hours and a week 5 days, as in Jira."""

POINTS: Unit = ("points", 1.0)
_UNITS: Mapping[Unit, str] = {
    POINTS: "point points pts sp storypoint storypoints punkt punkte",
    ("hours", 1.0): "h hr hrs hour hours stunde stunden std heure heures",
    ("hours", 8.0): "d day days tag tage tagen jour jours manday mandays personday persondays",
    ("hours", 40.0): "w wk wks week weeks woche wochen semaine semaines",
    ("hours", 1 / 60): "m min mins minute minutes minuten",
    ("hours", 1 / 3600): "s sec secs second seconds sekunden",
}
UNITS = {name: unit for unit, names in _UNITS.items() for name in names.split()}
CLOCK: Unit = ("hours", 0.0)
"""Hours, or seconds as in Jira: decided by the size of the number."""

MOST = {"points": 1000.0, "hours": 20_000.0}
"""Largest plausible effort of one PBI."""
MOST_HOURS, LEAST_SECONDS = 100, 3600
"""A time without a unit is hours up to the first, seconds from the second on, and ambiguous between them."""
MOST_REOPENED = 1000
LONGEST_KEPT = 100

_STEMS: Mapping[str, str] = {
    "estimated": "estimate estimated estimation estimatedeffort effortestimate effortestimated estimatedwork"
    " plannedeffort effortplanned",
    "actual": "actualeffort effortactual actualwork effortspent spenteffort",
}
_CLOCKS: Mapping[str, str] = {
    "estimated": "originalestimate initialestimate timeoriginalestimate estimatedtime timeestimate",
    "actual": "timespent totaltimespent aggregatetimespent timelogged loggedtime timetaken actualtime completedwork",
}
_WITH_UNIT: Mapping[str, str] = {"estimated": "planned", "actual": "actual spent logged worked completed"}
_SUFFIXES = ("points", "storypoints", "hours", "hrs", "days", "weeks", "minutes", "seconds")


def _keys() -> Iterator[tuple[str, tuple[str, Unit]]]:
    for key in ("storypoints", "storypoint", "storypointestimate", "points", "sp", "size"):
        yield key, ("size", POINTS)
    for table, unit in ((_STEMS, POINTS), (_CLOCKS, CLOCK), (_WITH_UNIT, None)):
        for role, stems in table.items():
            for stem in stems.split():
                if unit:
                    yield stem, (role, unit)
                for suffix in _SUFFIXES:
                    yield stem + suffix, (role, UNITS[suffix])
                    yield suffix + stem, (role, UNITS[suffix])
    yield "effort", ("size", POINTS)


KEYS = dict(_keys())
"""Plain key -> role (size, estimated or actual) and unit of a number without one; the most reliable first."""
_ORDER = {key: place for place, key in enumerate(KEYS)}
_SIZES = {"points": "story_points", "hours": "estimated_hours"}
_EXPECTED = ("story_points", "estimated_points", "estimated_hours")
_NESTED = ("effort", "timetracking", "estimates")
DATES: Mapping[str, tuple[str, ...]] = {
    "started_at": (
        "startedat", "started", "starteddate", "startedon", "actualstart", "actualstartdate", "activatedat",
        "activateddate", "inprogressat", "inprogressdate", "workstartedat", "startdate",
    ),
    "resolved_at": ("resolvedat", "resolved", "resolveddate", "resolvedon", "resolutiondate", "dateresolved"),
    "closed_at": (
        "closedat", "closed", "closeddate", "closedon", "dateclosed", "completedat", "completed", "completeddate",
        "completedon", "completiondate", "finishedat", "finished", "doneat", "donedate", "deliveredat",
    ),
}  # fmt: skip
REOPENED_KEYS = ("reopened", "reopencount", "reopenedcount", "timesreopened", "reopens", "reopenings")
FIRST_YEAR, LAST_YEAR = 1990, 2100

_ABOUT = re.compile(r"(?:~|\u2248|about|approx\.?|circa|ca\.?)\s*")
_PIECE = re.compile(
    r"(-?\d+(?:\.\d+|,\d{1,2})?)\s*((?:story|man|person)?[ -]?[^\W\d_]+)\s*(?:(?:,|\+|and\b|und\b|et\b)\s*)?"
)


def effort_facts(pbi: Mapping[Any, Any]) -> dict[str, Any]:
    """Points and hours, estimated and actual; a text that is no amount stays unchanged under its own key.

    `effort` is actual beside an estimate, and the size if alone, as on boards.
    """
    fields = _fields(pbi)
    facts: dict[str, Any] = {}
    unparsed: dict[str, str] = {}
    for key in sorted(KEYS.keys() & fields.keys(), key=_ORDER.__getitem__):
        role, unit = KEYS[key]
        if key == "effort" and not facts.keys().isdisjoint(_EXPECTED):
            role = "actual"
        value, stated_unit = _value_and_unit(fields[key][1])
        amount = _amount(value, stated_unit or fields.get(key + "unit", ("", None))[1], unit)
        if amount is None:
            text = f"{scalar_text(value)} {scalar_text(stated_unit)}".strip() if scalar_text(value) else ""
            unparsed |= {clean_text(fields[key][0]): text} if 0 < len(text) <= LONGEST_KEPT else {}
        elif (number := number_within(round(amount[1], 2), MOST[amount[0]])) is not None:
            facts.setdefault(_SIZES[amount[0]] if role == "size" else f"{role}_{amount[0]}", number)
    return {**unparsed, **facts}


def _fields(pbi: Mapping[Any, Any]) -> dict[str, tuple[str, Any]]:
    """Name as written and value by plain key; of several the first that is not empty counts."""
    fields: dict[str, tuple[str, Any]] = {}
    for name, value in [*pbi.items(), *_nested(pbi)]:
        if value not in (None, "") and not isinstance(value, bool):
            fields.setdefault(plain_key(name), (str(name), value))
    return fields


def course_facts(pbi: Mapping[str, Any]) -> dict[str, Any]:
    """Times when work began and ended, and the number of reopenings; `pbi` is by plain key."""
    facts: dict[str, Any] = {}
    for name, keys in DATES.items():
        moments = filter(None, (parse_time(pbi.get(key)) for key in keys))
        moment = next((moment for moment in moments if FIRST_YEAR <= moment.year < LAST_YEAR), None)
        if moment:
            facts[name] = moment.isoformat()
    times = next((pbi[key] for key in REOPENED_KEYS if key in pbi), None)
    if isinstance(times, list | bool):
        times = len(times) if isinstance(times, list) else int(times)
    count = number_within(number_of(times), MOST_REOPENED)
    return facts if count is None else {**facts, "reopened": int(count)}


def _nested(pbi: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Flat keys and values of objects such as `effort: {"estimated": 13, "actual": 21, "unit": "points"}`."""
    for name, value in pbi.items():
        if plain_key(name) in _NESTED and isinstance(value, Mapping):
            unit = plain_keys(value).get("unit")
            for inner, item in value.items():
                key = str(inner) if plain_key(inner) in KEYS else f"{inner}_effort"
                yield key, {"value": item, "unit": unit} if unit else item


def _value_and_unit(value: Any) -> tuple[Any, Any]:
    """A value and its unit, of `{"value": 5, "unit": "days"}` or `{"days": 5}`; other values have no unit."""
    if not isinstance(value, Mapping):
        return value, None
    keys = plain_keys(value)
    amount = next(
        (keys[key] for key in ("value", "amount", "number", "count") if keys.get(key) is not None), None
    )
    if amount is not None and not isinstance(amount, bool):
        return amount, keys.get("unit") or keys.get("units")
    return next(((item, name) for name, item in keys.items() if name in UNITS), (None, None))


def _amount(value: Any, stated_unit: Any, unit: Unit) -> Unit | None:
    """A number or text as points or hours; None if it is neither. `unit` counts if there is no `stated_unit`."""
    number = number_of(value)
    if number is None:
        return _parsed_amount(value) if isinstance(value, str) else None
    if not math.isfinite(number):
        return unit[0], number
    if stated_unit:
        return _parsed_amount(f"{number:f} {scalar_text(stated_unit)}")
    if unit is not CLOCK:
        return unit[0], number * unit[1]
    if number >= LEAST_SECONDS and number % 60 == 0:
        return "hours", number / 3600
    return ("hours", number) if not MOST_HOURS < number <= MOST["hours"] else None


def _parsed_amount(text: str) -> Unit | None:
    """Amount of a text such as `13 points`, `5 SP`, `2 days`, `3d 4h`; None for others, such as `3-5 days` or `L`."""
    text = text[: LONGEST_KEPT + 1].casefold().strip()
    about = _ABOUT.match(text)
    at, total, measures = about.end() if about else 0, 0.0, set()
    while at < len(text):
        piece = _PIECE.match(text, at)
        unit = UNITS.get(re.sub(r"[ -]", "", piece[2])) if piece else None
        if piece is None or unit is None:
            return None
        total += float(piece[1].replace(",", ".")) * unit[1]
        measures.add(unit[0])
        at = piece.end()
    return (measures.pop(), total) if len(measures) == 1 else None
