"""The contract of Step 4 as JSON Schema and as TypeScript: `make contract` writes both to docs/.

What it writes is read off the records of `pipeline.enrichment.context`, their field docstrings being the
descriptions; what it reads, and the envelope, stand below.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

from pipeline.enrichment import context
from pipeline.enrichment.request import MOST_ITEMS
from tests.typescript import declarations

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
SCHEMA, TYPES = ROOT / "docs/step4.schema.json", ROOT / "docs/step4.d.ts"
PARTS = (
    context.EnrichedContext,
    context.SimilarWork,
    context.PastDecision,
    context.TechnicalDoc,
    context.Suggestion,
    context.RiskHint,
    context.Duplicate,
    context.SimilarEffort,
    context.Citation,
)
DAY: Json = {"format": "date"}
PERCENT: Json = {"minimum": 0, "maximum": 100}
NUMBER: Json = {"minimum": 1}
NUMBERS: Json = {"items": {"type": "integer", "minimum": 1}}
TIGHTER: Mapping[tuple[str, str], Json] = {
    ("AnswerItem", "updated_at"): DAY,
    ("AnswerItem", "age_days"): {"minimum": 0},
    ("AnswerItem", "similarity"): PERCENT,
    ("AnswerItem", "citations"): NUMBERS,
    ("SimilarWork", "similarity_by"): {"enum": ["meaning", "words"]},
    ("PastDecision", "date"): DAY,
    ("PastDecision", "status"): {
        "enum": [
            "proposed",
            "accepted",
            "implementing",
            "implemented",
            "rejected",
            "deprecated",
            "superseded",
            context.UNKNOWN,
        ]
    },
    ("Suggestion", "kind"): {
        "enum": ["acceptance_criterion", "decision", "duplicate", "document", "risk", "notice"]
    },
    ("Suggestion", "citations"): NUMBERS,
    ("RiskHint", "type"): {"enum": ["reopened", "abandoned", "overran", "rejected", "followed"]},
    ("RiskHint", "severity"): {"enum": ["HIGH", "MEDIUM", "LOW"]},
    ("RiskHint", "citation"): NUMBER,
    ("Duplicate", "similarity"): PERCENT,
    ("SimilarEffort", "n"): NUMBER,
    ("Citation", "n"): NUMBER,
    ("Citation", "quoted"): {"maxLength": 200},
    ("EnrichedContext", "degradation_level"): {"minimum": 0, "maximum": 5},
}
"""What the type of a field does not say."""


def main() -> None:
    """Write both files."""
    made = schema()
    SCHEMA.write_text(written(made), encoding="utf-8")
    TYPES.write_text(declarations(made), encoding="utf-8")


def complaints(answer: Json, pbi: Json | None = None) -> list[str]:
    """What the published contract has against an answer; additions, which it allows, are told too."""
    whole = {"enriched_pbis": {"enriched_pbis": [{"pbi": pbi or {}, "scores": {}, "context": answer}]}}
    return [f"{error.json_path}: {error.message[:200]}" for error in _closed().iter_errors(whole)]


@cache
def _closed() -> Draft202012Validator:
    """The published contract, with every object closed that is open for additions only."""
    closed = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for part in objects(closed["$defs"]):
        part["additionalProperties"] = (
            part["additionalProperties"] is not True and part["additionalProperties"]
        )
    return Draft202012Validator(closed, format_checker=Draft202012Validator.FORMAT_CHECKER)


def objects(part: Any) -> Iterator[Json]:
    """Every description of an object, however deep."""
    if isinstance(part, dict):
        if "properties" in part:
            yield part
        for inner in part.values():
            yield from objects(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from objects(inner)


def written(made: Json) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def schema() -> Json:
    """The whole contract; the root is what Step 4 writes."""
    parts = {part.__name__: _record(part) for part in PARTS}
    _as_json(parts)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:larder:step4",
        "$comment": "Made by tests/step4_contract.py.",
        "title": "Step 4",
        "description": "What Step 4 of the backlog pipeline writes; what it reads is Step4Input, and EnrichmentRequest for one item.",
        "$ref": "#/$defs/Step4Output",
        "$defs": {**_envelope(), **parts, **_asked()},
    }


def _record(part: type) -> Json:
    told, hints = _docstrings(part), get_type_hints(part)
    assert is_dataclass(part)
    own = {
        f.name: {
            "description": told[f.name][1],
            **_type(hints[f.name]),
            **TIGHTER.get((told[f.name][0], f.name), {}),
        }
        for f in fields(part)
    }
    return _object(inspect.getdoc(part) or "", own)


def _as_json(parts: Json) -> None:
    """What `EnrichedContext.to_json` makes of the records beyond their fields."""
    whole, decision = parts["EnrichedContext"], parts["PastDecision"]
    decision["properties"]["decided_at"] = {
        "description": "The same as `date`.",
        "type": ["string", "null"],
        **DAY,
    }
    decision["required"].append("decided_at")
    texts = {"description": "What a product owner may do.", "type": "array", "items": {"type": "string"}}
    more: Json = {
        "suggestions": texts,
        "suggestion_details": {
            **whole["properties"]["suggestions"],
            "description": "Kind and sources of each of `suggestions`, in the same order.",
        },
        "risk_flags": {"description": "Empty: Step 5 fills it.", "type": "array"},
    }
    whole["properties"] |= more
    whole["required"] = list(whole["properties"])
    whole["properties"]["error"] = {
        "description": "Why the item was refused; only there if it was.",
        "type": "string",
    }


def _envelope() -> Json:
    listed = {
        "description": "One for each scored PBI, in their order.",
        "type": "array",
        **_items("EnrichedPbi"),
    }
    return {
        "Step4Output": _object(
            "The context of a pipeline run after Step 4.",
            {"enriched_pbis": _object("The step's own output.", {"enriched_pbis": listed})},
        ),
        "EnrichedPbi": _object(
            "A PBI with what is known of it.",
            {
                "pbi": {"$ref": "#/$defs/Pbi"},
                "scores": {"$ref": "#/$defs/Scores"},
                "context": {"$ref": "#/$defs/EnrichedContext"},
            },
        ),
    }


def _asked() -> Json:
    texts: Json = {"type": ["string", "array"], "items": {"type": "string"}}
    scored = {"description": "As Step 3 wrote them.", "type": "array", **_items("ScoredPbi")}
    number: Json = {"type": "integer", "minimum": 0, "maximum": MOST_ITEMS}
    sections = ("similar_work", "past_decisions", "technical_docs")
    criteria = {
        "type": ["array", "string", "object", "null"],
        "items": {"type": ["string", "number", "object"]},
    }
    return {
        "Step4Input": _object(
            "The context of a pipeline run before Step 4.",
            {"scored_pbis": _object("The output of Step 3.", {"scored_pbis": scored})},
        ),
        "ScoredPbi": _object(
            "A PBI with its scores.",
            {"pbi": {"$ref": "#/$defs/Pbi"}, "scores": {"$ref": "#/$defs/Scores"}},
            required=["pbi"],
        ),
        "Pbi": _object(
            "A product backlog item; it needs a title or a description.",
            {
                "id": {
                    "description": "Its id; a number is read as text.",
                    "type": ["string", "number", "null"],
                },
                "title": {"description": "Its title.", "type": ["string", "number", "null"]},
                "description": {
                    "description": "Text, or a list of texts.",
                    "type": ["string", "array", "null"],
                },
                "acceptance_criteria": {
                    "description": "A list of texts or objects, one object, or a text with one on each line.",
                    **criteria,
                },
            },
            required=[],
            more="Whatever else the pipeline knows of it; it comes back as it was.",
        ),
        "Scores": _object("What Step 3 found.", {}, more="Any; they come back as they were."),
        "EnrichmentRequest": _object(
            "What is asked for one PBI; keys in snake or camel case.",
            {
                "pbi": {"$ref": "#/$defs/Pbi"},
                "scores": {"$ref": "#/$defs/Scores"},
                "filters": {"$ref": "#/$defs/Filters"},
                "top_k": {"description": "Entries of each section, at most.", **number},
                "numbers": _object(
                    "Entries by section, at most.",
                    {name: {"description": f"Of `{name}`.", **number} for name in sections},
                    required=[],
                    more=False,
                ),
                "project": {"description": "The project that is searched.", "type": "string"},
                "projects": {
                    "description": "More projects to search; `*` is every one of the tenant.",
                    **texts,
                },
                "exclude": {
                    "description": "Ids under which the PBI itself is known; its own need not be among them.",
                    **texts,
                },
            },
            required=["pbi"],
        ),
        "Filters": _object(
            "What may be found; all if nothing is said.",
            {
                "source_types": {"description": "One, or a list.", **texts},
                "tags": {"description": "One, or a list.", **texts},
                "since": {"description": "A day, or a time with its offset.", "type": ["string", "null"]},
                "until": {"description": "A day, which counts whole, or a time.", "type": ["string", "null"]},
                "date_range": _object(
                    "The same two as one object.",
                    {
                        "start": {"description": "As `since`.", "type": ["string", "null"]},
                        "end": {"description": "As `until`.", "type": ["string", "null"]},
                    },
                    required=[],
                ),
                "metadata": _object("Keys and values.", {}, more="A value that a document has to have."),
            },
            required=[],
            more=False,
        ),
    }


def _object(
    description: str, properties: Json, *, required: Sequence[str] | None = None, more: str | bool = True
) -> Json:
    """Additions may come to every object (`True`); a text says what the open part of one is for."""
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": {"description": more} if isinstance(more, str) else more,
    }


def _items(name: str) -> Json:
    return {"items": {"$ref": f"#/$defs/{name}"}}


def _type(hint: Any) -> Json:
    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint in plain:
        return {"type": plain[hint]}
    if isinstance(hint, type) and is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is UnionType:
        (other,) = (arg for arg in get_args(hint) if arg is not NoneType)
        found = _type(other)
        return {"type": [found["type"], "null"]} if "type" in found else {"anyOf": [found, {"type": "null"}]}
    assert get_origin(hint) in (tuple, Sequence), hint
    return {"type": "array", "items": _type(get_args(hint)[0])}


def _docstrings(part: type) -> dict[str, tuple[str, str]]:
    """Field -> the class that declares it, and the text below it."""
    found: dict[str, tuple[str, str]] = {}
    for owner in (cls for cls in part.__mro__ if cls is not object):
        (tree,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(tree, ast.ClassDef)
        for line, below in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(line.target, ast.Name)
            ):
                text = ast.literal_eval(below.value)
                found.setdefault(line.target.id, (owner.__name__, inspect.cleandoc(text)))
    return found


if __name__ == "__main__":
    main()
