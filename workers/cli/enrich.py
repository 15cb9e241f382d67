"""The command that runs Step 4 over a file, and how its answers look on a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.documents import Json
from pipeline.errors import LarderError, StoreUnavailable
from workers.cli.context import CommandContext, command, resumable, to_stdout_json
from workers.cli.tables import progress_bars

MOST_NAMED = 5
Format = Literal["json", "md", "html"]
ANSWER_TIMEOUT = 5.0
"""Seconds in which the database must say something."""


@command(answer_timeout=ANSWER_TIMEOUT)
def enrich(
    context: CommandContext,
    file: Annotated[Path, typer.Argument(help="What Step 3 wrote, or any JSON with PBIs.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Where to write; files of the same names are replaced. [default: stdout]"
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="md and html are pages for a person, one each in a folder.")
    ] = "json",
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds for all. [default: enrichment.deadlineSeconds for each]"),
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            "--projects",
            metavar="NAME",
            help="Look into this project and what the tenant shares; more by commas or repeated, '*' for all. "
            "[default: the PBI's own, else LARDER_PROJECT]",
        ),
    ] = None,
) -> None:
    """Run Step 4: give every PBI of a file the similar work, decisions and documents that are in stock."""
    from workers.enrichment import step4_file
    from workers.enrichment.step4_file import ProjectScope

    scope = ProjectScope.of(project or ())
    read = step4_file.read_backlog(file)  # before any server is started for it
    if output is not None:
        step4_file.check_writable(output, folder=form != "json")
    # stdout belongs to the document, on a terminal too.
    console = Console(stderr=True, highlight=False)
    if read.repeated:
        said = (
            f"{', '.join(read.repeated[:MOST_NAMED])}: more than one PBI has this id; each is taken by itself"
        )
        console.print(said, markup=False)
    made = _made(context, console, read, scope, timeout)
    if output is not None:
        _write(output, made, console, form)
    _answer(context, made, console, output, form)
    if made.exit_code:
        raise typer.Exit(made.exit_code)


def _made(context: CommandContext, console: Console, read: Any, scope: Any, timeout: float | None) -> Any:
    """Enrich the PBIs that were read, with a line or a progress bar about them."""
    from workers.enrichment import step4_file

    with _workers(context) as borrowed:
        if borrowed:
            console.print("no workers are running: started some for this command (see `larder up`)")
        with suppress(LarderError):  # whatever it is, each PBI says so by itself
            for notice in step4_file.notices(context.parts, read, scope):
                console.print(notice, markup=False, soft_wrap=True)
        with resumable(), progress_bars(console) as progress:
            bar = progress.add_task("enriching", total=read.count, note="")

            def tell(outcome: Any) -> None:
                if not console.is_terminal or outcome.error:
                    console.print(_line(outcome), markup=False)
                progress.update(bar, advance=1, note=outcome.id)

            return step4_file.enrich(context.parts, read, scope=scope, timeout=timeout, tell=tell)


@contextmanager
def _workers(context: CommandContext) -> Iterator[bool]:
    """Workers for the length of the command, if none run; without a database each PBI says by itself what is wrong."""
    from workers.admin import sync_now
    from workers.queue.celeryconfig import ENRICHING

    with ExitStack() as lent:
        try:
            borrowed = lent.enter_context(sync_now.borrowed_workers(context.parts, ENRICHING))
        except StoreUnavailable:
            borrowed = False
        yield borrowed


def _write(output: Path, made: Any, console: Console, form: Format) -> None:
    from workers.enrichment import step4_file

    if form == "json":
        return step4_file.write(output, made.document)
    if replaced := step4_file.write_pages(output, made.items, form):
        console.print(f"{replaced} pages of the same names were replaced in {output}", markup=False)
    return None


def _answer(context: CommandContext, made: Any, console: Console, output: Path | None, form: Format) -> None:
    if context.as_json:
        context.answer(made.report())
        return
    if output is None:
        print(_document(made, form))
    _summary(console, made)
    if output is not None:
        console.print(f"written to {output}", markup=False)


def _document(made: Any, form: Format) -> str:
    if form == "json":
        return to_stdout_json(made.document)
    from pipeline.enrichment import report

    encoding = sys.stdout.encoding or "utf-8"
    return report.document(made.items, form).encode(encoding, "xmlcharrefreplace").decode(encoding)


def _line(outcome: Any) -> str:
    where = f"PBIs[{outcome.index}], " if outcome.how == "refused" else ""
    return f"{where}{outcome.id}: {outcome.how}" + (f" ({outcome.error})" if outcome.error else "")


def _summary(console: Console, made: Any) -> None:
    show(console, made.items)
    bad = len(made.failed)
    console.print(
        f"{len(made.outcomes) - bad} of {len(made.outcomes)} PBIs in {made.seconds:.1f} s"
        + (f", {bad} failed" if bad else "")
    )


MOST = 2
"""Suggestions and risk hints."""
LONGEST = 160
"""Characters of one line's text before it is cut; it may wrap."""


