"""Conversion of the XML in test cases and shared steps: steps, parameters and rows of values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress

from connectors.markup.elements import to_markdown
from connectors.markup.parsing import Element, parse

MOST_TEXT = 100_000
"""Most characters of one step."""
MOST_ROWS = 500
_XML = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<(?:steps|parameters|parameterSet|NewDataSet)\b", re.IGNORECASE)


def structured_text(text: str, label: Callable[[int], str]) -> str:
    """Steps as a numbered list, or parameters or their values as a table; empty for other text.

    `label` returns the name of another work item whose steps are included.
    """
    if text.lstrip().startswith("{"):
        return _shared_values(text, label)
    if not _XML.match(text):
        return ""
    page, _ = parse(text)
    elements = list(page.within())
    if steps := _steps(elements, label):
        return steps
    names = [element.get("name") for element in elements if element.name == "param" and element.get("name")]
    return _rows(elements) or ", ".join(f"@{name}" for name in dict.fromkeys(names))


def _steps(elements: list[Element], label: Callable[[int], str]) -> str:
    lines: list[str] = []
    count = 0
    for element in elements:
        if element.name == "compref" and element.get("ref").isdecimal():  # later steps may be children of it
            texts = [f"Shared steps: {label(int(element.get('ref')[:12]))}"]
        elif element.name == "step":
            texts = [_text(inner) for inner in element.within() if inner.name == "parameterizedstring"]
        else:
            continue
        if any(texts):
            action, *expected = texts
            count += 1
            number = f"{count}. "
            lines.append(number + _inset(action or "(no action)", len(number)))
            lines += [
                f"{' ' * len(number)}- Expected: {_inset(text, len(number) + 2)}" for text in expected if text
            ]
    return "\n".join(lines)


def _text(string: Element) -> str:
    """Text of HTML within XML, whose entities the parser has resolved."""
    html = string.content(MOST_TEXT)
    return to_markdown(html if "<" in html else html.replace("\n", "<br>")).text.strip()


def _inset(text: str, width: int) -> str:
    return re.sub(r"\n(?=.)", f"\n{' ' * width}", text)


def _rows(elements: list[Element]) -> str:
    """Rows of values as a table: of elements named after the parameters, or of pairs of key and value."""
    rows: list[dict[str, str]] = []
    for element in elements:
        inner = [child for child in element.children if isinstance(child, Element)]
        if re.fullmatch(r"table\d*", element.name):
            rows.append({child.name: " ".join(child.content(MOST_TEXT).split()) for child in inner})
        elif element.name == "datarow":
            rows.append({child.get("key"): child.get("value") for child in inner if child.name == "kvp"})
    return _table([row for row in rows if any(row.values())])


def _shared_values(text: str, label: Callable[[int], str]) -> str:
    """Names of shared parameters, and the work items with their values."""
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        reference = json.loads(text)
        ids = [int(item_id) for item_id in reference.get("sharedParameterDataSetIds") or []]
        names = [str(parameter["localParamName"]) for parameter in reference.get("parameterMap") or []]
        lines = [
            *(f"- @{name}" for name in names),
            *(f"- Shared parameters: {label(item_id)}" for item_id in ids),
        ]
        return "\n".join(dict.fromkeys(lines))
    return ""


def _table(rows: list[dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return ""
    lines = [
        names,
        ["---"] * len(names),
        *([row.get(name, "") for name in names] for row in rows[:MOST_ROWS]),
    ]
    cells = ([text.replace("|", "\\|") for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
