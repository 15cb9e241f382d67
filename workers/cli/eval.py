"""larder eval: search and Step 4 measured on judged questions."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, PARTLY, CommandContext, command
from workers.cli.tables import progress_bars

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
MEASURES = ("ndcg@10", "recall@5", "recall@10", "mrr@10")


def _file(name: str, help_: str, metavar: str = "FILE") -> Any:
    return typer.Option(name, metavar=metavar, help=help_)


@app.command(MEASURE)
@command(without={"data"})
def evaluate(
    context: CommandContext,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Holds corpus.jsonl, queries.jsonl, qrels.tsv and meta.json."),
    ],
    rankings: Annotated[Path | None, _file("--rankings", "Write {query id: [document ids]} there.")] = None,
    mode: Annotated[str, typer.Option("--mode", help="hybrid, vector or keyword.")] = "hybrid",
    compare: Annotated[
        Path | None, _file("--compare", "Ask a second configuration the same questions.", "CONFIG2")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Tell the thresholds this model and set ask for.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N questions.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what was indexed, so that the next time takes seconds.")
    ] = False,
    step4: Annotated[
        bool, typer.Option("--step4", help="Enrich all questions. [default: those in context_judgements.tsv]")
    ] = False,
    answers: Annotated[Path | None, _file("--answers", "Write {query id: answer of Step 4} there.")] = None,
    ungraded: Annotated[
        Path | None, _file("--ungraded", "Write there what Step 4 shows and nobody has judged.")
    ] = None,
    fail_if_worse: Annotated[
        Path | None, _file("--fail-if-worse", "Exit 1 if worse than this --json report.", "BASELINE")
    ] = None,
) -> None:
    """Measure search and Step 4 on judged questions; nothing that is indexed already is touched.

    Exit codes: 0 measured, 1 worse than the baseline, 2 the set, the baseline or the configuration is wrong,
    3 measured, but some documents could not be indexed.
    """
    from workers import search
    from workers.admin.evaluation import measuring
    from workers.admin.evaluation.dataset import read
    from workers.settings import load

    chosen = search.mode_of(mode)
    files = {"--rankings": rankings, "--answers": answers, "--ungraded": ungraded}
    _check(files, calibrate=calibrate, chosen=chosen)
    other = load(compare, os.environ) if compare else None
    dataset = read(folder, limit)
    items = _items(dataset, every=step4, wanted=answers or ungraded)
    before = measuring.baseline(fail_if_worse, dataset, chosen, items) if fail_if_worse else None
    with _interruptible():
        first, told = _measure(context, dataset, chosen, items, other, calibrate=calibrate, keep=keep)
    if other is not None:
        told["second"]["config"] = str(compare)
    if before is not None:
        told["baseline"] = {"file": str(fail_if_worse), **_held_against(before, told)}
    _write(files, first)
    context.answer(told, lambda: _tell(context.console, told, dataset.queries))
    if before is not None:
        _tell_baseline(context.console, told["baseline"])
    if code := _exit_code(told):
        raise typer.Exit(code)


def _items(dataset: Any, *, every: bool, wanted: Path | None) -> list[str]:
    """The questions that Step 4 is asked."""
    items = list(dataset.queries if every else dataset.context)
    if wanted and not items:
        raise ConfigurationError("no question is judged for Step 4", fix="add --step4 to enrich all of them")
    return items


def _held_against(before: Any, told: Json) -> Json:
    """What differs from the baseline."""
    from workers.admin.evaluation import measuring

    found = measuring.compare(before, told)
    return {
        "comparison": found,
        "worse": measuring.worse(found),
        "not_compared": measuring.not_compared(before, told),
    }


def _exit_code(told: Json) -> int:
    if "baseline" in told and told["baseline"]["worse"]:
        return FAILED
    return PARTLY if told["failed"] else 0


def _measure(
    context: CommandContext, dataset: Any, mode: Any, items: Any, other: Any, *, calibrate: bool, keep: bool
) -> tuple[Any, Json]:
    """The answers as configured, and the report on them and on those of another configuration."""
    from workers.admin.evaluation import measuring, sandbox

    with sandbox.folder_for(context.settings, keep=keep) as place, _progress(context.console) as show:
        parts = sandbox.open_runtime(context.settings, dataset, place)
        first = measuring.measure(parts, dataset, mode, show, items)
        told = first.to_json()
        if calibrate:
            told["calibration"] = measuring.calibrate(parts, first)
        parts.database.close()
        if other is not None:
            parts = sandbox.open_runtime(other, dataset, place)
            told["second"] = measuring.measure(parts, dataset, mode, show, items).to_json()
            parts.database.close()
            told["comparison"] = measuring.compare(told, told["second"])
        if keep:
            told["kept"] = str(place / first.tenant)
    return first, told


@app.command()
@command(answer_timeout=LONG_ANSWER_TIMEOUT)
def build(
    context: CommandContext,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder, which only you can read.")],
) -> None:
    """Make a set from what is indexed: duplicates, relations, decisions that name items. It holds document texts."""
    from workers.admin.evaluation import set_builder

    context.ping()
    made = set_builder.build(context.parts, context.tenant, out)
    pairs = ", ".join(f"{made.get(name, 0)} by {name}" for name in set_builder.REASONS)
    said = (
        f"{out} holds the texts of {made['documents']} documents and {made['queries']} questions: keep it as "
        f"safe as the documents\npairs: {pairs}\nnext: larder eval {out} --ungraded FILE"
    )
    context.answer({"success": True, "folder": str(out), **made}, said)


def _write(files: dict[str, Path | None], measured: Any) -> None:
    """What was asked for beside the report."""
    from workers.admin.evaluation.dataset import table_row

    if place := files["--rankings"]:
        place.write_text(json.dumps(measured.rankings, indent=1), encoding="utf-8")
    if place := files["--answers"]:
        place.write_text(json.dumps(measured.step4.answers, indent=1), encoding="utf-8")
    if place := files["--ungraded"]:
        rows = [("item", "section", "ref", "grade", "shown"), *measured.step4.ungraded()]
        place.write_text("".join(table_row(*row) for row in rows), encoding="utf-8")


def _check(files: dict[str, Path | None], *, calibrate: bool, chosen: str) -> None:
    """Refuse now what would fail after minutes."""
    if calibrate and chosen == "keyword":
        raise ConfigurationError(
            "--calibrate needs similarities, and --mode keyword makes none", fix="leave --mode out"
        )
    for option, place in files.items():
        if place is not None and place.is_dir():
            raise ConfigurationError(f"{option}: {place} is a folder", fix="name a file")
        if place is not None and not place.resolve().parent.is_dir():
            raise ConfigurationError(f"{option}: the folder of {place} does not exist", fix="make it first")


@contextmanager
def _interruptible() -> Iterator[None]:
    """A request to end works like Ctrl-C: the servers that were started are stopped, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(console: Console) -> Iterator[Any]:
    """One bar per kind of work."""
    with progress_bars(console, transient=True) as progress:
        bars: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, note="")
            progress.update(bars[what], completed=done, total=total)

        yield show


