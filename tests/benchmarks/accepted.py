"""The figures of the last accepted measurement, for `make eval` to compare with: accepted.json beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")


def compare(name: str, figures: Mapping[str, float], *, accept: bool) -> None:
    """Print what differs from the accepted figures of a set or project; with `accept` these are so from now on."""
    every: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    now = {figure: round(value, 3) for figure, value in figures.items()}
    before = every.get(name, {})
    told = [
        f"{figure} {before.get(figure, '-')} -> {now[figure]}"
        for figure in now
        if before.get(figure) != now[figure]
    ]
    print(f"  accepted -> now: {', '.join(told) or 'all the same'}")
    if accept:
        FILE.write_text(json.dumps({**every, name: now}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
