"""What the elements of Confluence's storage format mean: macros, links, pictures, tasks."""

from __future__ import annotations

from connectors.markup import inline
from connectors.markup.addresses import Target, file_name, picture
from connectors.markup.blocks import LINE, PARAGRAPH
from connectors.markup.conversion import Close, Conversion, Handler, Macro
from connectors.markup.scanner import attributes

_DROPPED = frozenset(
    "toc children pagetree pagetreesearch anchor recently-updated recently-updated-dashboard "  # noqa: SIM905 (a list of words)
    "livesearch contentbylabel contributors attachments gallery navmap blog-posts "
    "space-attachments".split()
)
_QUOTED = {
    "info": "Info",
    "note": "Note",
    "tip": "Tip",
    "warning": "Warning",
    "panel": "",
    "expand": "",
    "ui-expand": "",
    "adf:note": "Note",
    "adf:info": "Info",
    "adf:tip": "Tip",
    "adf:warning": "Warning",
    "adf:success": "Success",
    "adf:error": "Error",
    "adf:custom": "",
}
_WRITTEN_IN = frozenset({"mermaid", "plantuml", "html", "latex", "markdown", "sql"})
"""Macros whose plain text is in the language they are named after."""


def _macro(element: str) -> Handler:
    def start(page: Conversion, rest: str) -> Close | None:
        name = attributes(rest).get("ac:name", "").strip().lower()
        if name in _DROPPED:
            page.hide(element)
            return None
        return _open_macro(page, name)

    return start


def _open_macro(page: Conversion, name: str) -> Close:
    macro = Macro(name, words_before=page.canvas.words)
    page.macros.append(macro)
    page.targets.append(macro.target)

    def close() -> None:
        page.macros.pop()
        page.targets.pop()
        if macro.has_body:
            _show_title(page, macro)
        else:
            _WITHOUT_BODY.get(macro.name, _any_target)(page, macro)

    return close


def _kept(element: str, key: str) -> Handler:
    """A setting: no text, but remembered with the macro it belongs to."""

    def start(page: Conversion, rest: str) -> None:
        name = attributes(rest).get(key, "").lower()
        macro = page.macros[-1] if page.macros else None
        page.hide(element, (lambda text: macro.keep(name, text)) if macro else None)

    return start