def _tell(console: Console, told: Json, questions: Mapping[str, str]) -> None:
    console.print(
        Text(
            f"{told['set']}: {told['documents']} documents, {told['judged']} judged questions, "
            f"{told['mode']}, {told['model']}"
        )
    )
    _table(console, told)
    _notes(console, told)
    if "step4" in told:
        _step4(console, told["step4"])
    if "comparison" in told:
        _changes(console, {n: one for n, one in told["comparison"].items() if n not in MEASURES})
    if "calibration" in told:
        _calibration(console, told["calibration"])
    console.print("\nanswered worst", style="bold")
    for one in told["worst"]:
        line = Text(f"{one['ndcg@10']:>9.3f}  {one['id']}  ")
        line.append(" ".join(questions[one["id"]].split()), style="dim")
        line.truncate(min(console.width, 100), overflow="ellipsis")
        console.print(line, no_wrap=True)
    if "kept" in told:
        console.print(f"\nkept in {told['kept']}, tenant {told['tenant']}", soft_wrap=True)


def _table(console: Console, told: Json) -> None:
    console.print(
        f"\n{'':14}{'nDCG@10':>10}{'recall@5':>10}{'recall@10':>11}{'MRR@10':>9}{'ms':>7}", style="bold"
    )
    rows = [("", told)]
    if "comparison" in told:
        rows = [("first", told), ("second", told["second"])]
    for name, one in rows:
        a, b, c, d = (one["scores"][measure] for measure in MEASURES)
        console.print(f"{name:14}{a:10.3f}{b:10.3f}{c:11.3f}{d:9.3f}{one['seconds']['p50'] * 1000:7.0f}")
    if "comparison" not in told:
        return
    found = [told["comparison"][measure] for measure in MEASURES]
    widths = (10, 10, 11, 9)
    for name, key in (("difference", "difference"), ("  95 % from", "low"), ("  95 % to", "high")):
        cells = (f"{one[key]:+{width}.3f}" for one, width in zip(found, widths, strict=True))
        console.print(f"{name:14}{''.join(cells)}")
    better = "better" if found[0]["difference"] > 0 else "worse"
    told_apart = f"the second is {better}" if found[0]["certain"] else "the difference may be chance"
    console.print(f"nDCG@10: {told_apart}")


