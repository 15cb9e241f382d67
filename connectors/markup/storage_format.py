"""What the elements of Confluence's storage format mean: macros, links, pictures, tasks."""

from __future__ import annotations

from connectors.markup import inline
from connectors.markup.conversion import LINE, MOST_PARAMETER, Conversion, Handler, Macro
from connectors.markup.elements import block
from connectors.markup.links import file_name
from connectors.markup.parsing import Element

_DROPPED = frozenset(
    "toc children pagetree pagetreesearch anchor recently-updated recently-updated-dashboard "  # noqa: SIM905 (a list of words)
    "livesearch contentbylabel contributors attachments gallery navmap blog-posts "
    "space-attachments".split()
)
_QUOTED = {
    **{name: name.capitalize() for name in ("note", "info", "tip", "warning", "success", "error")},
    **dict.fromkeys(("panel", "expand", "ui-expand", "custom"), ""),
}
"""What is shown as a quote, and the word that heads it."""
_WRITTEN_IN = frozenset({"mermaid", "plantuml", "html", "latex", "markdown", "sql"})
"""Macros whose plain text is in the language they are named after."""
_BODIES = frozenset({"ac:rich-text-body", "ac:plain-text-body"})
_PARAMETERS = frozenset({"ac:parameter", "ac:default-parameter", "ac:adf-attribute"})
_FILES = frozenset("drawio inc-drawio drawio-sketch gliffy view-file viewpdf viewdoc viewxls viewppt".split())  # noqa: SIM905 (a list of words)


def _elements(element: Element, *names: str) -> list[Element]:
    """Its children of these names, or all of them that are elements."""
    return [c for c in element.children if isinstance(c, Element) and (not names or c.name in names)]


def _macro(page: Conversion, element: Element) -> None:
    name = element.get("ac:name").strip().lower()
    if name not in _DROPPED:
        macro = _in_macro(page, element, name)
        if not _elements(element, *_BODIES):
            _without_body(page, element, macro)


def _in_macro(page: Conversion, element: Element, name: str) -> Macro:
    """Writes what a macro holds; whatever its place, a parameter belongs to the whole macro."""
    parameters: dict[str, str] = {}
    for one in _elements(element, *_PARAMETERS):
        parameters.setdefault(one.get("ac:name", "key").lower(), one.content(MOST_PARAMETER))
    macro = Macro(name=parameters.get("panel-type", name).strip().lower(), parameters=parameters)
    outer, page.macro = page.macro, macro
    page.render(element.children)
    page.macro = outer
    return macro


def _rich_body(page: Conversion, element: Element) -> None:
    macro = page.macro
    title, head = macro.first("title"), _QUOTED.get(macro.name)
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
    language = macro.name if macro.name in _WRITTEN_IN else ""
    if macro.name == "code":
        language = macro.first("language", "lang", "default-parameter", "")
    page.code_block(element, language)


def _without_body(page: Conversion, element: Element, macro: Macro) -> None:
    """What stands for a macro that is made when somebody looks at the page."""
    first = macro.first
    if macro.name == "status":
        page.text(first("title"))
    elif macro.name in ("jira", "jiraissues"):
        page.text(first("key"))
        page.literal("" if first("key") else inline.code_span(first("jqlquery", "jql")))
    else:
        target = page.links.target(element.within())
        if not target.label and macro.name in ("include", "excerpt-include"):
            space, colon, title = first("", "default-parameter", "pagetitle", "page").rpartition(":")
            target = page.links.page(title, space if colon else None)
        elif not target.label and macro.name in _FILES:
            target = page.links.file(first("diagramname", "diagramdisplayname", "name", "filename", ""))
        if target.label and not macro.inline:
            page.flush(LINE)
        page.link(target.label, target.url)
        if target.label and not macro.inline:
            page.flush(LINE)


def _adf_extension(page: Conversion, element: Element) -> None:
    """A node of the new editor, and the same once more for old readers: shown if the node shows nothing."""
    before, fallbacks = page.words, _elements(element, "ac:adf-fallback")
    hidden = set(fallbacks)
    page.render(child for child in element.children if child not in hidden)
    if page.words == before:
        for fallback in fallbacks:
            page.block(fallback, LINE)


def _adf_node(page: Conversion, element: Element) -> None:
    page.flush(LINE)
    _in_macro(page, element, "")


def _link(page: Conversion, element: Element) -> None:
    target, before = page.links.target(_elements(element)), page.words
    with page.inline.mark(inline.LINK, lambda body: inline.link(body, target.url)):
        page.render(element.children)
        if page.words == before:
            page.text(target.label)


def _picture(page: Conversion, element: Element) -> None:
    target = page.links.target(_elements(element))
    name = file_name(target.label) if _elements(element, "ri:url") else target.label
    label = element.get("ac:alt").strip() or element.get("ac:title").strip() or name
    page.literal(inline.picture(label, target.url))
    page.render(element.children)


def _emoticon(page: Conversion, element: Element) -> None:
    name = element.get("ac:name").strip()
    page.text(element.get("ac:emoji-fallback", "ac:emoji-shortname") or (f":{name}:" if name else ""))


def _task(page: Conversion, element: Element) -> None:
    status = "".join(one.content(MOST_PARAMETER) for one in _elements(element, "ac:task-status"))
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
