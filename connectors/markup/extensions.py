"""What Confluence's links, pictures and tasks mean."""

from __future__ import annotations

from connectors.markup import inline
from connectors.markup.addresses import Target, file_name, picture
from connectors.markup.conversion import Conversion, Handler
from connectors.markup.scanner import attributes
from connectors.markup.sinks import LINE
from connectors.markup.stack import Close


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