def _step4(console: Console, told: Json) -> None:
    p50, p95 = (1000 * told["seconds"][name] for name in ("p50", "p95"))
    console.print(f"\nStep 4: {len(told['items'])} items, p50 {p50:.0f} ms, p95 {p95:.0f} ms", style="bold")
    console.print(
        f"{'':18}{'shown':>6}{'useful':>8}{'related':>9}{'noise':>7}{'unjudged':>10}{'precision':>14}{'empty':>8}"
    )
    for name, one in (*told["sections"].items(), ("all", told["all"])):
        p = one["precision"]
        precise = f"{p['mean']:.2f} {p['low']:.2f}-{p['high']:.2f}" if p else "-"
        console.print(
            f"{name:18}{one['shown']:6}{one['useful']:8}{one['related']:9}{one['noise']:7}{one['unjudged']:10}"
            f"{precise:>15}{one['empty']:7}"
        )
    if told["degraded"]:
        console.print(f"[yellow]{told['degraded']} items were enriched below level 0[/]")


def _tell_baseline(console: Console, told: Json) -> None:
    for name, why in told["not_compared"].items():
        console.print(f"\nnot compared: {name} ({why})", markup=False)
    if not told["worse"]:
        console.print(f"\nno measure is worse than in {told['file']} beyond chance", markup=False)
        return
    console.print(f"\nworse than in {told['file']}:", style="bold red", markup=False)
    _changes(console, {name: told["comparison"][name] for name in told["worse"]})


def _changes(console: Console, changes: Json) -> None:
    for name, one in changes.items():
        console.print(f"  {name:28}{one['difference']:+.3f}  95 %: {one['low']:+.3f} to {one['high']:+.3f}")


def _notes(console: Console, told: Json) -> None:
    if told["failed"]:
        console.print(f"[yellow]{told['failed']} documents could not be indexed[/]")
    if told["degraded"]:
        console.print(f"[yellow]{told['degraded']} questions were answered below level 0[/]")
    if told["judged"] < told["queries"]:
        console.print(f"{told['queries'] - told['judged']} questions without a judgement are not counted")


def _calibration(console: Console, found: Json) -> None:
    console.print("\ncalibration", style="bold")
    if found["min_similarity"] is not None:
        console.print(
            f"  minSimilarity {found['min_similarity']:.3f} keeps {found['kept_share']:.0%} of "
            f"{found['pairs']} relevant documents"
        )
    best = found["duplicate"]
    if best is None:
        console.print(f"  no relevant document among the first {found['duplicate_within']} results")
        return
    console.print(
        f"  duplicate from {best['value']:.3f} among the first {found['duplicate_within']}: "
        f"precision {best['precision']:.2f}, recall {best['recall']:.2f}, F1 {best['f1']:.2f}"
    )
