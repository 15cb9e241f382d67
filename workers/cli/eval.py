"""The command that measures search: eval."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from pipeline.errors import ConfigurationError
from workers.cli.door import PARTLY, ConfigOption, Door, JsonOption, opened
from workers.settings import load

MEASURES = ("ndcg@10", "recall@5", "recall@10", "mrr@10")


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Holds corpus.jsonl, queries.jsonl, qrels.tsv and meta.json."),
    ],
    rankings: Annotated[
        Path | None,
        typer.Option("--rankings", metavar="FILE", help="Write {query id: [document ids]} there."),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="hybrid, vector or keyword.")] = "hybrid",
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="CONFIG2", help="Ask a second configuration the same questions."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Tell the thresholds this model and set ask for.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N questions.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what was indexed, so that the next time takes seconds.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure search on judged questions; nothing that is indexed already is touched."""
    with opened(config, as_json) as door, _interruptible():
        import os

        from workers import evaluation, scratch, searching
        from workers.judged import read

        chosen = searching.mode_of(mode)
        _check(rankings, calibrate=calibrate, chosen=chosen)
        other = load(compare, os.environ) if compare else None
        judged = read(folder, limit)
        with scratch.folder_for(door.settings, keep=keep) as place, _progress(door.console) as show:
            parts = scratch.open_runtime(door.settings, judged, place)
            first = evaluation.measure(parts, judged, chosen, show)
            told = first.to_json()
            if calibrate:
                told["calibration"] = evaluation.calibrate(parts, first)
            parts.database.close()
            if other is not None:
                parts = scratch.open_runtime(other, judged, place)
                second = evaluation.measure(parts, judged, chosen, show)
                parts.database.close()
                told["second"] = {"config": str(compare), **second.to_json()}
                told["comparison"] = evaluation.compare(first, second)
            if keep:
                told["kept"] = str(place / first.tenant)
        if rankings is not None:
            rankings.write_text(json.dumps(first.rankings, indent=1), encoding="utf-8")
        door.answer(told)
        if not as_json:
            _tell(door, told, {query: judged.queries[query] for query, _ in first.worst})
        if told["failed"]:
            raise typer.Exit(PARTLY)


def _check(rankings: Path | None, *, calibrate: bool, chosen: str) -> None:
    """Refuse now what would fail after minutes."""
    if calibrate and chosen == "keyword":
        raise ConfigurationError(
            "--calibrate needs similarities, and --mode keyword makes none", fix="leave --mode out"
        )
    if rankings is not None and rankings.is_dir():
        raise ConfigurationError(f"--rankings: {rankings} is a folder", fix="name a file")
    if rankings is not None and not rankings.resolve().parent.is_dir():
        raise ConfigurationError(f"--rankings: the folder of {rankings} does not exist", fix="make it first")


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
    with Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        bars: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=total)

        yield show


def _tell(door: Door, told: dict[str, Any], questions: dict[str, str]) -> None:
    console = door.console
    console.print(
        Text(
            f"{told['set']}: {told['documents']} documents, {told['judged']} judged questions, "
            f"{told['mode']}, {told['model']}"
        )
    )
    _table(console, told)
    _notes(console, told)
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


def _table(console: Console, told: dict[str, Any]) -> None:
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


def _notes(console: Console, told: dict[str, Any]) -> None:
    if told["failed"]:
        console.print(f"[yellow]{told['failed']} documents could not be indexed[/]")
    if told["degraded"]:
        console.print(f"[yellow]{told['degraded']} questions were answered below level 0[/]")
    if told["judged"] < told["queries"]:
        console.print(f"{told['queries'] - told['judged']} questions without a judgement are not counted")


def _calibration(console: Console, found: dict[str, Any]) -> None:
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
