"""The command that runs Step 4 over a file, and how its answers look on a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import LarderError, StoreUnavailable
from workers.cli.context import CommandContext, command, resumable
from workers.cli.tables import Screen, progress_bars, table, to_stdout_json, warn

if TYPE_CHECKING:
    from workers.runtime import Runtime

MOST_NAMED = 5
Format = Literal["json", "md", "html"]
_BY_ENDING: dict[str, Format] = {".md": "md", ".html": "html"}
ANSWER_TIMEOUT = 5.0
"""Seconds in which the database must say something."""


OutputOption = Annotated[
    Path | None,
    Option("-o", "--output", help="Where to write; files of the same names are replaced. [default: stdout]"),
]
FormatOption = Annotated[
    Format | None,
    Option(
        "--format",
        help="md and html are pages for a person, one each in a folder. [default: by the ending of -o, else json]",
    ),
]
TimeoutOption = Annotated[
    float | None, Option(min=0.1, help="Seconds for all. [default: enrichment.deadlineSeconds for each]")
]
ProjectsOption = Annotated[
    list[str] | None,
    Option(
        "--project",
        "--projects",
        metavar="NAME",
        help="Look into this project and what the tenant shares; more by commas or repeated, '*' for all. "
        "[default: the PBI's own, else LARDER_PROJECT]",
    ),
]


@command(answer_timeout=ANSWER_TIMEOUT)
def enrich(
    context: CommandContext,
    file: Annotated[
        Path,
        Argument(
            help="What Step 3 wrote, any JSON with a PBI or more, or text with a title line; - is standard input."
        ),
    ],
    output: OutputOption = None,
    form: FormatOption = None,
    timeout: TimeoutOption = None,
    project: ProjectsOption = None,
) -> None:
    """Run Step 4: give every PBI of a file the similar work, decisions and documents that are in stock."""
    from workers import step4_file
    from workers.app.ingestion.temporary_workers import QueuesUnserved
    from workers.queue.celeryconfig import ENRICHING

    scope = step4_file.ProjectScope.parse(project or ())
    backlog = step4_file.read_backlog(file)  # before any server is asked
    runtime = _runtime(context)
    chosen = form or _BY_ENDING.get(output.suffix.lower() if output else "", "json")
    if output is not None:
        step4_file.check_writable(output, folder=chosen != "json")
    # stdout belongs to the document, on a terminal too.
    console = Screen(stderr=True, highlight=False)
    if backlog.repeated:
        named = ", ".join(backlog.repeated[:MOST_NAMED])
        console.print(f"{named}: more than one PBI has this id; each is taken by itself", markup=False)
    with ExitStack() as stack:
        owns_workers = False
        try:
            owns_workers = stack.enter_context(context.workers(ENRICHING))
        except QueuesUnserved as error:
            seconds = timeout or context.settings.rag.enrichment.deadline_seconds
            after = f"the answer is what is left without, after {seconds:g} s"
            console.print(f"{error.message}: {after}; {error.fix}", markup=False, soft_wrap=True)
        except StoreUnavailable:
            pass  # without a database each PBI says by itself what is wrong
        with suppress(LarderError):  # ditto
            for notice in step4_file.notices(runtime, backlog, scope):
                console.print(notice, markup=False, soft_wrap=True)
        with resumable(own_workers=owns_workers), progress_bars(console) as progress:
            bar = progress.add_task("enriching", total=len(backlog.items), note="")

            def tell(outcome: Any) -> None:
                if not console.is_terminal or outcome.error:
                    place = f"PBIs[{outcome.index}], " if outcome.status == "refused" else ""
                    why = f" ({outcome.error})" if outcome.error else ""
                    console.print(f"{place}{outcome.id}: {outcome.status}{why}", markup=False)
                progress.update(bar, advance=1, note=outcome.id)

            result = step4_file.enrich(runtime, backlog, scope=scope, timeout=timeout, tell=tell)
    _give(context, console, result, output, chosen)
    raise typer.Exit(result.exit_code)


def _runtime(context: CommandContext) -> Runtime:
    """The runtime; one whose servers cannot be reached, for prepared answers, if the embedded servers do not run."""
    from workers.runtime import Addresses, Runtime

    try:
        return context.runtime
    except StoreUnavailable as error:
        warn(str(error))
        nowhere = "127.0.0.1:1"
        addresses = Addresses(database=f"postgresql://{nowhere}/larder", broker=f"redis://{nowhere}/0")
        return Runtime(context.settings, addresses)


def _give(context: CommandContext, console: Console, result: Any, output: Path | None, form: Format) -> None:
    """Write the answers to a file or to stdout, and a summary for a person."""
    from pipeline.enrichment import report
    from workers import step4_file

    text = ""
    if form == "json":
        if output is None:
            text = to_stdout_json(result.document)
        else:
            step4_file.write(output, result.document)
    elif output is None:
        encoding = sys.stdout.encoding or "utf-8"
        text = report.document(result.items, form).encode(encoding, "xmlcharrefreplace").decode(encoding)
    elif replaced := step4_file.write_pages(output, result.items, form):
        were = plural(replaced, "page of the same name was", "pages of the same names were")
        console.print(f"{were} replaced in {output}", markup=False)
    if context.as_json:
        context.answer(result.report())
        return
    if output is None:
        print(text)
    show(console, result.items)
    bad = f", {len(result.failed)} failed" if result.failed else ""
    counts = f"{len(result.outcomes) - len(result.failed)} of {len(result.outcomes)} PBIs"
    console.print(f"{counts} in {result.seconds:.1f} s{bad}")
    if output is not None:
        console.print(f"written to {output}", markup=False)


LONGEST = 160
"""Characters of one line's text before it is cut; it may wrap."""


