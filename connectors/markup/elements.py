"""Handlers of the elements of HTML and of Confluence's storage format, and `to_markdown`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple
from urllib.parse import unquote_plus

from connectors.markup import inline
from connectors.markup.conversion import (
    LINE,
    MOST_PARAMETER,
    PARAGRAPH,
    Cell,
    Conversion,
    Handler,
    Macro,
    Table,
)
from connectors.markup.formulas import FORMULA, FORMULAS, SOURCES
from connectors.markup.inline import LinkResolver, Links, around, file_name
from connectors.markup.parsing import BLOCKS, Element, parse

_LANGUAGE = re.compile(r"\b(?:language|lang|brush)[-:]\s*([\w+#.-]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*([0-9]{1,9})")


def block(gap: int) -> Handler:
    """Handler of a block element, with at least `gap` before and after it."""
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
    labels = (element.get("class"), *code.attributes.values())
    named = next(filter(None, map(_LANGUAGE.search, labels)), None)
    page.code_block(element, named[1] if named else "")


def _anchor(page: Conversion, element: Element) -> None:
    href = element.get("href")
    if "data-vss-mention" in element.attributes or not href:
        page.render(element.children)
        return
    url, before = page.links.href(href), page.words
    with page.inline.mark(inline.LINK, lambda body: inline.link(body, url)):
        page.render(element.children)
        if (
            page.words == before and "data-card-appearance" in element.attributes
        ):  # browsers load its title later
            page.text(href)


def _image(page: Conversion, element: Element) -> None:
    emoji, source = element.get("data-emoji-fallback"), element.get("src")
    if emoji or "emoticon" in element.get("class"):
        page.box(emoji or element.get("alt"))
    else:
        label = element.get("alt").strip() or element.get("title").strip() or file_name(source)
        page.literal(inline.picture(label, page.links.href(source)))


def _input(page: Conversion, element: Element) -> None:
    if element.get("type").lower() == "checkbox":
        page.tick("[x]" if "checked" in element.attributes else "[ ]")


def _time(page: Conversion, element: Element) -> None:
    date, before = element.get("datetime").strip(), page.words
    with (
        page.inline.box(),
        page.inline.mark("time", lambda body: body if date in body else f"{body} ({date})"),
    ):
        page.render(element.children)
        if page.words == before:
            page.text(date)


def _drawing(page: Conversion, element: Element) -> None:
    """Writes the texts of a drawing; of a symbol, which has none, nothing."""
    words = [inner.content(1000) for inner in element.within() if inner.name in ("text", "foreignobject")]
    words = [word for word in map(str.strip, words) if word]
    if element.get("role") == "img" or words:
        titles = (title.content(1000) for title in _elements(element, "title", "desc"))
        words = [*filter(str.strip, titles), *words]
    if words:
        page.flush(LINE)
        page.text(", ".join(words))
        page.flush(LINE)


def _reading(page: Conversion, element: Element) -> None:
    """Writes the pronunciation of the characters before (ruby text) in brackets."""
    page.literal("(")
    page.render(element.children)
    page.literal(")")


def _quotation(page: Conversion, element: Element) -> None:
    with page.inline.mark("q", lambda body: f"“{body}”"):
        page.render(element.children)


def _numbers(page: Conversion, element: Element) -> None:
    begin = _number(element, "start")
    page.listed(element, 1 if begin is None else begin)


def _term(gap_after: int) -> Handler:
    def handler(page: Conversion, element: Element) -> None:
        page.flush(PARAGRAPH)
        with page.inline.mark(inline.STRONG, around("**")):
            page.render(element.children)
        page.flush(gap_after)

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


MARKDOWN = "#markdown"
"""Name of an element whose text is Markdown already; no tag has it."""
HTML: dict[str, Handler] = {
    MARKDOWN: _marked(inline.CODE, str),
    **{name: block(LINE) for name in BLOCKS},
    **{name: block(PARAGRAPH) for name in ("p", "section", "article", "dl", "details", "figure", "fieldset")},
    **{f"h{level}": _heading for level in range(1, 7)},
    **dict.fromkeys(("b", "strong"), _marked(inline.STRONG, around("**"))),
    **dict.fromkeys(("i", "em"), _marked(inline.EMPHASIS, around("*"))),
    **dict.fromkeys(("del", "s", "strike"), _marked(inline.STRUCK, around("~~"))),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), _marked(inline.CODE, inline.code_span)),
    **dict.fromkeys(("ul", "menu", "dir", "ac:task-list"), Conversion.listed),
    "sup": _marked(inline.RAISED, inline.superscript),
    "sub": _marked(inline.LOWERED, inline.subscript),
    "a": _anchor,
    "img": _image,
    "input": _input,
    "time": _time,
    **FORMULAS,
    "svg": _drawing,
    "rt": _reading,
    "q": _quotation,
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


_DROPPED = frozenset(
    "toc children pagetree pagetreesearch anchor recently-updated recently-updated-dashboard "  # noqa: SIM905 (a list of words)
    "livesearch contentbylabel contributors attachments gallery navmap blog-posts "
    "space-attachments".split()
)
_QUOTED = {
    **{name: name.capitalize() for name in ("note", "info", "tip", "warning", "success", "error")},
    **dict.fromkeys(("panel", "expand", "ui-expand", "custom"), ""),
}
"""Macros shown as a quote, and the word of its heading."""
_WRITTEN_IN = frozenset({"mermaid", "plantuml", "html", "markdown", "sql"})
"""Macros whose plain text is in the language they are named after."""
_TITLE = re.compile(r'"title"\s*:\s*"((?:[^"\\]|\\.){1,300})"')
_BODIES = frozenset({"ac:rich-text-body", "ac:plain-text-body"})
_PARAMETERS = frozenset({"ac:parameter", "ac:default-parameter", "ac:adf-attribute"})
_ADF_BOXES = {
    "status": ("text",), "mention": ("text",), "emoji": ("text", "short-name", "shortname"), "date": ("timestamp",),
    "inlinecard": ("url",), "inline-card": ("url",),
}  # fmt: skip
"""Inline nodes of the new editor, and the attributes that hold their text."""
_FILES = frozenset("drawio inc-drawio drawio-sketch gliffy view-file viewpdf viewdoc viewxls viewppt".split())  # noqa: SIM905 (a list of words)


def _elements(element: Element, *names: str) -> list[Element]:
    """Child elements of these names; without names, all child elements."""
    return [c for c in element.children if isinstance(c, Element) and (not names or c.name in names)]


def _macro(page: Conversion, element: Element) -> None:
    name = element.get("ac:name").strip().lower()
    if name not in _DROPPED:
        macro = _in_macro(page, element, name)
        if not _elements(element, *_BODIES):
            _without_body(page, element, macro)


def _in_macro(page: Conversion, element: Element, name: str) -> Macro:
    """Writes a macro's content; its parameters apply to all of it, also those that follow later."""
    parameters: dict[str, str] = {}
    for parameter in _elements(element, *_PARAMETERS):
        parameters.setdefault(parameter.get("ac:name", "key").lower(), parameter.content(MOST_PARAMETER))
    macro = Macro(name=parameters.get("panel-type", name).strip().lower(), parameters=parameters)
    outer, page.macro = page.macro, macro
    page.render(element.children)
    page.macro = outer
    return macro


