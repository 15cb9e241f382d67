"""Small plots as SVG, drawn by hand: lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 130, 34, 40
COLOURS = ("#1f5fa8", "#c4511d", "#2d7d46", "#7a3b8f", "#8a6d1a", "#555555")

Points = Sequence[tuple[float, float]]


def lines(title: str, across: str, unit: str, series: Mapping[str, Points]) -> str:
    """An SVG of all series, both axes logarithmic; points of 0 are left out."""
    series = {name: [(x, y) for x, y in points if y > 0] for name, points in series.items()}
    all_x = [x for points in series.values() for x, _ in points]
    all_y = [y for points in series.values() for _, y in points]
    x_from, x_to = _decades(all_x)
    y_from, y_to = _decades(all_y)

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            LEFT + wide * (math.log10(x) - x_from) / (x_to - x_from),
            TOP + high * (1 - (math.log10(y) - y_from) / (y_to - y_from)),
        )

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for decade in range(x_from, x_to + 1):
        x, bottom = place(10**decade, 10**y_from)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle">10^{decade}</text>')
    for decade in range(y_from, y_to + 1):
        left, y = place(10**x_from, 10**decade)
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(across)}; {escape(unit)}</text>')
    ends: list[float] = []
    for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
        if not points:
            continue
        at = [place(x, y) for x, y in points]
        way = " L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        parts.append(f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in at]
        ends.append(_free(at[-1][1] + 4, ends))
        label = f'<text x="{WIDTH - RIGHT + 6}" y="{ends[-1]:.1f}" fill="{colour}">{escape(name)}</text>'
        parts.append(label)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _free(y: float, taken: Sequence[float]) -> float:
    """The next place below that no other label has."""
    while any(abs(y - other) < 12 for other in taken):
        y += 4
    return y
