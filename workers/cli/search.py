"""Commands that ask, and judge the answers: search, explain, feedback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json, Kind, SourceType
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError, LarderError
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, CommandContext, RightsOptions, command
from workers.cli.tables import hanging, table

LINES = 3
"""Lines of a passage."""
INDENT = 5
OLD_DAYS = 365
WIDEST = 100
"""Columns; longer lines are hard to read, however wide the screen."""


_PROJECT = (
    "Only documents of this project; more by commas or repeated. "
    "Without it all projects of the tenant are searched."
)
_METADATA = (
    "The document has it; repeated: all of them. "
    "VALUE is text, a number, true, false or null; n=3 finds the number 3 and the text 3."
)
_COUNT = "How many. [default: retrieval.topK, at most maxTopK]"
_SINCE = "Changed then or later: 2025-01-31, an RFC 3339 time, 7d, 12h."
Words = list[str] | None
"""An option that may be repeated."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search and conditions on its documents, as a person writes them."""

    k: Annotated[int | None, Option("-k", min=1, help=_COUNT)] = None
    mode: Annotated[str, Option(help="hybrid, vector or keyword.")] = "hybrid"
    source_type: Annotated[Words, Option(help=f"{', '.join(SourceType)}; may be repeated.")] = None
    kind: Annotated[Words, Option(help=f"{', '.join(Kind)}; may be repeated.")] = None
    tag: Annotated[Words, Option(help="The document has it; repeated: all of them.")] = None
    source: Annotated[Words, Option(help="Name of a source; may be repeated.")] = None
    project: Annotated[Words, Option(help=_PROJECT)] = None
    since: Annotated[str | None, Option(help=_SINCE)] = None
    until: Annotated[str | None, Option(help="Changed before; a day given here counts whole.")] = None
    metadata: Annotated[Words, Option(metavar="KEY=VALUE", help=_METADATA)] = None
    security_level: Annotated[Words, Option(help="Only documents of this level; may be repeated.")] = None
    exclude: Annotated[Words, Option(metavar="ID", help="Leave this document out; may be repeated.")] = None


# Search -------------------------------------------------------------------------------------------

UNREAD = "longer than the model reads: their ends are found by their words only"
LESS_CUT = "docs/search.md#how-long-chunks-are"
_NOTES = {
    1: "the reranker fails or is too slow, see `larder doctor`: in the order of the search",
    2: "only questions asked a short while ago are answered",
    3: "the embedder does not answer: found by words alone",
    5: "switched off in the configuration (rag.enabled)",
}


@command(looks=True)
def search(
    context: CommandContext,
    text: Annotated[str, Argument(help="A question, words, or a whole work item.")],
    options: SearchOptions,
    explain: Annotated[bool, Option("--explain", help="Show what each score is made of.")] = False,
) -> None:
    """Find documents by meaning and by words."""
    if not text.strip():
        raise ConfigurationError("the question is empty", fix="write what is to be found")
    length = LINES * _room(context.console) - LINES * 8
    arguments = {"text": text, "options": vars(options), "explain": explain, "passage_length": length}
    answer = context.ask("search", arguments)
    document = answer["document"]
    lines = [*_notices(answer)]
    for n, (result, hit) in enumerate(zip(document["results"], answer["hits"], strict=True), 1):
        lines += _lines(context.console, n, result, hit)
    if document["results"] and explain:
        lines += _explained(document["results"])
    context.answer(document, *lines)


def _notices(answer: Json) -> Iterator[RenderableType]:
    """Lines that stand before the hits: nothing indexed, degradation, a load under way."""
    document = answer["document"]
    if tenant := answer["empty_tenant"]:
        yield f"no document of tenant {tenant} is indexed; see `larder index`"
        return
    if level := document["degradation_level"]:
        yield Text.assemble((f"degradation level {level}", "yellow"), f": {_NOTES.get(level, '')}")
    if answer["partial"]:
        yield Text.assemble(("partial", "yellow"), f": {answer['partial']}")
    if not document["results"]:
        yield "nothing found" if answer["model"] else "nothing is indexed yet; see `larder index`"
    if document["weak"]:
        yield Text("nothing close; nearest:", style="yellow")


