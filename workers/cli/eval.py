"""larder eval: search and Step 4 measured on judged questions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from typer import Argument, Option
from typer.core import TyperGroup

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, PARTLY, CommandContext, command
from workers.cli.tables import progress_bars, table

MEASURE = "measure"
"""The command that is meant when none is named."""


class MeasureByDefault(TyperGroup):
    """`larder eval DIR` is `larder eval measure DIR`; a folder that is called like a command is written ./build."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command's name before arguments that begin with no command."""
        named = args[:1] in [[name] for name in (*self.commands, *ctx.help_option_names)]
        return super().parse_args(ctx, args if named else [MEASURE, *args])


app = typer.Typer(
    cls=MeasureByDefault,
    help="Measure search and Step 4: `larder eval DIR` is short for `larder eval measure DIR`.",
)
MEASURES = {"ndcg@10": "nDCG@10", "recall@5": "recall@5", "recall@10": "recall@10", "mrr@10": "MRR@10"}
SECTION = ("shown", "useful", "related", "noise", "unjudged")
LONGEST = 100
"""Most characters of a question on the screen."""
Place = Path | None

_ALL = "Enrich all questions. [default: those in context_judgements.tsv]"


@dataclass(frozen=True)
class EvalOptions:
    """Options of a measurement, and the files that it writes."""

    rankings: Annotated[Place, Option(metavar="FILE", help="Write {query id: [document ids]} there.")] = None
    mode: Annotated[str, Option(help="hybrid, vector or keyword.")] = "hybrid"
    compare: Annotated[
        Place, Option(metavar="CONFIG2", help="Ask a second configuration the same questions.")
    ] = None
    calibrate: Annotated[
        bool, Option("--calibrate", help="Tell the minSimilarity this model and set ask for.")
    ] = False
    limit: Annotated[int | None, Option(min=1, help="Only the first N questions.")] = None
    keep: Annotated[
        bool, Option("--keep", help="Keep what was indexed, so that the next time takes seconds.")
    ] = False
    step4: Annotated[bool, Option("--step4", help=_ALL)] = False
    answers: Annotated[Place, Option(metavar="FILE", help="Write {query id: answer of Step 4} there.")] = None
    ungraded: Annotated[
        Place, Option(metavar="FILE", help="Write there what Step 4 shows and nobody has judged.")
    ] = None
    fail_if_worse: Annotated[
        Place, Option(metavar="BASELINE", help="Exit 1 if worse than this --json report.")
    ] = None

    def check_places(self) -> None:
        """Refuse now what could not be written after minutes."""
        for name in ("rankings", "answers", "ungraded"):
            place: Path | None = getattr(self, name)
            if place is not None and place.is_dir():
                raise ConfigurationError(f"--{name}: {place} is a folder", fix="name a file")
            if place is not None and not place.resolve().parent.is_dir():
                raise ConfigurationError(
                    f"--{name}: the folder of {place} does not exist", fix="make it first"
                )


@command(app, MEASURE, without={"data"})
def evaluate(
    context: CommandContext,
    folder: Annotated[
        Path, Argument(metavar="DIR", help="Holds corpus.jsonl, queries.jsonl, qrels.tsv and meta.json.")
    ],
    options: EvalOptions,
) -> None:
    """Measure search and Step 4 on judged questions; nothing that is indexed already is touched.

    Exit codes: 0 measured, 1 worse than the baseline, 2 the set, the baseline or the configuration is wrong,
    3 measured, but some documents could not be indexed.
    """
    from workers.app import search
    from workers.app.evaluation import measuring
    from workers.app.evaluation.dataset import read

    mode = search.mode_of(options.mode)
    options.check_places()
    dataset = read(folder, options.limit)
    items = list(dataset.queries if options.step4 else dataset.context)
    if not items and any((options.answers, options.ungraded)):
        raise ConfigurationError("no question is judged for Step 4", fix="add --step4 to enrich all of them")
    baseline = options.fail_if_worse
    before = measuring.baseline(baseline, dataset, mode, items) if baseline else None
    first, report = _measure(context, dataset, mode, items, options)
    if before is not None:
        changes = measuring.compare(before, report)
        report["baseline"] = {
            "file": str(baseline),
            "comparison": changes,
            "worse": measuring.regressions(changes),
            "not_compared": measuring.not_compared(before, report),
        }
    _write(options, first)
    context.answer(report, *_report(report, dataset.queries))
    if before is not None:
        for part in _against(report["baseline"]):
            context.console.print(part)
        if report["baseline"]["worse"]:
            raise typer.Exit(FAILED)
    if report["failed"]:
        raise typer.Exit(PARTLY)


def _measure(
    context: CommandContext, dataset: Any, mode: Any, items: Any, options: EvalOptions
) -> tuple[Any, Json]:
    """The answers as configured, and the report on them and on those of another configuration."""
    from workers.app.evaluation import measuring, sandbox
    from workers.settings import load

    other = load(options.compare, os.environ) if options.compare else None
    with (
        sandbox.folder_for(context.settings, keep=options.keep) as place,
        progress_bars(context.console, transient=True) as progress,
    ):
        bars: dict[str, Any] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in bars:
                bars[step] = progress.add_task(step, note="")
            progress.update(bars[step], completed=done, total=total)

        runtime = sandbox.open_runtime(context.settings, dataset, place)
        first = measuring.measure(runtime, dataset, mode, show, items)
        report = first.report
        if options.calibrate:
            report["calibration"] = measuring.calibrate(runtime, dataset)
        runtime.database.close()
        if other is not None:
            runtime = sandbox.open_runtime(other, dataset, place)
            second = measuring.measure(runtime, dataset, mode, show, items).report
            runtime.database.close()
            report["second"] = {**second, "config": str(options.compare)}
            report["comparison"] = measuring.compare(report, second)
        if options.keep:
            report["kept"] = str(place / report["tenant"])
    return first, report


