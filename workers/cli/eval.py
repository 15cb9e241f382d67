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
"""Characters of a question."""
Place = Path | None

_ALL = "Enrich all questions. [default: those in context_judgements.tsv]"


@dataclass(frozen=True)
class EvalOptions:
    """What is measured besides the search as it is configured, and what is written."""

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
    from workers import search
    from workers.admin.evaluation import measuring
    from workers.admin.evaluation.dataset import read

    mode = search.mode_of(options.mode)
    options.check_places()
    dataset = read(folder, options.limit)
    items = list(dataset.queries if options.step4 else dataset.context)
    if not items and any((options.answers, options.ungraded)):
        raise ConfigurationError("no question is judged for Step 4", fix="add --step4 to enrich all of them")
    baseline = options.fail_if_worse
    before = measuring.baseline(baseline, dataset, mode, items) if baseline else None
    first, told = _measure(context, dataset, mode, items, options)
    if before is not None:
        found = measuring.compare(before, told)
        told["baseline"] = {
            "file": str(baseline),
            "comparison": found,
            "worse": measuring.regressions(found),
            "not_compared": measuring.not_compared(before, told),
        }
    _write(options, first)
    context.answer(told, *_report(told, dataset.queries))
    if before is not None:
        for part in _against(told["baseline"]):
            context.console.print(part)
        if told["baseline"]["worse"]:
            raise typer.Exit(FAILED)
    if told["failed"]:
        raise typer.Exit(PARTLY)


def _measure(
    context: CommandContext, dataset: Any, mode: Any, items: Any, options: EvalOptions
) -> tuple[Any, Json]:
    """The answers as configured, and the report on them and on those of another configuration."""
    from workers.admin.evaluation import measuring, sandbox
    from workers.settings import load

    other = load(options.compare, os.environ) if options.compare else None
    with (
        sandbox.folder_for(context.settings, keep=options.keep) as place,
        progress_bars(context.console, transient=True) as progress,
    ):
        bars: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, note="")
            progress.update(bars[what], completed=done, total=total)

        parts = sandbox.open_runtime(context.settings, dataset, place)
        first = measuring.measure(parts, dataset, mode, show, items)
        told = first.report
        if options.calibrate:
            told["calibration"] = measuring.calibrate(parts, dataset)
        parts.database.close()
        if other is not None:
            parts = sandbox.open_runtime(other, dataset, place)
            second = measuring.measure(parts, dataset, mode, show, items).report
            parts.database.close()
            told["second"] = {**second, "config": str(options.compare)}
            told["comparison"] = measuring.compare(told, second)
        if options.keep:
            told["kept"] = str(place / told["tenant"])
    return first, told


def _write(options: EvalOptions, measured: Any) -> None:
    """What was asked for beside the report."""
    from workers.admin.evaluation.dataset import table_row

    if options.rankings:
        options.rankings.write_text(json.dumps(measured.rankings, indent=1), encoding="utf-8")
    if options.answers:
        options.answers.write_text(json.dumps(measured.step4.answers, indent=1), encoding="utf-8")
    if options.ungraded:
        rows = [("item", "section", "ref", "grade", "shown"), *measured.step4.ungraded()]
        options.ungraded.write_text("".join(table_row(*row) for row in rows), encoding="utf-8")


def _report(told: Json, questions: Mapping[str, str]) -> Iterator[RenderableType]:
    """The report for a person."""
    counts = f"{plural(told['documents'], 'document')}, {plural(told['judged'], 'judged question')}"
    yield f"{told['set']}: {counts}, {told['mode']}, {told['model']}\n"
    yield from _scores(told)
    if told["failed"]:
        yield Text(f"{plural(told['failed'], 'document')} could not be indexed", style="yellow")
    if told["degraded"]:
        yield Text(f"answered below level 0: {plural(told['degraded'], 'question')}", style="yellow")
    if told["judged"] < told["queries"]:
        yield f"not counted: {plural(told['queries'] - told['judged'], 'question')} without a judgement"
    if "step4" in told:
        yield from _step4(told["step4"])
    if others := {name: one for name, one in told.get("comparison", {}).items() if name not in MEASURES}:
        yield _changes(others)
    if found := told.get("calibration"):
        kept = f"keeps {found['kept_share']:.0%} of {found['pairs']} relevant documents"
        yield f"\nminSimilarity {found['min_similarity']} {kept}"
    worst = (
        (f"{one['ndcg@10']:.3f}", one["id"], shorten(questions[one["id"]], LONGEST, placeholder=" ..."))
        for one in told["worst"]
    )
    yield ""
    yield table(("nDCG@10", "answered worst", ""), worst)
    if "kept" in told:
        yield f"\nkept in {told['kept']}, tenant {told['tenant']}"


def _scores(told: Json) -> Iterator[RenderableType]:
    rows, found = [("", told)], []
    if "comparison" in told:
        rows = [("first", told), ("second", told["second"])]
        found = [told["comparison"][m] for m in MEASURES]
    cells = [
        [name, *(f"{one['scores'][m]:.3f}" for m in MEASURES), f"{one['seconds']['p50'] * 1000:.0f}"]
        for name, one in rows
    ]
    ends = (("difference", "difference"), ("  95 % from", "low"), ("  95 % to", "high"))
    cells += [[name, *(f"{one[key]:+.3f}" for one in found)] for name, key in ends if found]
    figures = (*MEASURES.values(), "ms")
    yield table(("", *figures), cells, right=figures)
    if found:
        better = "better" if found[0]["difference"] > 0 else "worse"
        yield f"nDCG@10: {f'the second is {better}' if found[0]['certain'] else 'the difference may be chance'}"


def _step4(told: Json) -> Iterator[RenderableType]:
    p50, p95 = (1000 * told["seconds"][name] for name in ("p50", "p95"))
    items = plural(len(told["items"]), "item")
    yield Text(f"\nStep 4: {items}, p50 {p50:.0f} ms, p95 {p95:.0f} ms", style="bold")
    rows = []
    for name, one in (*told["sections"].items(), ("all", told["all"])):
        p = one["precision"]
        precise = f"{p['mean']:.2f} {p['low']:.2f}-{p['high']:.2f}" if p else "-"
        rows.append((name, *(one[key] for key in SECTION), precise, one["empty"]))
    figures = (*SECTION, "precision", "empty")
    yield table(("", *figures), rows, right=figures)
    if told["degraded"]:
        yield Text(f"enriched below level 0: {plural(told['degraded'], 'item')}", style="yellow")


def _against(told: Json) -> Iterator[RenderableType]:
    """What became of the figures of the baseline."""
    for name, why in told["not_compared"].items():
        yield Text(f"\nnot compared: {name} ({why})")
    if told["worse"]:
        yield Text(f"\nworse than in {told['file']}:", style="bold red")
        yield _changes({name: told["comparison"][name] for name in told["worse"]})
    else:
        yield Text(f"\nno measure is worse than in {told['file']} beyond chance")


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
    from workers.admin.evaluation import dataset

    context.ping()
    made = dataset.build(context.parts, context.tenant, out)
    pairs = ", ".join(f"{made.get(name, 0)} by {name}" for name in dataset.REASONS)
    said = (
        f"{out} holds the texts of {plural(made['documents'], 'document')} and "
        f"{plural(made['queries'], 'question')}: keep it as safe as the documents\n"
        f"pairs: {pairs}\nnext: larder eval {out} --ungraded FILE"
    )
    context.answer({"success": True, "folder": str(out), **made}, said)