def _explained(results: Sequence[Json]) -> Iterator[RenderableType]:
    """The scores, and which passages the model did not read to their ends."""
    yield scores(results)
    if numbers := [f"{n}." for n, one in enumerate(results, 1) if one["explanation"].get("cut")]:
        yield f"{UNREAD}: {' '.join(numbers)}\nwhat helps, and what it costs: {LESS_CUT}"


def _room(console: Console) -> int:
    return min(console.width, WIDEST) - INDENT


def _lines(console: Console, rank: int, result: Json, hit: Json) -> Iterator[Text]:
    """A hit: title, where it comes from, what speaks against it, and the passage that answers."""
    indent, facts = " " * INDENT, result["metadata"]
    colour, mark = ("dim", "weak  ") if result["weak"] else ("green", "")
    score = (f"{result['score']:.3f}  {mark}", colour)
    head = Text.assemble((f"{rank:>3}. ", "bold"), score, (facts["title"], "bold"))
    against = Text(f"{indent}{hit['standing']}", style="yellow")
    for line in (head, against):
        line.truncate(_room(console) + INDENT, overflow="ellipsis")
    yield head
    # A link is kept whole, even if it is longer than the line: it is there to be copied.
    yield Text(indent + "  ".join(filter(None, (*_place(facts), hit["link"]))), style="cyan")
    if hit["standing"]:
        yield against
    if hit["feedback"]:
        yield Text(indent + hit["feedback"], style="magenta")
    body = Text(hit["text"])
    for start, end in hit["marks"]:
        body.stylize("bold yellow", start, end)
    for line in body.wrap(console, _room(console))[:LINES]:
        yield Text(indent).append_text(line)
    yield Text()


def _place(facts: Json) -> tuple[str, str]:
    """Source and kind, and when it was last changed."""
    day, days = facts["updated_at"] or facts["created_at"], facts["age_days"] or 0
    age = f" ({plural(round(days / 365.25), 'year')} old)" if days >= OLD_DAYS else ""
    return f"{facts['source']}/{facts['kind']}", f"{day[:10]}{age}" if day else ""


SCORE_PARTS = (
    ("meaning", "semantic_score", "vector_part"),
    ("words", "overlap_score", "keyword_part"),
    ("title", "title_score", "title_part"),
    ("all words", "covered_score", "covered_part"),
    ("reranker", "rerank_score", "rerank_part"),
    ("outdated", "", "standing_part"),
    ("feedback", "feedback", "feedback_part"),
)
"""Label, the raw value and its part of the score in an explanation's JSON. The parts of a row add up to its score."""


def scores(results: Sequence[Json]) -> Table:
    """A row per hit: the parts of its score, and below each the value that it comes from."""
    explanations = [one["explanation"] for one in results]
    columns = [c for c in SCORE_PARTS if any(one[c[2]] or one.get(c[1]) for one in explanations)]
    rows: list[list[Text]] = []
    for n, (result, one) in enumerate(zip(results, explanations, strict=True), 1):
        cells = [Text(f"{n}.", style="bold"), Text(f"{result['score']:.3f}", style="green")]
        for _, raw, part in columns:
            value = "" if one.get(raw) is None else f"\n{one[raw]:.3f}"
            cells.append(
                Text.assemble((f"{one[part]:.3f}", "red" if one[part] < 0 else "cyan"), (value, "dim"))
            )
        rows.append(cells)
    heads = ("#", "score", *(label for label, _, _ in columns))
    return table(heads, rows, right=heads)


# Explain ------------------------------------------------------------------------------------------