def _write(options: EvalOptions, measured: Any) -> None:
    """Write the files that were asked for beside the report."""
    from workers.app.evaluation.dataset import table_row

    if options.rankings:
        options.rankings.write_text(json.dumps(measured.rankings, indent=1), encoding="utf-8")
    if options.answers:
        options.answers.write_text(json.dumps(measured.step4.answers, indent=1), encoding="utf-8")
    if options.ungraded:
        rows = [("item", "section", "ref", "grade", "shown"), *measured.step4.ungraded()]
        options.ungraded.write_text("".join(table_row(*row) for row in rows), encoding="utf-8")


def _report(report: Json, questions: Mapping[str, str]) -> Iterator[RenderableType]:
    """The report for a person."""
    counts = f"{plural(report['documents'], 'document')}, {plural(report['judged'], 'judged question')}"
    yield f"{report['set']}: {counts}, {report['mode']}, {report['model']}\n"
    yield from _scores(report)
    if report["failed"]:
        yield Text(f"{plural(report['failed'], 'document')} could not be indexed", style="yellow")
    if report["degraded"]:
        yield Text(f"answered below level 0: {plural(report['degraded'], 'question')}", style="yellow")
    if report["judged"] < report["queries"]:
        yield f"not counted: {plural(report['queries'] - report['judged'], 'question')} without a judgement"
    if "step4" in report:
        yield from _step4(report["step4"])
    if step4_changes := {
        name: one for name, one in report.get("comparison", {}).items() if name not in MEASURES
    }:
        yield _changes(step4_changes)
    if calibration := report.get("calibration"):
        share = f"keeps {calibration['kept_share']:.0%} of {calibration['pairs']} relevant documents"
        yield f"\nminSimilarity {calibration['min_similarity']} {share}"
    worst = (
        (f"{one['ndcg@10']:.3f}", one["id"], shorten(questions[one["id"]], LONGEST, placeholder=" ..."))
        for one in report["worst"]
    )
    yield ""
    yield table(("nDCG@10", "answered worst", ""), worst)
    if "kept" in report:
        yield f"\nkept in {report['kept']}, tenant {report['tenant']}"


def _scores(report: Json) -> Iterator[RenderableType]:
    rows, changes = [("", report)], []
    if "comparison" in report:
        rows = [("first", report), ("second", report["second"])]
        changes = [report["comparison"][m] for m in MEASURES]
    cells = [
        [name, *(f"{one['scores'][m]:.3f}" for m in MEASURES), f"{one['seconds']['p50'] * 1000:.0f}"]
        for name, one in rows
    ]
    ends = (("difference", "difference"), ("  95 % from", "low"), ("  95 % to", "high"))
    cells += [[name, *(f"{one[key]:+.3f}" for one in changes)] for name, key in ends if changes]
    figures = (*MEASURES.values(), "ms")
    yield table(("", *figures), cells, right=figures)
    if changes:
        better = "better" if changes[0]["difference"] > 0 else "worse"
        yield f"nDCG@10: {f'the second is {better}' if changes[0]['certain'] else 'the difference may be chance'}"


def _step4(summary: Json) -> Iterator[RenderableType]:
    p50, p95 = (1000 * summary["seconds"][name] for name in ("p50", "p95"))
    items = plural(len(summary["items"]), "item")
    yield Text(f"\nStep 4: {items}, p50 {p50:.0f} ms, p95 {p95:.0f} ms", style="bold")
    rows = []
    for name, one in (*summary["sections"].items(), ("all", summary["all"])):
        p = one["precision"]
        precise = f"{p['mean']:.2f} {p['low']:.2f}-{p['high']:.2f}" if p else "-"
        rows.append((name, *(one[key] for key in SECTION), precise, one["empty"]))
    figures = (*SECTION, "precision", "empty")
    yield table(("", *figures), rows, right=figures)
    if summary["degraded"]:
        yield Text(f"enriched below level 0: {plural(summary['degraded'], 'item')}", style="yellow")


def _against(baseline: Json) -> Iterator[RenderableType]:
    """Changes from the baseline, for a person."""
    for name, why in baseline["not_compared"].items():
        yield Text(f"\nnot compared: {name} ({why})")
    if baseline["worse"]:
        yield Text(f"\nworse than in {baseline['file']}:", style="bold red")
        yield _changes({name: baseline["comparison"][name] for name in baseline["worse"]})
    else:
        yield Text(f"\nno measure is worse than in {baseline['file']} beyond chance")


def _changes(changes: Json) -> Table:
    rows = (
        (name, f"{one['difference']:+.3f}", f"{one['low']:+.3f} to {one['high']:+.3f}")
        for name, one in changes.items()
    )
    return table(("", "change", "95 %"), rows)


@command(app, answer_timeout=LONG_ANSWER_TIMEOUT)
def build(
    context: CommandContext,
    out: Annotated[Path, Argument(metavar="OUT", help="A new folder, which only you can read.")],
) -> None:
    """Make a set from what is indexed: duplicates, relations, decisions that name items. It holds document texts."""
    from workers.app.evaluation import dataset

    context.ping()
    counts = dataset.build(context.runtime, context.tenant, out)
    pairs = ", ".join(f"{counts.get(name, 0)} by {name}" for name in dataset.REASONS)
    message = (
        f"{out} holds the texts of {plural(counts['documents'], 'document')} and "
        f"{plural(counts['queries'], 'question')}: keep it as safe as the documents\n"
        f"pairs: {pairs}\nnext: larder eval {out} --ungraded FILE"
    )
    context.answer({"success": True, "folder": str(out), **counts}, message)
