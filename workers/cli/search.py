"""Commands that ask: search, explain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from workers.cli.context import FAILED, CommandContext, ConfigOption, DataOption, JsonOption, command_context

LINES = 3
"""Lines of a passage."""
INDENT = 5
OLD_DAYS = 365
WIDEST = 100
"""Columns; longer lines are hard to read, however wide the screen."""

ModeOption = Annotated[str, typer.Option("--mode", help="hybrid, vector or keyword.")]
TypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source-type", help="pbi, documentation, confluence, azure_devops, text; may be repeated."
    ),
]
KindsOption = Annotated[
    list[str] | None, typer.Option("--kind", help="work, decision, reference; may be repeated.")
]
TagsOption = Annotated[
    list[str] | None, typer.Option("--tag", help="The document has it; repeated: all of them.")
]
SourcesOption = Annotated[
    list[str] | None, typer.Option("--source", help="Name of a source; may be repeated.")
]
ProjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--project",
        help="Only documents of this project; more by commas or repeated. Without it all projects of the tenant are "
        "searched.",
    ),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Changed then or later: 2025-01-31, an RFC 3339 time, 7d, 12h.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Changed before; a day given here counts whole.")
]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Repeated: all of them.")
]
LevelsOption = Annotated[
    list[str] | None, typer.Option("--security-level", help="Only documents of this level; may be repeated.")
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="ID", help="Leave this document out; may be repeated."),
]
CountOption = Annotated[
    int | None, typer.Option("-k", min=1, help="How many. [default: retrieval.topK, at most maxTopK]")
]


def search(
    text: Annotated[str, typer.Argument(help="A question, words, or a whole work item.")],
    k: CountOption = None,
    mode: ModeOption = "hybrid",
    source_type: TypesOption = None,
    kind: KindsOption = None,
    tag: TagsOption = None,
    source: SourcesOption = None,
    project: ProjectsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    metadata: MetadataOption = None,
    security_level: LevelsOption = None,
    exclude: ExcludeOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each score is made of.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find documents by meaning and by words."""
    with command_context(config, as_json, data) as door:
        from pipeline.search import SearchRequest
        from workers import search as searching
        from workers.admin import projects

        question = searching.asked(text)
        chosen = searching.mode_of(mode)
        wanted = searching.Wanted(
            source_types=source_type or (),
            kinds=kind or (),
            tags=tag or (),
            sources=source or (),
            projects=projects.names_of(project or ()),
            since=since,
            until=until,
            metadata=metadata or (),
            security_levels=security_level or (),
            exclude=exclude or (),
        )
        condition = searching.condition(door.parts, door.tenant, wanted)
        for notice in projects.unknown(door.parts, door.tenant, wanted.projects) if wanted.projects else ():
            print(notice, file=sys.stderr)
        request = SearchRequest(text=question, mode=chosen, k=k, filter=condition, explain=explain)
        found = searching.search(door.parts, door.tenant, request)
        door.answer(searching.to_json(door.parts, door.tenant, found))
        if not door.as_json:
            if found.model and not found.hits and not searching.holds_documents(door.parts, door.tenant):
                print(f"no document of tenant {door.settings.tenant} is indexed; see `larder index`")
                return
            _show(door.console, found, question)


_NOTES = {
    1: "the reranker fails or is too slow, see `larder doctor`: in the order of the search",
    2: "only questions asked a short while ago are answered",
    3: "the embedder does not answer: found by words alone",
    5: "switched off in the configuration (rag.enabled)",
}


def _show(console: Console, found: Any, question: str) -> None:
    if found.degradation_level:
        note = _NOTES.get(found.degradation_level, "")
        console.print(f"[yellow]degradation level {found.degradation_level}[/]: {note}")
    if not found.hits:
        console.print("nothing found" if found.model else "nothing is indexed yet; see `larder index`")
    for n, hit in enumerate(found.hits, 1):
        _show_hit(console, n, hit, question)
    if any(hit.explanation is not None for hit in found.hits):
        from workers.cli.tables import show_scores

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
    day = d.updated_at or d.created_at
    place = [f"{d.source}/{d.kind}", *([f"{day:%Y-%m-%d}{_age(d)}"] if day else []), _link(d)]
    # A link is kept whole, even if it is longer than the line: it is there to be copied.
    console.print(Text(" " * INDENT + "  ".join(p for p in place if p), style="cyan"), soft_wrap=True)
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


def _age(document: Any) -> str:
    """How long ago that was, for what is old enough to matter."""
    from pipeline.search.validity import age_days

    days = age_days(document) or 0
    if days < OLD_DAYS:
        return ""
    years = round(days / 365.25)
    return f" ({years} year{'s' if years > 1 else ''} old)"


def _link(document: Any) -> str:
    return str(document.url or document.metadata.get("source_path") or "")


