"""What each HTML element means."""

from __future__ import annotations

import re

from connectors.markup import inline
from connectors.markup.addresses import file_name, picture
from connectors.markup.blocks import LINE, PARAGRAPH
from connectors.markup.conversion import BLOCKS, Close, Conversion, Handler
from connectors.markup.scanner import attributes
from connectors.markup.tables import Cell, Table

MOST_NESTED_TABLES = 8
_LANGUAGE = re.compile(r"\b(?:language|lang|brush)[-:]\s*([\w+#.-]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*([0-9]{1,9})")


def _block(gap: int) -> Handler:
    def start(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
        page.canvas.flush(gap)
        return lambda: page.canvas.flush(gap)

    return start


def _marked(kind: str, wrap: inline.Wrap) -> Handler:
    def start(page: Conversion, rest: str) -> Close | None:
        if kind == inline.STRONG and (page.canvas.heading or "font-weight:normal" in rest.replace(" ", "")):
            return None
        if kind in (inline.RAISED, inline.LOWERED) and not page.canvas.inline.ends_with_word():
            return None
        return page.canvas.inline.open(kind, wrap)

    return start


def _hidden(element: str) -> Handler:
    def start(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
        page.hide(element)

    return start


def _heading(level: int) -> Handler:
    def start(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
        page.canvas.flush(PARAGRAPH)
        page.canvas.heading = level

        def close() -> None:
            page.canvas.flush(PARAGRAPH)
            page.canvas.heading = 0

        return close

    return start


def _line_break(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.canvas.line_break()


def _rule(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(PARAGRAPH)
    page.canvas.sink.rule()


def _pre(page: Conversion, rest: str) -> Close:
    page.canvas.begin_code()
    page.code_language = ""

    def close() -> None:
        code = page.canvas.code
        if code and code[0].startswith("\n"):  # browsers drop a line end right behind the tag
            code[0] = code[0][1:]
        named = _LANGUAGE.search(attributes(rest).get("class", "")) or _LANGUAGE.search(page.code_language)
        page.canvas.end_code(named[1] if named else "")

    return close


def _anchor(page: Conversion, rest: str) -> Close | None:
    found = attributes(rest)
    href = found.get("href", "")
    if "data-vss-mention" in found or not href:
        return None
    page.addresses.mention_in(href)
    url = page.addresses.href(href)
    return page.canvas.inline.open(inline.LINK, lambda body: inline.link(body, url))


def _image(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    source = found.get("src", "")
    page.addresses.mention_in(source)
    emoji = found.get("data-emoji-fallback", "")
    if emoji or "emoticon" in found.get("class", ""):
        page.canvas.text(emoji or found.get("alt", ""))
        return
    label = next((text for key in ("alt", "title") if (text := found.get(key, "").strip())), "")
    page.canvas.literal(picture(label or file_name(source), page.addresses.href(source)))


def _input(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    if found.get("type", "").lower() != "checkbox":
        return
    box = "[x]" if "checked" in found else "[ ]"
    if not (page.canvas.inline.empty and page.canvas.sink.tick(box)):
        page.canvas.literal(f"{box} ")


def _time(page: Conversion, rest: str) -> Close:
    date = attributes(rest).get("datetime", "").strip()
    before = page.canvas.words
    close_mark = page.canvas.inline.open("time", lambda body: body if date in body else f"{body} ({date})")

    def close() -> None:
        if page.canvas.words == before:
            page.canvas.text(date)
        close_mark()

    return close


def _quote(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(PARAGRAPH)
    sink = page.canvas.sink
    sink.open_quote()
    return lambda: _leave(page, PARAGRAPH)


def _list(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    page.canvas.sink.open_list(None)
    return lambda: _leave(page, LINE)


def _numbered_list(page: Conversion, rest: str) -> Close:
    page.canvas.flush(LINE)
    page.canvas.sink.open_list(_number(attributes(rest).get("start", ""), 1))
    return lambda: _leave(page, LINE)


def _item(page: Conversion, rest: str) -> Close:
    page.canvas.flush(LINE)
    value = attributes(rest).get("value", "") if "value" in rest else ""
    page.canvas.sink.open_item(number=_number(value, 0) if _NUMBER.match(value) else None)
    return lambda: _leave(page, LINE)


def _term(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(PARAGRAPH)
    close_mark = page.canvas.inline.open(inline.STRONG, inline.strong)

    def close() -> None:
        close_mark()
        page.canvas.flush(LINE)

    return close


def _caption(page: Conversion, rest: str) -> Close:
    close_term = _term(page, rest)

    def close() -> None:
        close_term()
        page.canvas.flush(PARAGRAPH)

    return close


def _definition(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    page.canvas.sink.open_definition()
    return lambda: _leave(page, LINE)


def _leave(page: Conversion, gap: int) -> None:
    page.canvas.flush(gap)
    page.canvas.sink.close()


def _table(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(PARAGRAPH)
    too_deep = len(page.tables) >= MOST_NESTED_TABLES
    page.depth_capped = page.depth_capped or too_deep
    page.tables.append(None if too_deep else Table())

    def close() -> None:
        page.canvas.flush(PARAGRAPH)
        table = page.tables.pop()
        if table is not None:
            page.canvas.sink.table(table)

    return close


def _table_head(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)

    def close() -> None:
        table = page.tables[-1] if page.tables else None
        if table is not None:
            table.head_rows = max(table.head_rows, len(table.rows))

    return close


def _row(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    table = page.tables[-1] if page.tables else None
    if table is not None:
        table.rows.append([])


def _cell(*, heads: bool) -> Handler:
    def start(page: Conversion, rest: str) -> Close:
        page.canvas.flush(LINE)
        table = page.tables[-1] if page.tables else None
        if table is None:
            return lambda: page.canvas.flush(LINE)
        spans = attributes(rest) if "span" in rest.lower() else {}
        across, down = (max(1, _number(spans.get(name, ""), 1)) for name in ("colspan", "rowspan"))
        page.canvas.begin_cell()
        return lambda: table.add(Cell(text=page.canvas.end_cell(), heads=heads, across=across, down=down))

    return start


def _number(text: str, otherwise: int) -> int:
    match = _NUMBER.match(text)
    return int(match[1]) if match else otherwise


HTML: dict[str, Handler] = {
    **{name: _block(LINE) for name in BLOCKS},
    **{
        name: _block(PARAGRAPH) for name in ("p", "section", "article", "dl", "details", "figure", "fieldset")
    },
    **{f"h{level}": _heading(level) for level in range(1, 7)},
    **dict.fromkeys(("b", "strong"), _marked(inline.STRONG, inline.strong)),
    **dict.fromkeys(("i", "em"), _marked(inline.EMPHASIS, inline.emphasis)),
    **dict.fromkeys(("del", "s", "strike"), _marked(inline.STRUCK, inline.struck)),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), _marked(inline.CODE, inline.code)),
    **{name: _hidden(name) for name in ("head", "template", "iframe", "xml", "noframes", "datalist")},
    **dict.fromkeys(("ul", "menu", "dir"), _list),
    "sup": _marked(inline.RAISED, inline.raised),
    "sub": _marked(inline.LOWERED, inline.lowered),
    "a": _anchor,
    "img": _image,
    "input": _input,
    "time": _time,
    "br": _line_break,
    "hr": _rule,
    "pre": _pre,
    "blockquote": _quote,
    "ol": _numbered_list,
    "li": _item,
    "dt": _term,
    "dd": _definition,
    "summary": _term,
    "legend": _term,
    "caption": _caption,
    "table": _table,
    "thead": _table_head,
    "tr": _row,
    "td": _cell(heads=False),
    "th": _cell(heads=True),
}