def _rich_body(page: Conversion, element: Element) -> None:
    macro = page.macro
    label = macro.first("label") if macro.name in ("card", "tab") else ""
    title, head = macro.first("title") or label, _QUOTED.get(macro.name)
    if head is not None:
        page.quoted(element, ": ".join(filter(None, (head, title))))
        return
    if title:
        page.bold_line(title)
    if macro.inline:
        page.render(element.children)
    else:
        page.block(element, LINE)


def _plain_body(page: Conversion, element: Element) -> None:
    macro = page.macro
    if FORMULA.search(macro.name):
        page.formula(element.content(MOST_PARAMETER), block=not macro.inline and "inline" not in macro.name)
        return
    language = macro.name if macro.name in _WRITTEN_IN else ""
    if macro.name == "code":
        language = macro.first("language", "lang", "default-parameter", "")
    page.code_block(element, language)


def _without_body(page: Conversion, element: Element, macro: Macro) -> None:
    """Writes the parameters that describe a macro whose content is built when the page is viewed."""
    first = macro.first
    if macro.name == "status":
        page.box(first("title"))
    elif macro.name in ("jira", "jiraissues"):
        page.box(first("key"))
        page.literal("" if first("key") else inline.code_span(first("jqlquery", "jql")))
    elif FORMULA.search(macro.name):
        page.formula(first(*SOURCES), block="block" in macro.name)
    elif macro.name == "roadmap":
        for title in (first("title"), *_TITLE.findall(unquote_plus(first("source")))):
            page.flush(LINE)
            page.text(title)
        page.flush(LINE)
    else:
        _macro_link(page, _target(page, element, macro), macro)


def _macro_link(page: Conversion, target: inline.Target, macro: Macro) -> None:
    if target.label.startswith("@"):
        page.box(target.label)
        return
    label = target.label or macro.first("title", "buttonlabel")
    if label and not macro.inline:
        page.flush(LINE)
    page.link(label, target.url or page.links.href(macro.first("url")))
    if label and not macro.inline:
        page.flush(LINE)


