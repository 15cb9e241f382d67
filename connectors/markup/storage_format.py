"""What the elements of Confluence's storage format mean: macros, links, pictures, tasks."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.markup import inline
from connectors.markup.blocks import LINE, PARAGRAPH
from connectors.markup.conversion import Conversion, Handler, Macro, hidden
from connectors.markup.elements import HTML
from connectors.markup.inline import Target, file_name, picture
from connectors.markup.scanner import attributes

_DROPPED = frozenset(
    "toc children pagetree pagetreesearch anchor recently-updated recently-updated-dashboard "  # noqa: SIM905 (a list of words)
    "livesearch contentbylabel contributors attachments gallery navmap blog-posts "
    "space-attachments".split()
)
_PANELS = ("note", "info", "tip", "warning")
_QUOTED = {
    **{name: name.capitalize() for name in _PANELS},
    **{f"adf:{name}": name.capitalize() for name in (*_PANELS, "success", "error")},
    **dict.fromkeys(("panel", "expand", "ui-expand", "adf:custom"), ""),
}
"""What is shown as a quote, and the word that heads it."""
_WRITTEN_IN = frozenset({"mermaid", "plantuml", "html", "latex", "markdown", "sql"})
"""Macros whose plain text is in the language they are named after."""


def _macro(element: str) -> Handler:
    def handler(page: Conversion, rest: str) -> Iterator[None]:
        name = attributes(rest).get("ac:name", "").strip().lower()
        if name in _DROPPED:
            page.hide(element)
        else:
            yield from _open_macro(page, name)

    return handler


def _open_macro(page: Conversion, name: str) -> Iterator[None]:
    macro = Macro(name, words_before=page.out.words)
    page.macros.append(macro)
    page.targets.append(macro.target)
    yield
    page.macros.pop()
    page.targets.pop()
    if macro.has_body:
        _show_title(page, macro)
    else:
        _WITHOUT_BODY.get(macro.name, _any_target)(page, macro)


def _kept(element: str, key: str) -> Handler:
    """A setting: no text, but remembered with the macro it belongs to."""

    def handler(page: Conversion, rest: str) -> None:
        name = attributes(rest).get(key, "").lower()
        macro = page.macros[-1] if page.macros else None
        page.hide(element, (lambda text: macro.keep(name, text)) if macro else None)

    return handler


def _body(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    macro = page.macros[-1] if page.macros else Macro("")
    macro.has_body = True
    if macro.name in _QUOTED:
        yield from _quoted_body(page, macro)
    elif not macro.inline:
        _show_title(page, macro)
        page.out.flush(LINE)
        yield
        page.out.flush(LINE)


def _quoted_body(page: Conversion, macro: Macro) -> Iterator[None]:
    page.out.flush(PARAGRAPH)
    page.out.sink.open_quote()
    title = macro.first("title")
    macro.title_shown = bool(title)
    header = ": ".join(text for text in (_QUOTED[macro.name], title) if text)
    if header:
        page.out.bold_line(header, PARAGRAPH)
    yield
    page.out.leave(PARAGRAPH)


def _show_title(page: Conversion, macro: Macro) -> None:
    """Once; also behind the body, should the title come so late."""
    title = macro.first("title")
    if title and not macro.title_shown:
        macro.title_shown = True
        page.out.bold_line(title, PARAGRAPH)


def _plain_body(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    macro = page.macros[-1] if page.macros else Macro("")
    macro.has_body = macro.title_shown = True  # the title of code is a setting
    page.out.begin_code()
    yield
    language = macro.name if macro.name in _WRITTEN_IN else ""
    if macro.name == "code":
        language = macro.first("language", "lang", "default-parameter", "")
    page.out.end_code(language)


def _status(page: Conversion, macro: Macro) -> None:
    page.out.text(macro.first("title"))


def _jira(page: Conversion, macro: Macro) -> None:
    key = macro.first("key")
    page.out.text(key)
    if not key:
        page.out.literal(inline.code_span(macro.first("jqlquery", "jql")))


def _include(page: Conversion, macro: Macro) -> None:
    if not macro.target.kind:
        space, colon, title = macro.first("", "default-parameter", "pagetitle", "page").rpartition(":")
        macro.target = Target("page", title, space if colon else None)
    _any_target(page, macro)


def _file(page: Conversion, macro: Macro) -> None:
    if not macro.target.kind:
        name = macro.first("diagramname", "diagramdisplayname", "name", "filename", "")
        macro.target = Target("attachment", name)
    _any_target(page, macro)


def _any_target(page: Conversion, macro: Macro) -> None:
    if not macro.target.name:
        return
    if not macro.inline:
        page.out.flush(LINE)
    page.out.link(page.addresses.label(macro.target), page.addresses.of(macro.target))
    if not macro.inline:
        page.out.flush(LINE)


_WITHOUT_BODY = {
    "status": _status,
    **dict.fromkeys(("jira", "jiraissues"), _jira),
    **dict.fromkeys(("include", "excerpt-include"), _include),
    **dict.fromkeys(("drawio", "inc-drawio", "drawio-sketch", "gliffy"), _file),
    **dict.fromkeys(("view-file", "viewpdf", "viewdoc", "viewxls", "viewppt"), _file),
}


def _adf_extension(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    return _open_macro(page, "adf")


def _adf_node(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(LINE)
    return _open_macro(page, "adf:node")


def _adf_content(page: Conversion, rest: str) -> Iterator[None]:
    if page.macros:
        macro = page.macros[-1]
        panel = macro.first("panel-type").lower()
        macro.name = f"adf:{panel}" if f"adf:{panel}" in _QUOTED else macro.name
    return _body(page, rest)


def _adf_fallback(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    """The same once more for old readers: hidden, unless the nodes before it showed nothing."""
    extension = next((macro for macro in reversed(page.macros) if macro.name == "adf"), None)
    if extension is not None and page.out.words > extension.words_before:
        page.hide("ac:adf-fallback")
    else:
        page.out.flush(LINE)
        yield
        page.out.flush(LINE)


def _link(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    target, before = Target(), page.out.words
    page.targets.append(target)
    # The target stands behind the start tag, so that it is asked for when the label is complete.
    with page.out.inline.mark(inline.LINK, lambda body: inline.link(body, page.addresses.of(target))):
        yield
        page.targets.pop()
        if page.out.words == before:
            page.out.text(page.addresses.label(target))
        if target.kind == "attachment":
            page.addresses.mention(target.name)


def _picture(page: Conversion, rest: str) -> Iterator[None]:
    target, found = Target(), attributes(rest)
    page.targets.append(target)
    shown: list[bool] = []

    def show() -> None:
        if not shown:
            shown.append(True)
            name = file_name(target.name) if target.kind == "url" else page.addresses.label(target)
            label = found.get("ac:alt", "").strip() or found.get("ac:title", "").strip() or name
            page.out.literal(picture(label, page.addresses.of(target)))

    page.pictures.append(show)
    yield
    page.targets.pop()
    page.pictures.pop()
    show()


def _caption(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    if page.pictures:
        page.pictures[-1]()
    page.out.flush(LINE)
    yield
    page.out.flush(LINE)


def _resource(element: str) -> Handler:
    def handler(page: Conversion, rest: str) -> None:
        if page.targets:
            page.targets[-1].note(element, rest)

    return handler


def _emoticon(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    name = found.get("ac:name", "").strip()
    page.out.text(
        found.get("ac:emoji-fallback") or found.get("ac:emoji-shortname") or (f":{name}:" if name else "")
    )


def _task_status(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    def keep(text: str) -> None:
        page.task_done = text.strip().lower() == "complete"

    page.hide("ac:task-status", keep)


def _task_body(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
    page.out.flush(LINE)
    page.out.sink.open_item("[x]" if page.task_done else "[ ]")
    page.task_done = False
    yield
    page.out.leave(LINE)


STORAGE_FORMAT: dict[str, Handler] = {
    "ac:structured-macro": _macro("ac:structured-macro"),
    "ac:macro": _macro("ac:macro"),
    "ac:parameter": _kept("ac:parameter", "ac:name"),
    "ac:default-parameter": _kept("ac:default-parameter", "ac:name"),
    "ac:rich-text-body": _body,
    "ac:plain-text-body": _plain_body,
    "ac:adf-extension": _adf_extension,
    "ac:adf-node": _adf_node,
    "ac:adf-attribute": _kept("ac:adf-attribute", "key"),
    "ac:adf-content": _adf_content,
    "ac:adf-fallback": _adf_fallback,
    "ac:link": _link,
    "ac:image": _picture,
    "ac:caption": _caption,
    "ac:emoticon": _emoticon,
    "ac:hipchat-emoticon": _emoticon,
    "ac:task-list": HTML["ul"],
    "ac:task-status": _task_status,
    "ac:task-body": _task_body,
    **{n: hidden(n) for n in ("ac:placeholder", "ac:task-id", "ac:task-uuid", "at:declarations")},
    **{f"ri:{n}": _resource(f"ri:{n}") for n in ("page", "blog-post", "attachment", "url", "space", "user")},
}