def show(console: Console, items: Sequence[Json]) -> None:
    """Print one block per enriched PBI."""
    from pipeline.enrichment.degradation import LEVELS

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
            title.append(f"  (level {level}: {LEVELS[level].says})", style="yellow")
        console.print(title)
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2), pad_edge=True)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, line in _lines(found):
            table.add_row(name, Text(_cut(line)))
        console.print(table)


def _lines(found: Json) -> Iterator[tuple[str, str]]:
    from pipeline.enrichment.degradation import STATIC
    from pipeline.enrichment.report import named

    for work in _first(found, "similar_work"):
        same = any(one.get("ref") == work.get("ref") for one in _first(found, "likely_duplicates", None))
        yield (
            f"similar {work.get('similarity', 0):>3.0f} %",
            f"{'possibly the same: ' * same}{_name(work)}{_bracketed(*_ended(work))}",
        )
    if effort := found.get("effort_of_similar"):
        yield "effort", str(effort.get("text"))
    for decision in _first(found, "past_decisions"):
        yield "decision", f"{_name(decision)}{_bracketed(*_decided(decision))}"
    for doc in _first(found, "technical_docs"):
        yield "document", ": ".join([named(doc), *_first(doc, "relevant_sections")])
    for hint in _first(found, "risk_hints", MOST):
        yield f"risk {hint.get('severity')}", str(hint.get("message"))
    for suggestion in _first(found, "suggestions", MOST):
        yield "suggestion", str(suggestion)
    some = any(map(found.get, ("similar_work", "past_decisions", "technical_docs", "suggestions")))
    if not some and found.get("degradation_level", 0) < STATIC:
        yield "nothing", "no similar work, decision or document is in stock"


def _first(found: Json, key: str, most: int | None = 1) -> Sequence[Any]:
    return (found.get(key) or ())[:most]


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


def _decided(decision: Json) -> tuple[str, str | None]:
    """How a decision stands, and who answers for it."""
    from pipeline.enrichment.context import UNKNOWN

    status = decision.get("status") or UNKNOWN
    by = f" by {decision['superseded_by']}" if decision.get("superseded_by") else ""
    return ("status unknown" if status == UNKNOWN else status) + by, decision.get("assigned_architect")


def _name(one: Json) -> str:
    from pipeline.enrichment.report import named

    return _cut(named(one), LONGEST // 2)


def _bracketed(*facts: str | None) -> str:
    told = "; ".join(fact for fact in facts if fact)
    return f" ({told})" if told else ""


def _cut(text: str, longest: int = LONGEST) -> str:
    from pipeline.enrichment.text import printable

    line = printable(text)
    return line if len(line) <= longest else line[: longest - 1].rsplit(" ", 1)[0] + "…"