def show(console: Console, items: Sequence[Json]) -> None:
    """Print one block per enriched PBI."""
    from pipeline.enrichment.degradation import LEVELS

    for item in items:
        pbi, answer = item["pbi"], item["context"]
        title = "  ".join(filter(None, (_cut(str(pbi.get(key) or "")) for key in ("id", "title"))))
        level = answer.get("degradation_level", 0)
        if answer.get("error"):
            console.print(Text.assemble((title, "bold"), ("  (refused)", "red")))
            continue
        lowered = f"  (level {level}: {LEVELS[level].says})" if level else ""
        partial = f"  (partial: {answer['partial']})" if answer.get("partial") else ""
        console.print(Text.assemble((title, "bold"), (lowered + partial, "yellow")))
        rows = ((Text(name, style="cyan"), _cut(line)) for name, line in _lines(answer))
        console.print(Padding(table(("", ""), rows), (0, 0, 0, 2)))


def _lines(answer: Json) -> Iterator[tuple[str, str]]:
    from pipeline.enrichment.degradation import STATIC

    for name, document, text in sorted(_documents(answer), key=lambda row: -row[1].get("similarity", 0)):
        yield f"{name} {document.get('similarity', 0):>3.0f} %", text
    if effort := answer.get("effort_of_similar"):
        yield "effort", str(effort.get("text"))
    for hint in answer.get("risk_hints") or ():
        yield f"risk {hint.get('severity')}", str(hint.get("message"))
    for suggestion in answer.get("suggestions") or ():
        yield "suggestion", str(suggestion)
    some = any(map(answer.get, ("similar_work", "past_decisions", "technical_docs", "suggestions")))
    if not some and answer.get("degradation_level", 0) < STATIC:
        yield "nothing", "no similar work, decision or document is in stock"


def _documents(answer: Json) -> Iterator[tuple[str, Json, str]]:
    """Rows of the documents of an answer: label, document and description."""
    from pipeline.enrichment.report import named

    duplicates = {one.get("ref") for one in answer.get("likely_duplicates") or ()}
    for work in answer.get("similar_work") or ():
        description = _named(work, _ended(work), work.get("effort"))
        yield (
            "similar",
            work,
            f"possibly the same: {description}" if work.get("ref") in duplicates else description,
        )
    for decision in answer.get("past_decisions") or ():
        yield "decision", decision, _named(decision, _standing(decision), decision.get("assigned_architect"))
    for doc in answer.get("technical_docs") or ():
        yield "document", doc, ": ".join([named(doc), *(doc.get("relevant_sections") or ())[:1]])


def _ended(work: Json) -> str:
    status, outcome = work.get("status"), work.get("outcome")
    if work.get("abandoned"):
        return f"given up: {outcome or status}"
    if work.get("duplicate_of"):
        return f"closed as duplicate of {work['duplicate_of']}"
    return ", ".join(dict.fromkeys(filter(None, (status, outcome))))


def _standing(decision: Json) -> str:
    from pipeline.enrichment.context import UNKNOWN

    status = decision.get("status") or UNKNOWN
    by = f" by {decision['superseded_by']}" if decision.get("superseded_by") else ""
    return ("status unknown" if status == UNKNOWN else str(status)) + by


def _named(one: Json, *facts: str | None) -> str:
    """A title, with facts in brackets that it does not tell itself."""
    from pipeline.enrichment.report import named

    details = "; ".join(filter(None, facts))
    return _cut(named(one), LONGEST // 2) + (f" ({details})" if details else "")


def _cut(text: str, longest: int = LONGEST) -> str:
    from pipeline.enrichment.text import printable, truncated

    return truncated(printable(text), longest)
