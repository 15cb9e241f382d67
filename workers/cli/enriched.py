"""How the answers of Step 4 look on a screen: a block per item, with the best of each section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.documents import Json
from pipeline.enrichment.context import UNKNOWN

MOST_SUGGESTIONS = 2
LONGEST = 160
"""Characters of one line's text before it is cut; it may wrap."""
UNSEARCHED = 4
"""From this level on nothing was looked for."""
LEVELS: Mapping[int, str] = {
    1: "without a closer look",
    2: "only what was asked before",
    3: "by words alone",
    4: "nothing could be looked up",
    5: "switched off",
}


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
        yield f"similar {work.get('similarity', 0):>3.0f} %", f"{note}{_named(work)}{_ended(work)}"
    for decision in (found.get("past_decisions") or ())[:1]:
        status = decision.get("status") or UNKNOWN
        yield "decision", f"{_named(decision)} ({'status unknown' if status == UNKNOWN else status})"
    for doc in (found.get("technical_docs") or ())[:1]:
        passages = doc.get("relevant_sections") or ()
        yield "document", f"{_named(doc)}: {passages[0]}" if passages else _named(doc)
    for suggestion in (found.get("suggestions") or ())[:MOST_SUGGESTIONS]:
        yield "suggestion", str(suggestion)
    some = any(found.get(key) for key in ("similar_work", "past_decisions", "technical_docs", "suggestions"))
    if not some and found.get("degradation_level", 0) < UNSEARCHED:
        yield "nothing", "no similar work, decision or document is in stock"


def _ended(work: Json) -> str:
    """What a title alone does not tell: that nobody finished it."""
    state = (work.get("outcome") or work.get("status")) if work.get("abandoned") else ""
    return f" (given up: {state})" if state else ""


def _named(one: Json) -> str:
    ref, title = str(one.get("ref") or ""), str(one.get("title") or "")
    # A path or an address says little beside a title.
    return title if "/" in ref or not ref else f"{ref} {title}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1].rsplit(" ", 1)[0] + "…"
