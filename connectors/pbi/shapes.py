"""Extraction of the PBIs from a JSON file of the backlog pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from connectors.documents.values import scalar_text
from pipeline.documents.plain_text import json_type_name, plain_key, plain_keys

_BY_STAGE: tuple[tuple[str, ...], ...] = (
    ("pbis", "candidates", "extractedpbis", "candidatepbis", "backlogitems", "productbacklogitems", "userstories"),
    ("scoredpbis", "scoredcandidates"),
    ("enrichedpbis", "enrichedcandidates"),
    ("pbiswithrisks", "riskassessedpbis", "checkedpbis", "riskanalysis"),
    ("pbiswithquestions", "pbiswithproposals", "questionedpbis", "questionsandproposals"),
    ("assessedpbis", "readinessassessedpbis", "readypbis", "needsrefinementpbis", "notreadypbis"),
    ("finalpbis", "formattedpbis", "processedpbis"),
)  # fmt: skip
LISTS: Mapping[str, int] = {key: stage for stage, keys in enumerate(_BY_STAGE) for key in keys}
"""Key of a list of PBIs -> stage of the pipeline; of one PBI in two lists the later stage counts."""
SINGLES: Mapping[str, int] = {
    "pbi": 0, "candidate": 0, "userstory": 0, "scoredpbi": 1, "enrichedpbi": 2, "assessedpbi": 5,
    "result": 6, "output": 6,
}  # fmt: skip
"""Key of a single PBI in a separate file -> stage of the pipeline."""
FINAL = "finaloutput"
FINAL_STAGE = len(_BY_STAGE)
MAX_NESTING = 2
"""Levels above a list: the name of a step, and `final_output` below it."""
RUN_KEYS = ("metadata", "runmetadata", "run")
ID_KEYS = ("id", "pbiid", "userstoryid", "key")
TITLE_KEYS = ("title", "name", "summary")
_COMMON = frozenset(("candidates",))
"""Keys of lists that may hold other things than PBIs."""
_MARKS = frozenset(("pbi", "pbiid", "acceptancecriteria", "userstory"))


@dataclass(frozen=True, kw_only=True)
class PbiItem:
    """An entry of a list of PBIs."""

    index: int
    stage: int
    pbi: Any
    """The entry, usually a mapping; a file may hold any JSON."""
    scores: Mapping[str, Any]
    place: int = 0
    """Index of its list in the file."""


def text_of(keys: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first scalar value of these keys as text; empty if there is none."""
    return next((text for name in names if (text := scalar_text(keys.get(name)))), "")


def id_of(keys: Mapping[str, Any]) -> str:
    """Id of an item as text; a whole number without the `.0` that tables add."""
    values = {name: keys.get(name) for name in ID_KEYS}
    ids = {n: int(v) if isinstance(v, float) and v.is_integer() else v for n, v in values.items()}
    return text_of(ids, ID_KEYS)


def pbi_items(data: Any) -> list[PbiItem] | None:
    """The PBIs of a parsed file; an empty list if its list of PBIs is empty, None if it has no such list."""
    if isinstance(data, list):
        items = [_item(index, 0, item) for index, item in enumerate(data)]
        return items if not items or any(map(_is_named, map(attrgetter("pbi"), items))) else None
    if not isinstance(data, Mapping):
        return None
    lists = list(_lists(data, 0, MAX_NESTING))
    if lists:
        return [
            replace(_item(index, stage, item), place=place)
            for place, (_, stage, items) in enumerate(lists)
            for index, item in enumerate(items)
        ]
    single = _single(data, 0, MAX_NESTING)
    return [single] if single else None


def holds_pbis(data: Any) -> bool:
    """True if any JSON holds PBIs: by the key of a list, or by fields such as acceptance criteria."""
    if not isinstance(data, Mapping):
        return isinstance(data, list) and _marked(data)
    if _is_named(plain_keys(data).get("pbi")) or (_single(data, 0, 0) and _marked([data])):
        return True
    lists = _lists(data, 0, MAX_NESTING)
    return any(items and (name not in _COMMON or _marked(items)) for name, _, items in lists)


def is_step(data: Any) -> bool:
    """True for output of a pipeline step, also without PBIs, such as its costs."""
    return isinstance(data, Mapping) and {"step", "runid"} <= plain_keys(data).keys()


def run_facts(data: Any) -> dict[str, Any]:
    """Facts about a file's run by plain key: its top level, overridden by its metadata object."""
    if not isinstance(data, Mapping):
        return {}
    top = plain_keys(data)
    nested = [plain_keys(top[key]) for key in RUN_KEYS if isinstance(top.get(key), Mapping)]
    return {**top, **(nested[0] if nested else {})}


def top_level(data: Any) -> str:
    """Description of a file without PBIs for messages: its keys, never its values."""
    if not isinstance(data, Mapping):
        return json_type_name(data)
    keys = [str(key)[:40] for key in data]
    listed = ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")  # noqa: PLR2004
    return f"the top-level keys {listed}" if keys else "an empty object"


def _lists(value: Mapping[Any, Any], floor: int, depth: int) -> Iterator[tuple[str, int, list[Any]]]:
    """Lists of PBIs, each with key and stage; `floor` is the least stage.

    A list of ids or counts is not returned.
    """
    for key, item in value.items():
        name = plain_key(key)
        if isinstance(item, list) and name in LISTS:
            if not item or any(isinstance(entry, Mapping) for entry in item):
                yield name, max(LISTS[name], floor), item
        elif isinstance(item, Mapping) and depth:
            yield from _lists(item, FINAL_STAGE if name == FINAL else floor, depth - 1)


def _single(value: Mapping[Any, Any], stage: int, depth: int) -> PbiItem | None:
    """The single PBI of a file, wrapped or not: an object with an id and a title; None if there is none."""
    keys = plain_keys(value)
    # A single object must have both, unlike an entry of a list of PBIs.
    if text_of(keys, ID_KEYS) and text_of(keys, TITLE_KEYS) and not isinstance(keys.get("pbi"), Mapping):
        return _item(0, stage, value)
    for name, least in SINGLES.items():
        inner = keys.get(name)
        if isinstance(inner, Mapping) and depth and (single := _single(inner, max(stage, least), depth - 1)):
            return replace(single, scores=single.scores or _scores(keys))
    return None


def _is_named(pbi: Any) -> bool:
    return isinstance(pbi, Mapping) and text_of(plain_keys(pbi), (*ID_KEYS, *TITLE_KEYS)) != ""


def _item(index: int, stage: int, item: Any) -> PbiItem:
    """An entry, unwrapped from `{"pbi": ..., "scores": ...}`."""
    keys = plain_keys(item) if isinstance(item, Mapping) else {}
    pbi = keys["pbi"] if isinstance(keys.get("pbi"), Mapping) else item
    return PbiItem(index=index, stage=stage, pbi=pbi, scores=_scores(keys))


def _scores(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Scores beside a PBI, or in its `quality`; empty if there are none."""
    quality = keys.get("quality")
    inner = plain_keys(quality).get("scores") if isinstance(quality, Mapping) else None
    return next((scores for scores in (keys.get("scores"), inner) if isinstance(scores, Mapping)), {})


def _marked(items: list[Any]) -> bool:
    return any(isinstance(item, Mapping) and not _MARKS.isdisjoint(plain_keys(item)) for item in items)
