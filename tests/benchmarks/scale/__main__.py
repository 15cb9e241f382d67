"""How Larder grows: what waits, what is searched, and what there is to turn when one store gets too large.

    python -m tests.benchmarks.scale [--texts FOLDER...] [--due 1000 ...] [--chunks 10000 ...] [--processes 1 2 4]
        [--levers 100000] [--data FOLDER] [--only due search levers] [--plots FOLDER]

FOLDER of texts is a set as `quality.py` takes it; without one the docstrings of Python itself are cut and embedded. Prints
a row as soon as it is there, and writes tests/benchmarks/out/scale.json, which `--plots` draws from.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.bench import OUT
from tests.benchmarks.scale import ledger, levers, plot, search
from tests.benchmarks.scale.store import Store
from tests.benchmarks.scale.vectors import Blend, read
from workers.local import embedded

REPORT = OUT / "scale.json"


class Report:
    """Rows by part, kept after each one, since a run takes hours."""

    @property
    def parts(self) -> dict[str, Any]:
        """As they are by now: another run may do another part."""
        found: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {}
        return found

    def put(self, part: str, key: str, row: Any) -> None:
        """One row, in place of that of an earlier run."""
        parts = self.parts
        parts.setdefault(part, {})[key] = row
        OUT.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(parts, indent=1, default=asdict))
        print(part, key, json.dumps(row, default=asdict), flush=True)

    def of(self, part: str) -> list[tuple[int, Any]]:
        """Rows of a part whose keys are sizes, the smallest first."""
        rows = self.parts.get(part, {})
        return sorted((int(key), row) for key, row in rows.items() if key.isdigit())


def due(report: Report, folder: Path, sizes: Sequence[int]) -> None:
    """What waits."""
    for row in ledger.measure(folder, sizes):
        report.put("due", str(row.pop("documents", f"{row.get('tenants')} tenants")), row)


def searches(report: Report, folder: Path, args: argparse.Namespace) -> None:
    """What is searched, and the levers at their size."""
    blend = Blend(read(args.texts))
    report.put("search", "vectors", {"real": len(blend.texts.chunks), **blend.likeness()})
    store = Store(folder, blend)
    for size in args.chunks:
        took = {"loaded": store.grow(size), **store.build()}
        row = {"took": {name: asdict(t) for name, t in took.items()}, "bytes": store.sizes()}
        report.put("search", str(size), row)
        row |= search.measure(store, args.processes)
        report.put("search", str(size), row | {"memory_mb": store.memory() / 1e6})
        if size in args.levers:
            report.put("bits", str(size), levers.bits(store))
            report.put("parts", str(size), levers.parts(store, size))
            report.put("replica", str(size), levers.replica(store, folder))
    store.database.close()


def plots(report: Report, folder: Path) -> None:
    """The figures as lines."""
    rows = report.of("search")
    took = {
        name: [(n, row[name]["cpu_p50_ms"]) for n, row in rows]
        for name in ("vector", "hybrid", "vector, filter of 1 %", "hybrid, filter of 1 %")
    }
    builds = ("loaded", "words counted", "keyword index", "vector index")
    drawn = {
        "search": plot.lines("A search", "chunks", "ms of the processor, p50", took),
        "build": plot.lines(
            "Building",
            "chunks",
            "seconds of the processor",
            {name: [(n, row["took"][name]["cpu"]) for n, row in rows] for name in builds},
        ),
        "due": plot.lines(
            "While documents wait",
            "documents that are due",
            "ms of the processor",
            {
                "a full tick": [(n, row["looks"]["pump"]["cpu"]) for n, row in report.of("due")],
                "an idle tick": [(n, row["looks"]["idle tick"]["cpu"]) for n, row in report.of("due")],
                "status": [(n, row["looks"]["status, all of it"]["cpu"]) for n, row in report.of("due")],
                "one more document": [(n, row["document_ms"]) for n, row in report.of("due")],
            },
        ),
    }
    for name, svg in drawn.items():
        (folder / f"scale-{name}.svg").write_text(svg, encoding="utf-8")


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--due", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--chunks", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--levers", type=int, nargs="*", default=[100_000])
    parser.add_argument("--data", type=Path, help="where the servers' folders are made and removed")
    parser.add_argument("--only", nargs="*", choices=["due", "search"], default=["due", "search"])
    parser.add_argument(
        "--plots", type=Path, help="draw what was measured into this folder, and do nothing else"
    )
    args = parser.parse_args()
    report = Report()
    if args.plots:
        plots(report, args.plots)
        return 0
    for part in args.only:
        folder = Path(tempfile.mkdtemp(prefix="larder-scale-", dir=args.data))
        try:
            due(report, folder, args.due) if part == "due" else searches(report, folder, args)
        finally:
            embedded.stop(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
