"""What each HTML element means."""

from __future__ import annotations

import re
from contextlib import nullcontext

from connectors.markup import inline
from connectors.markup.conversion import LINE, PARAGRAPH, Conversion, Handler
from connectors.markup.inline import around
from connectors.markup.links import file_name
from connectors.markup.parsing import BLOCKS, Element
from connectors.markup.tables import Cell, Table

_LANGUAGE = re.compile(r"\b(?:language|lang|brush)[-:]\s*([\w+#.-]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*([0-9]{1,9})")


def block(gap: int) -> Handler:
    """The handler of an element that stands on lines of its own, `gap` away from what is around it."""
    return lambda page, element: page.block(element, gap)


def _marked(kind: str, wrap: inline.Wrap) -> Handler:
    def handler(page: Conversion, element: Element) -> None:
        unmarked = False
        if kind == inline.STRONG:
            style = element.get("style").replace(" ", "")
            unmarked = page.heading > 0 or "font-weight:normal" in style
        elif kind in (inline.RAISED, inline.LOWERED):
            unmarked = not page.inline.ends_with_word()
        with nullcontext() if unmarked else page.inline.mark(kind, wrap):
            page.render(element.children)

    return handler


def _heading(page: Conversion, element: Element) -> None:
    page.flush(PARAGRAPH)
    page.heading = int(element.name[1])
    page.render(element.children)
    page.flush(PARAGRAPH)
    page.heading = 0


def _pre(page: Conversion, element: Element) -> None:
    code = next((inner for inner in element.within() if inner.name == "code"), Element(""))
    said = (element.get("class"), *code.attributes.values())
    named = next(filter(None, map(_LANGUAGE.search, said)), None)
    page.code_block(element, named[1] if named else "")


def _anchor(page: Conversion, element: Element) -> None:
    href = element.get("href")
    if "data-vss-mention" in element.attributes or not href:
        page.render(element.children)
        return
    url = page.links.href(href)
    with page.inline.mark(inline.LINK, lambda body: inline.link(body, url)):
        page.render(element.children)


def _image(page: Conversion, element: Element) -> None:
    emoji, source = element.get("data-emoji-fallback"), element.get("src")
    if emoji or "emoticon" in element.get("class"):
        page.text(emoji or element.get("alt"))
    else:
        label = element.get("alt").strip() or element.get("title").strip() or file_name(source)
        page.literal(inline.picture(label, page.links.href(source)))


def _input(page: Conversion, element: Element) -> None:
    if element.get("type").lower() == "checkbox":
        page.tick("[x]" if "checked" in element.attributes else "[ ]")


def _time(page: Conversion, element: Element) -> None:
    date, before = element.get("datetime").strip(), page.words
    with page.inline.mark("time", lambda body: body if date in body else f"{body} ({date})"):
        page.render(element.children)
        if page.words == before:
            page.text(date)


def _numbers(page: Conversion, element: Element) -> None:
    begin = _number(element, "start")
    page.listed(element, 1 if begin is None else begin)


def _term(behind: int) -> Handler:
    def handler(page: Conversion, element: Element) -> None:
        page.flush(PARAGRAPH)
        with page.inline.mark(inline.STRONG, around("**")):
            page.render(element.children)
        page.flush(behind)

    return handler


def _table(page: Conversion, element: Element) -> None:
    outer, page.table = page.table, Table()
    page.block(element, PARAGRAPH)
    table, page.table = page.table, outer
    page.write_table(table)


def _table_head(page: Conversion, element: Element) -> None:
    page.block(element, LINE)
    if page.table and page.table.rows:
        page.table.has_head = True


def _row(page: Conversion, element: Element) -> None:
    page.flush(LINE)
    if page.table:
        page.table.rows.append([])
    page.block(element, LINE)


def _cell(page: Conversion, element: Element) -> None:
    if page.table is None:
        page.block(element, LINE)
        return
    page.flush(LINE)
    across, down = (_number(element, name) or 1 for name in ("colspan", "rowspan"))
    page.table.rows = rows = page.table.rows or [[]]
    rows[-1].append(Cell(text=page.cell(element), heads=element.name == "th", across=across, down=down))


def _number(element: Element, name: str) -> int | None:
    match = _NUMBER.match(element.get(name))
    return int(match[1]) if match else None


HTML: dict[str, Handler] = {
    **{name: block(LINE) for name in BLOCKS},
    **{name: block(PARAGRAPH) for name in ("p", "section", "article", "dl", "details", "figure", "fieldset")},
    **{f"h{level}": _heading for level in range(1, 7)},
    **dict.fromkeys(("b", "strong"), _marked(inline.STRONG, around("**"))),
    **dict.fromkeys(("i", "em"), _marked(inline.EMPHASIS, around("*"))),
    **dict.fromkeys(("del", "s", "strike"), _marked(inline.STRUCK, around("~~"))),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), _marked(inline.CODE, inline.code_span)),
    **dict.fromkeys(("ul", "menu", "dir", "ac:task-list"), Conversion.listed),
    "sup": _marked(inline.RAISED, inline.raised),
    "sub": _marked(inline.LOWERED, inline.lowered),
    "a": _anchor,
    "img": _image,
    "input": _input,
    "time": _time,
    "br": lambda page, _: page.line_break(),
    "hr": lambda page, _: page.rule(),
    "pre": _pre,
    "blockquote": Conversion.quoted,
    "ol": _numbers,
    "li": lambda page, element: page.item(element, number=_number(element, "value")),
    "dd": Conversion.definition,
    **dict.fromkeys(("dt", "summary", "legend"), _term(LINE)),
    "caption": _term(PARAGRAPH),
    "table": _table,
    "thead": _table_head,
    "tr": _row,
    **dict.fromkeys(("td", "th"), _cell),
}