def _body(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    macro = page.macros[-1] if page.macros else Macro("")
    macro.has_body = True
    if macro.name in _QUOTED:
        return _quoted_body(page, macro)
    if macro.first("atlassian-macro-output-type").upper() == "INLINE":
        return lambda: None
    _show_title(page, macro)
    page.canvas.flush(LINE)
    return lambda: page.canvas.flush(LINE)


def _quoted_body(page: Conversion, macro: Macro) -> Close:
    page.canvas.flush(PARAGRAPH)
    page.canvas.sink.open_quote()
    title = macro.first("title")
    macro.title_shown = bool(title)
    header = ": ".join(text for text in (_QUOTED[macro.name], title) if text)
    if header:
        page.canvas.bold_line(header, PARAGRAPH)

    def close() -> None:
        page.canvas.flush(PARAGRAPH)
        page.canvas.sink.close()

    return close


def _show_title(page: Conversion, macro: Macro) -> None:
    """Once; also behind the body, should the title come so late."""
    title = macro.first("title")
    if title and not macro.title_shown:
        macro.title_shown = True
        page.canvas.bold_line(title, PARAGRAPH)


def _plain_body(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    macro = page.macros[-1] if page.macros else Macro("")
    macro.has_body = macro.title_shown = True  # the title of code is a setting
    page.canvas.begin_code()

    def close() -> None:
        language = macro.name if macro.name in _WRITTEN_IN else ""
        if macro.name == "code":
            language = macro.first("language", "lang", "default-parameter", "")
        page.canvas.end_code(language)

    return close


def _status(page: Conversion, macro: Macro) -> None:
    page.canvas.text(macro.first("title"))


def _jira(page: Conversion, macro: Macro) -> None:
    key = macro.first("key")
    page.canvas.text(key)
    if not key:
        page.canvas.literal(inline.code(macro.first("jqlquery", "jql")))


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
    gap = 0 if macro.first("atlassian-macro-output-type").upper() == "INLINE" else LINE
    if gap:
        page.canvas.flush(gap)
    page.canvas.link(page.addresses.label(macro.target), page.addresses.of(macro.target))
    if gap:
        page.canvas.flush(gap)


_WITHOUT_BODY = {
    "status": _status,
    "jira": _jira,
    "jiraissues": _jira,
    "include": _include,
    "excerpt-include": _include,
    "drawio": _file,
    "inc-drawio": _file,
    "drawio-sketch": _file,
    "gliffy": _file,
    "view-file": _file,
    "viewpdf": _file,
    "viewdoc": _file,
    "viewxls": _file,
    "viewppt": _file,
}


def _adf_extension(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    return _open_macro(page, "adf")


def _adf_node(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    return _open_macro(page, "adf:node")


def _adf_content(page: Conversion, rest: str) -> Close:
    if page.macros:
        macro = page.macros[-1]
        panel = macro.first("panel-type").lower()
        macro.name = f"adf:{panel}" if f"adf:{panel}" in _QUOTED else macro.name
    return _body(page, rest)


def _adf_fallback(page: Conversion, rest: str) -> Close | None:  # noqa: ARG001 (every handler takes both)
    """The same once more for old readers: hidden, unless the nodes before it showed nothing."""
    extension = next((macro for macro in reversed(page.macros) if macro.name == "adf"), None)
    if extension is not None and page.canvas.words > extension.words_before:
        page.hide("ac:adf-fallback")
        return None
    page.canvas.flush(LINE)
    return lambda: page.canvas.flush(LINE)


MACROS: dict[str, Handler] = {
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
}


def _dropped(element: str) -> Handler:
    def start(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
        page.hide(element)

    return start


def _link(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    target, before = Target(), page.canvas.words
    page.targets.append(target)
    # The target stands behind the start tag, so that it is asked for when the label is complete.
    close_mark = page.canvas.inline.open(
        inline.LINK, lambda body: inline.link(body, page.addresses.of(target))
    )

    def close() -> None:
        page.targets.pop()
        if page.canvas.words == before:
            page.canvas.text(page.addresses.label(target))
        if target.kind == "attachment":
            page.addresses.mention(target.name)
        close_mark()

    return close


def _picture(page: Conversion, rest: str) -> Close:
    target, found = Target(), attributes(rest)
    page.targets.append(target)
    shown: list[bool] = []

    def show() -> None:
        if not shown:
            shown.append(True)
            name = file_name(target.name) if target.kind == "url" else page.addresses.label(target)
            label = found.get("ac:alt", "").strip() or found.get("ac:title", "").strip() or name
            page.canvas.literal(picture(label, page.addresses.of(target)))

    def close() -> None:
        page.targets.pop()
        page.pictures.pop()
        show()

    page.pictures.append(show)
    return close


def _caption(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    if page.pictures:
        page.pictures[-1]()
    page.canvas.flush(LINE)
    return lambda: page.canvas.flush(LINE)


def _resource(element: str) -> Handler:
    def start(page: Conversion, rest: str) -> None:
        if page.targets:
            page.targets[-1].note(element, rest)

    return start


def _emoticon(page: Conversion, rest: str) -> None:
    found = attributes(rest)
    name = found.get("ac:name", "").strip()
    page.canvas.text(
        found.get("ac:emoji-fallback") or found.get("ac:emoji-shortname") or (f":{name}:" if name else "")
    )


def _task_list(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    page.canvas.sink.open_list(None)
    return lambda: _leave(page)


def _task_status(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
    def keep(text: str) -> None:
        page.task_done = text.strip().lower() == "complete"

    page.hide("ac:task-status", keep)


def _task_body(page: Conversion, rest: str) -> Close:  # noqa: ARG001 (every handler takes both)
    page.canvas.flush(LINE)
    page.canvas.sink.open_item("[x]" if page.task_done else "[ ]")
    page.task_done = False
    return lambda: _leave(page)


def _leave(page: Conversion) -> None:
    page.canvas.flush(LINE)
    page.canvas.sink.close()


EXTENSIONS: dict[str, Handler] = {
    "ac:link": _link,
    "ac:image": _picture,
    "ac:caption": _caption,
    "ac:emoticon": _emoticon,
    "ac:hipchat-emoticon": _emoticon,
    "ac:task-list": _task_list,
    "ac:task-status": _task_status,
    "ac:task-body": _task_body,
    **{n: _dropped(n) for n in ("ac:placeholder", "ac:task-id", "ac:task-uuid", "at:declarations")},
    **{f"ri:{n}": _resource(f"ri:{n}") for n in ("page", "blog-post", "attachment", "url", "space", "user")},
}
