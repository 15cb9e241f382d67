"""Documents of Atlassian's editor (ADF), which are JSON, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from connectors.documents.values import parse_time, scalar_text

MOST_DEPTH = 60
"""Levels of nodes; what is deeper is left out."""
TAGS = {
    "paragraph": "p", "bulletList": "ul", "orderedList": "ol", "listItem": "li", "taskList": "ul", "decisionList": "ul",
    "decisionItem": "li", "blockquote": "blockquote", "panel": "blockquote", "table": "table", "tableRow": "tr",
    "tableHeader": "th", "tableCell": "td", "caption": "p", "mediaSingle": "p", "mediaGroup": "p",
    "layoutSection": "div", "layoutColumn": "div",
}  # fmt: skip
"""Node -> element of its content; the content of any other node stands alone."""
MARKS = {"strong": "strong", "em": "em", "code": "code", "strike": "del"}


def html_of(document: Any) -> str:
    """HTML of a document; of a text, as older issues have it, its lines, and empty for anything else."""
    if isinstance(document, str):
        return "<br>".join(escape(document).split("\n"))
    return _node(document, 0) if isinstance(document, Mapping) else ""


def _nodes(nodes: Any, depth: int) -> str:
    is_list = isinstance(nodes, Sequence) and not isinstance(nodes, str)
    return "".join(_node(node, depth) for node in nodes if isinstance(node, Mapping)) if is_list else ""


def _node(node: Mapping[str, Any], depth: int) -> str:
    if depth > MOST_DEPTH:
        return ""
    attributes = node.get("attrs")
    attributes = attributes if isinstance(attributes, Mapping) else {}
    kind = scalar_text(node.get("type"))
    if kind == "text":
        return _marked(node)
    content = _nodes(node.get("content"), depth + 1)
    if kind in _WRITERS:
        return _WRITERS[kind](attributes, content)
    tag = TAGS.get(kind)
    return f"<{tag}>{content}</{tag}>" if tag else content or _text(attributes, "text")


def _marked(node: Mapping[str, Any]) -> str:
    html = escape(str(node.get("text") or "")).replace("\n", "<br>")
    marks = node.get("marks")
    for mark in marks if isinstance(marks, list) else ():
        kind = mark.get("type") if isinstance(mark, Mapping) else None
        if kind == "link":
            html = _link(mark.get("attrs") or {}, html)
        elif kind in MARKS:
            html = f"<{MARKS[kind]}>{html}</{MARKS[kind]}>"
    return html


def _text(attributes: Mapping[str, Any], *names: str) -> str:
    return escape(next(filter(None, (scalar_text(attributes.get(name)) for name in names)), ""))


def _link(attributes: Mapping[str, Any], content: str) -> str:
    address = _text(attributes, "href", "url")
    return f'<a href="{address}">{content or address}</a>' if address else content


def _heading(attributes: Mapping[str, Any], content: str) -> str:
    level = attributes.get("level")
    level = min(6, max(1, level)) if isinstance(level, int) else 1
    return f"<h{level}>{content}</h{level}>"


def _task(attributes: Mapping[str, Any], content: str) -> str:
    checked = " checked" if attributes.get("state") == "DONE" else ""
    return f'<li><input type="checkbox"{checked}>{content}</li>'


def _code(attributes: Mapping[str, Any], content: str) -> str:
    code = content.replace("<br>", "\n")
    return f'<pre><code class="language-{_text(attributes, "language") or "none"}">{code}</code></pre>'


def _date(attributes: Mapping[str, Any], _content: str) -> str:
    stamp = attributes.get("timestamp")
    moment = parse_time(int(stamp) if isinstance(stamp, str) and stamp.isdecimal() else stamp)
    return moment.date().isoformat() if moment else ""


def _expand(attributes: Mapping[str, Any], content: str) -> str:
    return f"<p><strong>{_text(attributes, 'title')}</strong></p>{content}"


_WRITERS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "heading": _heading,
    "taskItem": _task,
    "codeBlock": _code,
    "date": _date,
    "hardBreak": lambda _attributes, _content: "<br>",
    "rule": lambda _attributes, _content: "<hr>",
    "mention": lambda attributes, _content: _text(attributes, "text", "id"),
    "emoji": lambda attributes, _content: _text(attributes, "text", "shortName"),
    "status": lambda attributes, _content: f"<strong>{_text(attributes, 'text')}</strong>",
    "media": lambda attributes, _content: _text(attributes, "alt", "__fileName"),
    "expand": _expand,
    "nestedExpand": _expand,
    **dict.fromkeys(("inlineCard", "blockCard", "embedCard"), _link),
}
