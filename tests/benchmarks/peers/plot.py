"""The plots of docs/performance.md, from the JSON that compare.py writes.

python -m tests.benchmarks.peers.plot tests/benchmarks/out/peers.json docs
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, ROW = 520, 130, 60, 22


def bars(title: str, values: Mapping[str, float]) -> str:
    """An SVG of one bar for each value, longest first."""
    most = max(values.values())
    height = 44 + ROW * len(values)
    parts = [f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>']
    for place, (name, value) in enumerate(sorted(values.items(), key=lambda item: -item[1])):
        y, wide = 34 + ROW * place, (WIDTH - LEFT - RIGHT) * value / most
        colour = "#1f5fa8" if name == "larder" else "#9aa5b1"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="16" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + wide + 5:.1f}" y="{y + 12}">{value:.3g}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        f' font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def medians(rows: list[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> dict[str, float]:
    """Peer -> the median over its rounds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["peer"], []).append(value(row))
    return {peer: statistics.median(values) for peer, values in found.items()}


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["read"] / row["first"]["processor"])


def _share(row: Mapping[str, Any]) -> float:
    return float(100 * row["read"] / row["tokens"])


def main() -> int:
    source, target = map(Path, sys.argv[1:])
    rows = json.loads(source.read_text())
    plots = {
        "tokens": bars("Tokens embedded for a processor second", medians(rows, _rate)),
        "read": bars("Of a hundred tokens of the chunks, those in a vector", medians(rows, _share)),
    }
    for name, plot in plots.items():
        (target / f"performance-{name}.svg").write_text(plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