def explain(
    document: Annotated[
        str, typer.Argument(metavar="DOC", help="Its id, external id, end of its path, or part of its title.")
    ],
    query: Annotated[
        str | None, typer.Option("--query", help="Why this question does (not) find it.")
    ] = None,
    k: CountOption = None,
    mode: ModeOption = "hybrid",
    source_type: TypesOption = None,
    kind: KindsOption = None,
    tag: TagsOption = None,
    source: SourcesOption = None,
    project: ProjectsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    metadata: MetadataOption = None,
    security_level: LevelsOption = None,
    exclude: ExcludeOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell where a document stands, and with --query why it is found or not."""
    with command_context(config, as_json, data) as door:
        from pipeline.search import SearchRequest
        from workers import search as searching
        from workers.admin import explain as explaining
        from workers.admin import projects

        chosen = searching.mode_of(mode)
        wanted = searching.Wanted(
            source_types=source_type or (),
            kinds=kind or (),
            tags=tag or (),
            sources=source or (),
            projects=projects.names_of(project or ()),
            since=since,
            until=until,
            metadata=metadata or (),
            security_levels=security_level or (),
            exclude=exclude or (),
        )
        condition = searching.condition(door.parts, door.tenant, wanted)
        try:
            facts = explaining.find(door.parts, door.tenant, document)
        except explaining.SeveralDocuments as error:
            _list(door, error)
            raise typer.Exit(FAILED) from None
        told = {"document": facts}
        if query is not None:
            request = SearchRequest(text=query, mode=chosen, k=k, filter=condition)
            verdict = explaining.why(door.parts, door.tenant, facts, request)
            told["query"] = {"text": query, **verdict.to_json()}
        door.answer(told)
        if not door.as_json:
            _tell(door.console, told)


def _list(door: CommandContext, error: Any) -> None:
    names = ("id", "source", "external_id", "title")
    candidates = [{name: c[name] for name in names} for c in error.candidates]
    message = error.message.partition("\n")[0].removesuffix(":")
    door.answer(
        {
            "success": False,
            "error": {"code": error.code, "name": error.name, "message": message, "fix": error.fix},
            "candidates": candidates,
        },
        text=f"{error.message}\n{error.fix}",
    )


def _tell(console: Console, told: dict[str, Any]) -> None:
    d = told["document"]
    rows: list[tuple[str, Any]] = [
        ("document", d["id"]),
        ("title", d["title"]),
        ("source", f"{d['source']}/{d['kind']}  {d['external_id']}"),
        ("link", d["url"]),
        ("searchable", _searchable(d)),
        ("state", f"{d['state']}, stage {d['stage']}"),
        ("version", f"{d['desired_version']} wanted, {d['indexed_version'] or 'none'} indexed"),
        ("pipeline", _pipeline(d)),
        ("chunks", _chunks(d)),
        *_beside(d),
        ("indexed", d["last_indexed"]),
        ("attempts", _attempts(d)),
        ("next try", d["next_try"]),
        ("last error", d["last_error"]),
        ("dead letter", _letter(d["dead_letter"])),
    ]
    if "query" in told:
        rows.append(("question", told["query"]["detail"]))
        rows += _scores(told["query"]["explanation"])
    for name, value in rows:
        if value not in (None, ""):
            console.print(Text(f"{name:<12}").append(str(value)), soft_wrap=True)


def _searchable(document: dict[str, Any]) -> str:
    reasons = [name for name in ("deleted", "hidden") if document[name]]
    reasons += ["not indexed yet"] if document["indexed_version"] is None else []
    return "no: " + ", ".join(reasons) if reasons else "yes"


def _pipeline(document: dict[str, Any]) -> str:
    wanted, indexed = document["pipeline_version"], document["indexed_pipeline"]
    return str(wanted) if indexed in {None, wanted} else f"{wanted} wanted, {indexed} indexed"


def _chunks(document: dict[str, Any]) -> str:
    cut = document["chunks_cut"]
    ends = f", {cut} longer than the model reads: their ends are found by their words only" if cut else ""
    return f"{document['chunk_count']}{ends}"


def _beside(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What search indexes hold of it that are not the one that is read."""
    return [
        (f"index {i['index']}", f"{i['model']}, {i['status']}: version {i['version'] or 'none'}")
        for i in document["indexes"]
        if i["status"] != "active"
    ]


def _attempts(document: dict[str, Any]) -> str:
    crashes = f", {document['crash_count']} crashes" if document["crash_count"] else ""
    return f"{document['attempts']}{crashes}"


def _letter(letter: dict[str, Any] | None) -> str:
    if letter is None:
        return ""
    return (
        f"{letter['code']} at stage {letter['stage']} after {letter['attempts']} attempts: {letter['reason']}"
    )


_PARTS = (
    ("meaning", "semantic_score", "vector_part"),
    ("words", "overlap_score", "keyword_part"),
    ("title", "title_score", "title_part"),
    ("all words", "covered_score", "covered_part"),
    ("reranker", "rerank_score", "rerank_part"),
)


def _scores(parts: dict[str, Any] | None) -> Sequence[tuple[str, str]]:
    known = [(label, (parts or {}).get(raw), (parts or {}).get(part)) for label, raw, part in _PARTS]
    rows = [(f"  {n}", f"{raw:.3f}, {part:.3f} of the score") for n, raw, part in known if raw is not None]
    moved = (("  outdated", "standing_part"), ("  feedback", "feedback_part"))
    return rows + [
        (name, f"{by:.3f} of the score") for name, part in moved if (by := (parts or {}).get(part))
    ]
