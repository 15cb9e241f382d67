"""Where the PBIs are in a JSON file of the backlog pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from connectors.json_values import scalar_text

LISTS: Mapping[str, int] = {"pbis": 0, "scoredpbis": 1, "enrichedpbis": 2}
"""Keys that hold PBIs, and how late in the pipeline: of one PBI in two lists the later one counts."""
FINAL = "finaloutput"
FINAL_STAGE = 3
MAX_NESTING = 2
"""A step's name, and `final_output` below it."""
RUN_KEYS = ("metadata", "runmetadata", "run")


@dataclass(frozen=True, kw_only=True)
class PbiItem:
    """One entry of a list of PBIs."""

    index: int
    stage: int
    pbi: Any
    """Should be a mapping, but a file may hold anything."""
    scores: Mapping[str, Any]


def plain_key(key: Any) -> str:
    """A key without the difference of snake, kebab and camel case."""
    return str(key).replace("_", "").replace("-", "").replace(" ", "").lower()


def plain_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping by `plain_key`; of two spellings of one key the first that says something counts."""
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = plain_key(key)
        if plain.get(name) in (None, "", []):
            plain[name] = item
    return plain


def text_of(keys: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first of these keys that holds a text or number, as text; empty if none does."""
    return next((text for name in names if (text := scalar_text(keys.get(name)))), "")


def pbi_items(data: Any) -> list[PbiItem] | None:
    """The PBIs of a parsed file; None if it has no list for them, an empty list if the list is empty."""
    if isinstance(data, list):
        return [_item(index, 0, item) for index, item in enumerate(data)] if _any_mapping(data) else None
    lists = list(_lists(data, 0, MAX_NESTING)) if isinstance(data, Mapping) else []
    if not lists:
        return None
    return [_item(index, stage, item) for stage, items in lists for index, item in enumerate(items)]


def clearly_pbis(data: Any) -> bool:
    """True if a file that may hold any JSON holds PBIs; a bare list must show acceptance criteria or scores."""
    if not isinstance(data, list):
        return bool(pbi_items(data))
    marks = {"pbi", "pbiid", "acceptancecriteria", "userstory"}
    return any(isinstance(item, Mapping) and marks & plain_keys(item).keys() for item in data)


def run_facts(data: Any) -> dict[str, Any]:
    """What the file says of its run, by plain key: its own metadata object, else its top level."""
    if not isinstance(data, Mapping):
        return {}
    top = plain_keys(data)
    nested = [plain_keys(top[key]) for key in RUN_KEYS if isinstance(top.get(key), Mapping)]
    return {**top, **(nested[0] if nested else {})}


_WORDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def in_words(value: Any) -> str:
    """What a JSON value is, for a person: "a number"."""
    return _WORDS.get(type(value), type(value).__name__)


def top_level(data: Any) -> str:
    """What a person is told of a file without PBIs: its keys, never its values."""
    if not isinstance(data, Mapping):
        return in_words(data)
    keys = [str(key)[:40] for key in data]
    shown = ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")  # noqa: PLR2004
    return f"the top-level keys {shown}" if keys else "an empty object"


def _lists(value: Mapping[Any, Any], floor: int, depth: int) -> Iterator[tuple[int, list[Any]]]:
    """Every list of PBIs with its stage; `floor` is the least stage of lists in here."""
    for key, item in value.items():
        name = plain_key(key)
        if isinstance(item, list) and name in LISTS:
            yield max(LISTS[name], floor), item
        elif isinstance(item, Mapping) and depth:
            yield from _lists(item, FINAL_STAGE if name == FINAL else floor, depth - 1)


def _item(index: int, stage: int, item: Any) -> PbiItem:
    """Unwraps `{"pbi": ..., "scores": ...}`."""
    if isinstance(item, Mapping):
        keys = plain_keys(item)
        scores = keys.get("scores")
        pbi = keys["pbi"] if isinstance(keys.get("pbi"), Mapping) else item
        return PbiItem(
            index=index, stage=stage, pbi=pbi, scores=scores if isinstance(scores, Mapping) else {}
        )
    return PbiItem(index=index, stage=stage, pbi=item, scores={})


def _any_mapping(items: list[Any]) -> bool:
    return not items or any(isinstance(item, Mapping) for item in items)
