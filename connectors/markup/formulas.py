"""Formulas of pages: as TeX where the page has it, else on one line."""

from __future__ import annotations

import re

from connectors.markup.conversion import MOST_PARAMETER, Conversion, Handler
from connectors.markup.parsing import Element

FORMULA = re.compile(r"math|latex|katex|\btex\b|equation")
"""Pattern in the names of macros that show a formula; several makers have a dozen of them."""
SOURCES = (
    "body",
    "equation",
    "latex",
    "formula",
    "tex",
    "code",
    "content",
    "value",
    "default-parameter",
    "",
)
"""Parameters that hold the formula if its macro has no body."""
_TYPESET = frozenset({"katex-html", "mathjax", "mathjax_svg", "mathjax_preview", "mathjax_display"})
"""Classes of drawn formulas, which are skipped because the source is beside them."""


def _span(page: Conversion, element: Element) -> None:
    if not _TYPESET & {*element.get("class").lower().split()}:
        page.render(element.children)


def _typeset(page: Conversion, element: Element) -> None:
    """Writes a formula drawn by MathJax from the MathML that it adds for screen readers."""
    formulas = [inner for inner in element.within() if inner.name == "math"]
    for formula in formulas:
        _math(page, formula)
    if not formulas:
        page.render(element.children)


def _script(page: Conversion, element: Element) -> None:
    kind = element.get("type").lower()
    if kind.startswith("math/tex"):
        page.formula(element.content(MOST_PARAMETER), block="mode=display" in kind)


def _math(page: Conversion, element: Element) -> None:
    """Writes a formula of MathML: its TeX if it has one, else on one line."""
    sources = (
        inner.content(MOST_PARAMETER)
        for inner in element.within()
        if inner.name == "annotation" and "tex" in inner.get("encoding").lower()
    )
    tex = next(filter(str.strip, sources), "") or element.get("alttext")
    if tex.strip():
        page.formula(tex, block=element.get("display") == "block")
    else:
        page.text(_linear(element))


_LINEAR: dict[str, str] = {
    "mfrac": "{}/{}", "msup": "{}^{}", "mover": "{}^{}", "msub": "{}_{}", "munder": "{}_{}", "mroot": "root({}, {})",
    "msubsup": "{}_{}^{}", "munderover": "{}_{}^{}",
}  # fmt: skip
"""Elements of MathML that put their children above or beside each other."""
_GAPS = {"mtr": "; ", "mtd": ", "}


def _linear(element: Element) -> str:
    """A formula of MathML on one line, such as `(a+b)/2`."""
    pieces = [
        " ".join(child.split()) if isinstance(child, str) else _linear(child) + _GAPS.get(child.name, "")
        for child in element.children
        if isinstance(child, str) or not child.name.startswith("annotation")
    ]
    pieces = list(filter(None, pieces))
    form = _LINEAR.get(element.name, "")
    if form and len(pieces) == form.count("{}"):
        return form.format(*(piece if piece.isalnum() else f"({piece})" for piece in pieces))
    text = "".join(pieces)
    return f"sqrt({text})" if element.name == "msqrt" else text


FORMULAS: dict[str, Handler] = {
    "span": _span,
    "math": _math,
    "mjx-container": _typeset,
    "script": _script,
}
