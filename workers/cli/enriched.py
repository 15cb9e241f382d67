"""How the answers of Step 4 look on a screen: a block per item, with the best of each section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.documents import Json
from pipeline.enrichment.context import STATIC, UNKNOWN
from pipeline.enrichment.report import LEVELS, named
from pipeline.enrichment.words import printable

MOST = 2
"""Suggestions and risk hints."""
LONGEST = 160
"""Characters of one line's text before it is cut; it may wrap."""


def show(console: Console, items: Sequence[Json]) -> None:
    """Print one block per enriched PBI."""
    for item in items:
        pbi, found = item["pbi"], item["context"]
        title = Text(
            f"{_cut(str(pbi.get('id') or ''))}  {_cut(str(pbi.get('title') or ''))}".strip(), style="bold"
        )
        if found.get("error"):
            console.print(title.append("  (refused)", style="red"))
            continue
        level = found.get("degradation_level", 0)
        if level:
            title.append(f"  (level {level}: {LEVELS.get(level, '')})", style="yellow")
        console.print(title)
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2), pad_edge=True)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, line in _lines(found):
            table.add_row(name, Text(_cut(line)))
        console.print(table)


def _lines(found: Json) -> Iterator[tuple[str, str]]:
    likely = {one.get("ref") for one in found.get("likely_duplicates") or ()}
    for work in (found.get("similar_work") or ())[:1]:
        note = "possibly the same: " if work.get("ref") in likely else ""
        yield (
            f"similar {work.get('similarity', 0):>3.0f} %",
            f"{note}{_name(work)}{_bracketed(*_ended(work))}",
        )
    if effort := found.get("effort_of_similar"):
        yield "effort", str(effort.get("text"))
    for decision in (found.get("past_decisions") or ())[:1]:
        status = decision.get("status") or UNKNOWN
        by = f" by {decision['superseded_by']}" if decision.get("superseded_by") else ""
        facts = ("status unknown" if status == UNKNOWN else status) + by, decision.get("assigned_architect")
        yield "decision", f"{_name(decision)}{_bracketed(*facts)}"
    for doc in (found.get("technical_docs") or ())[:1]:
        passages = doc.get("relevant_sections") or ()
        yield "document", f"{named(doc)}: {passages[0]}" if passages else named(doc)
    for hint in (found.get("risk_hints") or ())[:MOST]:
        yield f"risk {hint.get('severity')}", str(hint.get("message"))
    for suggestion in (found.get("suggestions") or ())[:MOST]:
        yield "suggestion", str(suggestion)
    some = any(found.get(key) for key in ("similar_work", "past_decisions", "technical_docs", "suggestions"))
    if not some and found.get("degradation_level", 0) < STATIC:
        yield "nothing", "no similar work, decision or document is in stock"


def _ended(work: Json) -> Iterator[str]:
    """What a title alone does not tell: what became of it, and what it took."""
    status, outcome = work.get("status"), work.get("outcome")
    if work.get("abandoned"):
        yield f"given up: {outcome or status}"
    elif work.get("duplicate_of"):
        yield f"closed as duplicate of {work['duplicate_of']}"
    else:
        yield ", ".join(dict.fromkeys(word for word in (status, outcome) if word))
    yield work.get("effort") or ""


def _name(one: Json) -> str:
    return _cut(named(one), LONGEST // 2)


def _bracketed(*facts: str | None) -> str:
    told = "; ".join(fact for fact in facts if fact)
    return f" ({told})" if told else ""


def _cut(text: str, longest: int = LONGEST) -> str:
    line = printable(text)
    return line if len(line) <= longest else line[: longest - 1].rsplit(" ", 1)[0] + "…"
