"""Commands that ask, and judge the answers: search, explain, feedback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pipeline.documents import Json, Kind, SourceType
from pipeline.errors import ConfigurationError
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, CommandContext, command
from workers.cli.tables import SCORE_PARTS, Columns, show_scores

if TYPE_CHECKING:
    from pipeline.search import SearchRequest

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
_COUNT = "How many. [default: retrieval.topK, at most maxTopK]"
_SINCE = "Changed then or later: 2025-01-31, an RFC 3339 time, 7d, 12h."
Words = list[str] | None
"""An option that may be repeated."""
option = typer.Option


@dataclass(frozen=True)
class SearchOptions:
    """How to search, and among which documents."""

    k: Annotated[int | None, option("-k", min=1, help=_COUNT)] = None
    mode: Annotated[str, option(help="hybrid, vector or keyword.")] = "hybrid"
    source_type: Annotated[Words, option(help=f"{', '.join(SourceType)}; may be repeated.")] = None
    kind: Annotated[Words, option(help=f"{', '.join(Kind)}; may be repeated.")] = None
    tag: Annotated[Words, option(help="The document has it; repeated: all of them.")] = None
    source: Annotated[Words, option(help="Name of a source; may be repeated.")] = None
    project: Annotated[Words, option(help=_PROJECT)] = None
    since: Annotated[str | None, option(help=_SINCE)] = None
    until: Annotated[str | None, option(help="Changed before; a day given here counts whole.")] = None
    metadata: Annotated[Words, option(metavar="KEY=VALUE", help="Repeated: all of them.")] = None
    security_level: Annotated[Words, option(help="Only documents of this level; may be repeated.")] = None
    exclude: Annotated[Words, option(metavar="ID", help="Leave this document out; may be repeated.")] = None

    def request(self, context: CommandContext, text: str, *, explain: bool = False) -> SearchRequest:
        """What is asked; projects that hold nothing are named on stderr.

        Raises:
            ConfigurationError: a word means nothing; the message says which and what is known.
        """
        from pipeline.search import SearchRequest
        from workers import search as searching

        mode, names = searching.mode_of(self.mode), searching.names_in(self.project or ())
        wanted = searching.FilterWords(
            source_types=self.source_type or (),
            kinds=self.kind or (),
            tags=self.tag or (),
            sources=self.source or (),
            projects=names,
            since=self.since,
            until=self.until,
            metadata=self.metadata or (),
            security_levels=self.security_level or (),
            exclude=self.exclude or (),
        )
        condition = searching.condition(context.parts, context.tenant, wanted)
        if names:
            _warn_of_unknown(context, names)
        return SearchRequest(text=text, mode=mode, k=self.k, filter=condition, explain=explain)


def _warn_of_unknown(context: CommandContext, projects: list[str]) -> None:
    from workers import search as searching

    for notice in searching.unknown_projects(context.parts, context.tenant, projects):
        print(notice, file=sys.stderr)


@command()
def search(
    context: CommandContext,
    text: Annotated[str, typer.Argument(help="A question, words, or a whole work item.")],
    options: SearchOptions,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each score is made of.")] = False,
) -> None:
    """Find documents by meaning and by words."""
    from workers import search as searching

    request = options.request(context, searching.asked(text), explain=explain)
    found = searching.search(context.parts, context.tenant, request)
    document = searching.to_json(context.parts, context.tenant, found)
    context.answer(document, lambda: _tell_results(context, found, request.text))


_NOTES = {
    1: "the reranker fails or is too slow, see `larder doctor`: in the order of the search",
    2: "only questions asked a short while ago are answered",
    3: "the embedder does not answer: found by words alone",
    5: "switched off in the configuration (rag.enabled)",
}


def _tell_results(context: CommandContext, found: Any, question: str) -> None:
    from workers import search as searching

    console = context.console
    if found.model and not found.hits and not searching.holds_documents(context.parts, context.tenant):
        print(f"no document of tenant {context.settings.tenant} is indexed; see `larder index`")
        return
    if found.degradation_level:
        note = _NOTES.get(found.degradation_level, "")
        console.print(f"[yellow]degradation level {found.degradation_level}[/]: {note}")
    if not found.hits:
        console.print("nothing found" if found.model else "nothing is indexed yet; see `larder index`")
    for n, hit in enumerate(found.hits, 1):
        _show_hit(console, n, hit, question)
    if any(hit.explanation is not None for hit in found.hits):
        show_scores(console, found.hits, WIDEST)


def _show_hit(console: Console, rank: int, hit: Any, question: str) -> None:
    from pipeline.search.snippets import passage
    from pipeline.search.validity import remark

    width = min(console.width, WIDEST)
    d = hit.document
    head = Text(f"{rank:>3}. ", style="bold", no_wrap=True)
    head.append(f"{hit.score:.3f}  ", style="green")
    head.append(d.title, style="bold")
    head.truncate(width, overflow="ellipsis")
    console.print(head, soft_wrap=True)
    # A link is kept whole, even if it is longer than the line: it is there to be copied.
    console.print(Text(" " * INDENT + _place(d), style="cyan"), soft_wrap=True)
    if said := remark(d):
        against = Text(" " * INDENT + said, style="yellow", no_wrap=True)
        against.truncate(width, overflow="ellipsis")
        console.print(against, soft_wrap=True)
    if hit.explanation is not None and hit.explanation.feedback_why:
        console.print(Text(" " * INDENT + hit.explanation.feedback_why, style="magenta"), soft_wrap=True)
    room = width - INDENT
    best = passage(hit.chunk.content, question, length=LINES * room - LINES * 8)
    body = Text(best.text)
    for start, end in best.marks:
        body.stylize("bold yellow", start, end)
    for line in list(body.wrap(console, room))[:LINES]:
        console.print(Text(" " * INDENT).append_text(line), soft_wrap=True)
    console.print()


def _place(document: Any) -> str:
    """Where it comes from and of which day it is, with its link."""
    day = document.updated_at or document.created_at
    link = str(document.url or document.metadata.get("source_path") or "")
    place = [f"{document.source}/{document.kind}", f"{day:%Y-%m-%d}{_age(document)}" if day else "", link]
    return "  ".join(part for part in place if part)


def _age(document: Any) -> str:
    """How long ago that was, for what is old enough to matter."""
    from pipeline.search.validity import age_days

    days = age_days(document) or 0
    if days < OLD_DAYS:
        return ""
    years = round(days / 365.25)
    return f" ({years} year{'s' if years > 1 else ''} old)"


@command()
def explain(
    context: CommandContext,
    document: Annotated[
        str, typer.Argument(metavar="DOC", help="Its id, external id, end of its path, or part of its title.")
    ],
    options: SearchOptions,
    query: Annotated[
        str | None, typer.Option("--query", help="Why this question does (not) find it.")
    ] = None,
) -> None:
    """Tell where a document stands, and with --query why it is found or not."""
    from workers.admin import explain as explaining

    request = options.request(context, query or "")
    try:
        facts = explaining.find(context.parts, context.tenant, document)
    except explaining.SeveralDocuments as error:
        _list_candidates(context, error)
        raise typer.Exit(FAILED) from None
    told = {"document": facts}
    if query is not None:
        verdict = explaining.why(context.parts, context.tenant, facts, request)
        told["query"] = {"text": query, **verdict}
    context.answer(told, lambda: _tell_document(context.console, told))


def _list_candidates(context: CommandContext, error: Any) -> None:
    names = ("id", "source", "external_id", "title")
    candidates = [{name: c[name] for name in names} for c in error.candidates]
    lines = [f"{error.message}:", *("  " + "  ".join(c.values()) for c in candidates), error.fix]
    context.answer({"success": False, "error": error.to_json(), "candidates": candidates}, "\n".join(lines))


def _tell_document(console: Console, told: Json) -> None:
    d = told["document"]
    wanted, indexed = d["pipeline_version"], d["indexed_pipeline"]
    cut, letter, crashes = d["chunks_cut"], d["dead_letter"], d["crash_count"]
    unread = f", {cut} longer than the model reads: their ends are found by their words only"
    given_up = "{code} at stage {stage} after {attempts} attempts: {reason}"
    rows: list[tuple[str, Any]] = [
        ("document", d["id"]),
        ("title", d["title"]),
        ("source", f"{d['source']}/{d['kind']}  {d['external_id']}"),
        ("link", d["url"]),
        ("searchable", _searchable(d)),
        ("state", f"{d['state']}, stage {d['stage']}"),
        ("version", f"{d['desired_version']} wanted, {d['indexed_version'] or 'none'} indexed"),
        ("pipeline", wanted if indexed in {None, wanted} else f"{wanted} wanted, {indexed} indexed"),
        ("chunks", f"{d['chunk_count']}{unread if cut else ''}"),
        *(
            (f"index {i['index']}", f"{i['model']}, {i['status']}: version {i['version'] or 'none'}")
            for i in d["indexes"]
            if i["status"] != "active"
        ),
        ("indexed", d["last_indexed"]),
        ("attempts", f"{d['attempts']}{f', {crashes} crashes' if crashes else ''}"),
        ("next try", d["next_try"]),
        ("last error", d["last_error"]),
        ("dead letter", given_up.format(**letter) if letter else ""),
    ]
    for name, value in (*rows, *_query_rows(told)):
        if value not in (None, ""):
            console.print(Text(f"{name:<12}").append(str(value)), soft_wrap=True)


def _searchable(document: Json) -> str:
    reasons = [name for name in ("deleted", "hidden") if document[name]]
    reasons += ["not indexed yet"] if document["indexed_version"] is None else []
    return "no: " + ", ".join(reasons) if reasons else "yes"


def _query_rows(told: Json) -> Iterator[tuple[str, str]]:
    """What became of the question, if there is one, and the parts of its score."""
    if "query" not in told:
        return
    yield "question", told["query"]["detail"]
    explanation = told["query"]["explanation"] or {}
    for label, raw, part in SCORE_PARTS:
        value, by = explanation.get(raw), explanation.get(part)
        if raw.endswith("_score"):
            if value is not None:
                yield f"  {label}", f"{value:.3f}, {by:.3f} of the score"
        elif by:
            yield f"  {label}", f"{by:.3f} of the score"


# Feedback -----------------------------------------------------------------------------------------

VERDICT_COLOURS = {"useful": "green", "noise": "yellow"}


@command(answer_timeout=LONG_ANSWER_TIMEOUT)
def feedback(
    context: CommandContext,
    item: Annotated[
        str | None,
        typer.Argument(
            metavar="ITEM",
            help="Id of a PBI that was enriched or of an indexed document, or a question in quotes.",
        ),
    ] = None,
    ref: Annotated[
        str | None, typer.Argument(metavar="REF", help="Of the document: its external id, or its id.")
    ] = None,
    verdict: Annotated[str | None, typer.Argument(metavar="VERDICT", help="useful, noise or undo.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was said.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show what was said, of ITEM if given.")] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Write a judged set for `larder eval`; it holds texts."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Of the item, if several projects have that ITEM.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Of the document, if several sources have that REF.")
    ] = None,
) -> None:
    """Say that a document is useful or noise for an item: it ranks higher or lower, for this item above all."""
    said = "undo" if undo and verdict is None else verdict
    _check_form((item, ref, said), undo=undo, listing=listing, export=export, of_one=bool(source or project))
    if item is not None and ref is not None and said is not None:
        _mark(context, (item, ref, said), project, source)
    elif export is not None:
        _export(context, export)
    else:
        _list_marks(context, item)


def _check_form(
    words: tuple[str | None, ...], *, undo: bool, listing: bool, export: Path | None, of_one: bool
) -> None:
    item, ref, said = words
    marks = None not in words
    wrong = (undo and said != "undo", listing and (ref or said), export and item, of_one and not marks)
    if [marks, listing, export is not None].count(True) != 1 or any(wrong):
        usage = "write `larder feedback ITEM REF useful|noise|undo`, or --list, or --export DIR"
        raise ConfigurationError("that is no whole command", fix=usage)


def _mark(
    context: CommandContext, words: tuple[str, str, str], project: str | None, source: str | None
) -> None:
    from workers.admin import feedback as marking
    from workers.admin.operations import current_user

    tenant = context.tenant
    with context.parts.database.tenant(tenant) as connection:
        done = marking.mark(connection, tenant, *words, project=project, source=source, by=current_user())
    what = f"{done['ref']} is {done['verdict']} for {_named(done)}"
    if done["verdict"] is None:
        what = f"{done['ref']} is no longer {done['before']} for {_named(done)}"
    elif done["before"] not in (None, done["verdict"]):
        what += f", no longer {done['before']}"
    context.answer({"success": True, **done}, what)


def _list_marks(context: CommandContext, item: str | None) -> None:
    from workers.admin import feedback as marking

    with context.parts.database.tenant(context.tenant) as connection:
        found = marking.listed(connection, item)
    table = Columns(heads=("item", "verdict", "document", "when", "by"), folded=frozenset({"document"}))
    for one in found:
        gone = " (removed)" if one["removed"] else ""
        table.add(
            f"{_named(one)}  {one['item_title']}".strip(),
            Text(one["verdict"], style=VERDICT_COLOURS[one["verdict"]]),
            f"{one['ref']}  {one['title']}{gone}",
            one["at"][:10],
            one["by"],
        )
    nothing = Text("nothing is marked" + (f" for {item}" if item else ""))
    context.answer({"feedback": found}, lambda: context.console.print(table if found else nothing))


def _named(one: Json) -> str:
    return f"{one['item']} ({one['project']})" if one["project"] else str(one["item"])


def _export(context: CommandContext, folder: Path) -> None:
    from workers.admin import feedback as marking

    with context.parts.database.tenant(context.tenant) as connection:
        counts = marking.export(connection, folder)
    said = f"{counts['queries']} questions with {counts['useful']} useful and {counts['noise']} noise"
    context.answer(
        {"success": True, "folder": str(folder), **counts},
        f"wrote {said} among {counts['documents']} documents to {folder}; see `larder eval {folder}`",
    )
