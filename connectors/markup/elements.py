"""What each HTML element means."""

from __future__ import annotations

import re
from collections.abc import Iterator

from connectors.markup import inline
from connectors.markup.blocks import LINE, PARAGRAPH, Cell, Table
from connectors.markup.conversion import BLOCKS, Conversion, Handler, block, hidden
from connectors.markup.inline import file_name, picture
from connectors.markup.scanner import attributes

MOST_NESTED_TABLES = 8
_LANGUAGE = re.compile(r"\b(?:language|lang|brush)[-:]\s*([\w+#.-]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*([0-9]{1,9})")


def _marked(kind: str, wrap: inline.Wrap) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:
        if kind == inline.STRONG and (page.out.heading or "font-weight:normal" in rest.replace(" ", "")):
            return
        if kind in (inline.RAISED, inline.LOWERED) and not page.out.inline.ends_with_word():
            return
        with page.out.inline.mark(kind, wrap):
            yield

    return handler


def _heading(level: int) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
        page.out.flush(PARAGRAPH)
        page.out.heading = level
        yield
        page.out.flush(PARAGRAPH)
        page.out.heading = 0

    return handler


def _line_break(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.out.line_break()


def _rule(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.out.flush(PARAGRAPH)
    if page.out.sink is page.document:  # a cell is one line, without any across
        page.document.rule()


def _pre(page: Conversion, rest: str) -> Iterator[None]:
    page.out.begin_code()
    page.code_language = ""
    yield
    code = page.out.code
    if code and code[0].startswith("\n"):  # browsers drop a line end right behind the tag
        code[0] = code[0][1:]
    named = _LANGUAGE.search(attributes(rest).get("class", "")) or _LANGUAGE.search(page.code_language)
    page.out.end_code(named[1] if named else "")


def _anchor(page: Conversion, rest: str) -> Iterator[None]:
    found = attributes(rest)
    href = found.get("href", "")
    if "data-vss-mention" in found or not href:
        return
    page.addresses.mention_in(href)
    url = page.addresses.href(href)
    with page.out.inline.mark(inline.LINK, lambda body: inline.link(body, url)):
        yield


def _image(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    source = found.get("src", "")
    page.addresses.mention_in(source)
    emoji = found.get("data-emoji-fallback", "")
    if emoji or "emoticon" in found.get("class", ""):
        page.out.text(emoji or found.get("alt", ""))
        return
    label = next((text for key in ("alt", "title") if (text := found.get(key, "").strip())), "")
    page.out.literal(picture(label or file_name(source), page.addresses.href(source)))


def _input(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    if found.get("type", "").lower() != "checkbox":
        return
    box = "[x]" if "checked" in found else "[ ]"
    if not (page.out.inline.empty and page.out.sink.tick(box)):
        page.out.literal(f"{box} ")


def _time(page: Conversion, rest: str) -> Iterator[None]:
    date = attributes(rest).get("datetime", "").strip()
    before = page.out.words
    with page.out.inline.mark("time", lambda body: body if date in body else f"{body} ({date})"):
        yield
        if page.out.words == before:
            page.out.text(date)


def _quote(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(PARAGRAPH)
    page.out.sink.open_quote()
    yield
    page.out.leave(PARAGRAPH)


def _list(*, numbered: bool) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:
        page.out.flush(LINE)
        page.out.sink.open_list(_number(attributes(rest).get("start", ""), 1) if numbered else None)
        yield
        page.out.leave(LINE)

    return handler


def _item(page: Conversion, rest: str) -> Iterator[None]:
    page.out.flush(LINE)
    value = attributes(rest).get("value", "") if "value" in rest else ""
    page.out.sink.open_item(number=_number(value, 0) if _NUMBER.match(value) else None)
    yield
    page.out.leave(LINE)


def _term(behind: int) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
        page.out.flush(PARAGRAPH)
        with page.out.inline.mark(inline.STRONG, inline.around("**")):
            yield
        page.out.flush(behind)

    return handler


def _definition(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(LINE)
    page.out.sink.open_definition()
    yield
    page.out.leave(LINE)


def _table(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(PARAGRAPH)
    too_deep = len(page.tables) >= MOST_NESTED_TABLES
    page.depth_capped = page.depth_capped or too_deep
    page.tables.append(None if too_deep else Table())
    yield
    page.out.flush(PARAGRAPH)
    table = page.tables.pop()
    if table is not None:
        page.out.sink.table(table)


def _table_head(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(LINE)
    yield
    table = page.table
    if table is not None:
        table.head_rows = max(table.head_rows, len(table.rows))


def _row(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    page.out.flush(LINE)
    if page.table is not None:
        page.table.rows.append([])


def _cell(*, heads: bool) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:
        page.out.flush(LINE)
        table = page.table
        if table is None:
            yield
            page.out.flush(LINE)
            return
        spans = attributes(rest) if "span" in rest.lower() else {}
        across, down = (max(1, _number(spans.get(name, ""), 1)) for name in ("colspan", "rowspan"))
        page.out.begin_cell()
        yield
        table.add(Cell(text=page.out.end_cell(), heads=heads, across=across, down=down))

    return handler


def _number(text: str, otherwise: int) -> int:
    match = _NUMBER.match(text)
    return int(match[1]) if match else otherwise


HTML: dict[str, Handler] = {
    **{name: block(LINE) for name in BLOCKS},
    **{name: block(PARAGRAPH) for name in ("p", "section", "article", "dl", "details", "figure", "fieldset")},
    **{f"h{level}": _heading(level) for level in range(1, 7)},
    **dict.fromkeys(("b", "strong"), _marked(inline.STRONG, inline.around("**"))),
    **dict.fromkeys(("i", "em"), _marked(inline.EMPHASIS, inline.around("*"))),
    **dict.fromkeys(("del", "s", "strike"), _marked(inline.STRUCK, inline.around("~~"))),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), _marked(inline.CODE, inline.code_span)),
    **{name: hidden(name) for name in ("head", "template", "iframe", "xml", "noframes", "datalist")},
    **dict.fromkeys(("ul", "menu", "dir"), _list(numbered=False)),
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
    "ol": _list(numbered=True),
    "li": _item,
    "dd": _definition,
    **dict.fromkeys(("dt", "summary", "legend"), _term(LINE)),
    "caption": _term(PARAGRAPH),
    "table": _table,
    "thead": _table_head,
    "tr": _row,
    "td": _cell(heads=False),
    "th": _cell(heads=True),
}