def _target(page: Conversion, element: Element, macro: Macro) -> inline.Target:
    """Target of a macro without a body: from a link in it, else from its parameters."""
    target = page.links.target(element.within())
    if not target.label and macro.name in ("include", "excerpt-include"):
        space, colon, title = macro.first("", "default-parameter", "pagetitle", "page").rpartition(":")
        return page.links.page(title, space if colon else None)
    if not target.label and macro.name in _FILES:
        return page.links.file(macro.first("diagramname", "diagramdisplayname", "name", "filename", ""))
    return target


def _adf_extension(page: Conversion, element: Element) -> None:
    """Writes a node of the new editor; its fallback for old readers only if the node writes nothing."""
    before, fallbacks = page.words, _elements(element, "ac:adf-fallback")
    hidden = set(fallbacks)
    page.render(child for child in element.children if child not in hidden)
    if page.words == before:
        for fallback in fallbacks:
            page.block(fallback, LINE)


def _adf_node(page: Conversion, element: Element) -> None:
    kind = element.get("type").lower()
    facts = {
        attribute.get("key"): attribute.content(MOST_PARAMETER).strip()
        for attribute in _elements(element, "ac:adf-attribute")
    }
    if kind in _ADF_BOXES:
        page.box(next(filter(None, map(facts.get, _ADF_BOXES[kind])), ""))
        return
    page.flush(LINE)
    if kind not in ("extension", "inlineextension", "bodiedextension"):
        _in_macro(page, element, "")
        return
    settings = {
        parameter.get("key"): parameter.content(MOST_PARAMETER)
        for parameter in element.within()
        if parameter.name == "ac:adf-parameter" and not _elements(parameter)
    }
    macro = Macro(name=facts.get("extension-key", "").rpartition("/")[2].lower(), parameters=settings)
    if FORMULA.search(macro.name):
        page.formula(macro.first(*SOURCES), block="inline" not in kind + macro.name)
    else:
        _in_macro(page, element, "")
        page.text(macro.first("diagram-display-name", "diagram-name", "title"))
    page.flush(LINE)


def _link(page: Conversion, element: Element) -> None:
    target, before = page.links.target(_elements(element)), page.words
    box = page.inline.box() if target.label.startswith("@") else nullcontext()
    with box, page.inline.mark(inline.LINK, lambda body: inline.link(body, target.url)):
        page.render(element.children)
        if page.words == before:
            page.text(target.label or element.get("ac:anchor"))


def _picture(page: Conversion, element: Element) -> None:
    target = page.links.target(_elements(element))
    name = file_name(target.label) if _elements(element, "ri:url") else target.label
    label = element.get("ac:alt").strip() or element.get("ac:title").strip() or name
    page.literal(inline.picture(label, target.url))
    page.render(element.children)


def _emoticon(page: Conversion, element: Element) -> None:
    name = element.get("ac:name").strip()
    page.box(element.get("ac:emoji-fallback", "ac:emoji-shortname") or (f":{name}:" if name else ""))


def _task(page: Conversion, element: Element) -> None:
    status = "".join(node.content(MOST_PARAMETER) for node in _elements(element, "ac:task-status"))
    page.item(element, "[x]" if status.strip().lower() == "complete" else "[ ]")


STORAGE_FORMAT: dict[str, Handler] = {
    **dict.fromkeys(("ac:structured-macro", "ac:macro"), _macro),
    **dict.fromkeys(("ac:rich-text-body", "ac:adf-content"), _rich_body),
    "ac:plain-text-body": _plain_body,
    "ac:adf-extension": _adf_extension,
    "ac:adf-node": _adf_node,
    "ac:link": _link,
    "ac:image": _picture,
    "ac:caption": block(LINE),
    **dict.fromkeys(("ac:emoticon", "ac:hipchat-emoticon"), _emoticon),
    "ac:task": _task,
}


_ELEMENTS = {**HTML, **STORAGE_FORMAT}


class Rendered(NamedTuple):
    """A page as Markdown."""

    text: str
    """Text without trailing blanks or double blank lines outside of code, and without a line end at the end."""
    capped: bool
    """True if text is missing because the page is too large."""


def to_markdown(
    html: str,
    links: Links | None = None,
    *,
    most_characters: int = 5_000_000,
    content: Callable[[Element], Element] = lambda page: page,
) -> Rendered:
    """Convert a page to Markdown, with all text that its readers see, in the same order.

    Takes any text without raising; only what `links` raises comes through. Broken markup is read as browsers
    read it. `content` returns the part of the page to convert, and may change it.
    """
    page, complete = parse(html)
    conversion = Conversion(_ELEMENTS, LinkResolver(links), most_characters)
    conversion.render(content(page).children)
    return Rendered(text=conversion.result(), capped=conversion.full or not complete)