@command(looks=True)
def explain(
    context: CommandContext,
    document: Annotated[
        str, Argument(metavar="DOC", help="Its id, external id, end of its path, or part of its title.")
    ],
    options: SearchOptions,
    query: Annotated[str | None, Option(help="Why this question does (not) find it.")] = None,
) -> None:
    """Tell where a document stands, and with --query why it is found or not."""
    arguments = {"document": document, "options": vars(options), "query": query}
    with _several_named(context):
        answer = context.ask("explain", arguments)
    rows = (*_document_rows(answer["document"]), *_query_rows(answer.get("query")))
    lines = [f"{name:<12}{value}" for name, value in rows if value not in (None, "")]
    context.answer(answer, *hanging(context.console, lines, 12))


@contextmanager
def _several_named(context: CommandContext) -> Iterator[None]:
    """End a command whose word fits several documents, with their names."""
    try:
        yield
    except LarderError as error:
        if not (matches := getattr(error, "candidates", ())):
            raise
        names = ("id", "source", "external_id", "title")
        candidates = [{name: c[name] for name in names} for c in matches]
        lines = [f"{error.message}:", *("  " + "  ".join(c.values()) for c in candidates), error.fix]
        wrapped_lines = hanging(context.console, lines, 4)
        context.answer({"success": False, "error": error.to_json(), "candidates": candidates}, *wrapped_lines)
        raise typer.Exit(FAILED) from None


@command(looks=True)
def why_visible(
    context: CommandContext,
    user: Annotated[str, Argument(help="`sub` of their token.")],
    document: Annotated[
        str, Argument(metavar="DOC", help="Its id, external id, end of its path, or part of its title.")
    ],
    rights: RightsOptions,
) -> None:
    """Tell which rule lets a user of the API find a document, or keeps it from them."""
    with _several_named(context):
        answer = context.ask("why-visible", {"user": user, "document": document, "rights": vars(rights)})
    judgement = answer["document"]
    rows = ((one["rule"], "yes" if one["passes"] else "NO", one["detail"]) for one in judgement["rules"])
    sentence = f"{user} {'finds' if judgement['visible'] else 'does not find'} {answer['title']!r}"
    context.answer(judgement, sentence, table(("rule", "passes", "why"), rows))


def _document_rows(d: Json) -> Iterator[tuple[str, Any]]:
    """Labels, and what is known of the document."""
    yield "document", d["id"]
    yield "title", d["title"]
    yield "source", f"{d['source']}/{d['kind']}  {d['external_id']}"
    yield "link", d["url"]
    bare = d["indexed_version"] is None
    states = {**d, "not indexed yet": bare and not d["chunk_count"]}
    reasons = ", ".join(name for name in ("deleted", "hidden", "not indexed yet") if states[name])
    yield "searchable", f"no: {reasons}" if reasons else "by words: it has no vectors yet" if bare else "yes"
    yield "state", f"{d['state']}, stage {d['stage']}"
    yield "version", f"{d['desired_version']} wanted, {d['indexed_version'] or 'none'} indexed"
    configured, indexed = d["pipeline_version"], d["indexed_pipeline"]
    yield (
        "pipeline",
        configured if indexed in {None, configured} else f"{configured} wanted, {indexed} indexed",
    )
    unread = f", {d['chunks_cut']} {UNREAD}" if d["chunks_cut"] else ""
    yield "chunks", f"{d['chunk_count']}{unread}"
    for i in filter(lambda i: i["status"] != "active", d["indexes"]):
        yield f"index {i['index']}", f"{i['model']}, {i['status']}: version {i['version'] or 'none'}"
    yield "indexed", d["last_indexed"]
    crashes = f", {d['crash_count']} crashes" if d["crash_count"] else ""
    yield "attempts", f"{d['attempts']}{crashes}"
    yield "next try", d["next_try"]
    yield "last error", d["last_error"]
    if letter := d["dead_letter"]:
        yield "dead letter", "{code} at stage {stage} after {attempts} attempts: {reason}".format(**letter)


def _query_rows(query: Json | None) -> Iterator[tuple[str, str]]:
    """Rows on the query, if there is one, and on the parts of its score."""
    explanation = (query or {}).get("explanation") or {}
    yield "question", query["detail"] if query else ""
    for label, raw, part in SCORE_PARTS:
        value, by = explanation.get(raw), explanation.get(part)
        scored = value is not None and raw.endswith("_score")
        if scored or by:
            yield f"  {label}", (f"{value:.3f}, " if scored else "") + f"{by:.3f} of the score"


# Feedback -----------------------------------------------------------------------------------------


@command(answer_timeout=LONG_ANSWER_TIMEOUT)
def feedback(
    context: CommandContext,
    item: Annotated[
        str | None,
        Argument(help="Id of a PBI that was enriched or of an indexed document, or a question in quotes."),
    ] = None,
    ref: Annotated[str | None, Argument(help="Of the document: its external id, or its id.")] = None,
    verdict: Annotated[str | None, Argument(help="useful, noise or undo.")] = None,
    undo: Annotated[bool, Option("--undo", help="Take back what was said.")] = False,
    listing: Annotated[bool, Option("--list", help="Show what was said, of ITEM if given.")] = False,
    export: Annotated[
        Path | None, Option(metavar="DIR", help="Write a judged set for `larder eval`; it holds texts.")
    ] = None,
    project: Annotated[str | None, Option(help="Of the item, if several projects have that ITEM.")] = None,
    source: Annotated[str | None, Option(help="Of the document, if several sources have that REF.")] = None,
) -> None:
    """Say that a document is useful or noise for an item: it ranks higher or lower, for this item above all."""
    verdict = verdict or ("undo" if undo else None)
    marks = None not in (item, ref, verdict)
    of_one = project or source
    wrong = (
        undo and verdict != "undo",
        listing and (ref or verdict),
        export and item,
        of_one and not marks,
    )
    if [marks, listing, export is not None].count(True) != 1 or any(wrong):
        usage = "write `larder feedback ITEM REF useful|noise|undo`, or --list, or --export DIR"
        raise ConfigurationError("that is no whole command", fix=usage)
    if listing:
        context.looks = True
        _show_marks(context, item)
        return
    from workers.app import feedback as marking
    from workers.runtime import current_user

    with context.runtime.database.tenant(context.tenant) as connection:
        if export:
            counts = marking.export(connection, context.tenant, export, by=current_user())
            text = (
                "wrote {queries} questions with {useful} useful and {noise} noise among {documents} documents"
            )
            text = f"{text.format(**counts)} to {export}; see `larder eval {export}`"
            answer = {"success": True, "folder": str(export), **counts}
        else:
            places: dict[str, Any] = {"project": project, "source": source, "by": current_user()}
            done = marking.mark(connection, context.tenant, str(item), str(ref), str(verdict), **places)
            answer, text = {"success": True, **done}, _marked(done)
    context.answer(answer, text)


def _show_marks(context: CommandContext, item: str | None) -> None:
    document = context.ask("feedback", {"item": item})
    rows = []
    for one in document["feedback"]:
        about = f"{_named(one)}  {one['item_title']}".strip()
        judged = Text(one["verdict"], style="green" if one["verdict"] == "useful" else "yellow")
        named = f"{one['ref']}  {one['title']}{' (removed)' if one['removed'] else ''}"
        rows.append((about, judged, named, one["at"][:10], one["by"]))
    overview = table(("item", "verdict", "document", "when", "by"), rows)
    context.answer(
        document, overview if overview.rows else "nothing is marked" + (f" for {item}" if item else "")
    )


def _marked(done: Json) -> str:
    """Sentence about a mark: what it says, and which earlier one it replaces."""
    if done["verdict"] is None:
        return f"{done['ref']} is no longer {done['before']} for {_named(done)}"
    other = f", no longer {done['before']}" if done["before"] not in (None, done["verdict"]) else ""
    return f"{done['ref']} is {done['verdict']} for {_named(done)}{other}"


def _named(one: Json) -> str:
    return f"{one['item']} ({one['project']})" if one["project"] else str(one["item"])
