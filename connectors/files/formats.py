"""Conversion of HTML, reStructuredText, AsciiDoc, PDF and DOCX to Markdown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, ClassVar

from connectors.files import office
from connectors.files.office import MOST_BYTES, MOST_SECONDS

MOST_CHARACTERS = 5_000_000


class NotReadable(Exception):
    """The file cannot be read; the message continues a sentence that begins with its name. Never leaves this module."""


def markdown_of(name: str, text: str) -> str:
    """Convert a file of one of the `FORMATS` to Markdown.

    `text` of a PDF or DOCX is its bytes, one character each.

    Raises:
        DocumentRejected: it cannot be read; the message says why.
    """
    from connectors.files.options import FORMATS
    from pipeline.errors import DocumentRejected

    library, read = READERS[FORMATS[PurePosixPath(name).suffix.lower()]]
    if library and find_spec(library) is None:
        raise DocumentRejected(
            f"{name} needs {library}, which is not installed", fix="install larder[office]"
        )
    try:
        markdown = read(text)
    except NotReadable as error:
        raise DocumentRejected(f"{name} {error}") from None
    if len(markdown) > MOST_CHARACTERS:
        too_much = f"{name} holds more than {MOST_CHARACTERS} characters of text"
        raise DocumentRejected(too_much, fix="split it, or exclude it")
    return markdown


# HTML -----------------------------------------------------------------------------------------------


def _html(text: str) -> str:
    from connectors.files.web_page import page_markdown

    markdown, capped = page_markdown(text, MOST_CHARACTERS)
    if capped:
        raise NotReadable("is too large to read; split it, or exclude it")
    return markdown


# reStructuredText -----------------------------------------------------------------------------------

_RST_SAFE = {
    "file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True, "report_level": 5, "halt_level": 5,
    "doctitle_xform": False, "docinfo_xform": False, "initial_header_level": 1, "syntax_highlight": "none",
    "math_output": "LaTeX", "line_length_limit": 10_000_000, "toc_backlinks": False,
    "embed_stylesheet": False, "stylesheet_path": "",
}  # fmt: skip
_DIRECTIVE = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([\w.+:-]+?)[ \t]?::(?=\s|$)", re.MULTILINE)
_MAIL_HEAD = re.compile(r"\A(?:[A-Z][\w-]*:(?:[ \t].*)?\n(?:[ \t]+\S.*\n)*){2,}(?=\s*\n)")
_ROLE = re.compile(r":([A-Za-z][\w.+:-]*):(?=`)|(?<=`):([A-Za-z][\w.+:-]*):")
_CODE = frozenset({"code-block", "sourcecode", "code", "doctest", "testcode", "productionlist", "prompt"})
_SILENT = frozenset(
    {"toctree", "index", "highlight", "currentmodule", "module", "literalinclude", "testsetup"}
)
"""Directives without visible content."""
_SINCE = frozenset({"versionadded", "versionchanged", "versionremoved", "deprecated"})
"""Directives with a version, which a sentence may follow."""


def _without_mail_head(text: str) -> tuple[str, str]:
    """Title in a head like that of a mail, as PEPs have it, else empty; and the text with that head as a list."""
    head = _MAIL_HEAD.match(text)
    if head is None:
        return "", text
    unwrapped = re.sub(r"\n[ \t]+", " ", head[0])
    title = re.search(r"^(?:Title|Subject): (.+)", unwrapped, re.MULTILINE)
    listed = re.sub(r"^(?=\S)", "* ", unwrapped, flags=re.MULTILINE)
    return re.sub(r"\\ |\\(?=.)", "", title[1]) if title else "", listed + text[head.end() :]


def _rst(text: str) -> str:
    from docutils.core import publish_parts
    from docutils.parsers.rst import directives, roles
    from docutils.parsers.rst.directives.images import Figure, Image
    from docutils.parsers.rst.languages import en

    title, text = _without_mail_head(text)
    saved = [(registry, dict(registry)) for registry in (directives._directives, roles._roles)]  # noqa: SLF001
    try:
        for name in {*map(str.lower, _DIRECTIVE.findall(text))} - {*en.directives} | _CODE:
            directives.register_directive(name, _foreign_directive())
        for image in (Image, Figure):
            safe_options = {
                name: kind for name, kind in image.option_spec.items() if name != "loading"
            }  # `loading` can read any file
            directives.register_directive(
                image.__name__.lower(), type("Safe", (image,), {"option_spec": safe_options})
            )
        for pair in _ROLE.findall(text):
            name = "".join(pair).lower()
            if name not in en.roles:
                roles.register_local_role(name, _foreign_role)
        rendered = publish_parts(text, writer="html5", settings_overrides=_RST_SAFE)
    except ValueError:  # as for the number of an item with thousands of digits
        raise NotReadable("has a number with too many digits; shorten it, or exclude it") from None
    finally:
        for registry, contents in saved:  # definitions of one file must not reach the next
            registry.clear()
            registry.update(contents)
    return _html(f"<h1>{escape(title)}</h1>{rendered['fragment']}" if title else rendered["fragment"])


def _foreign_directive() -> Any:
    """Directive class for Sphinx and other tools: writes its name and arguments as a line, then its content."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives

    class Foreign(Directive):  # type: ignore[misc]
        optional_arguments, final_argument_whitespace, has_content = 1, True, True
        option_spec: ClassVar[Any] = defaultdict(lambda: directives.unchanged, name=directives.unchanged)

        def run(self) -> list[Any]:
            name, argument = self.name.lower().rpartition(":")[2], " ".join(" ".join(self.arguments).split())
            if name in _SILENT:
                return []
            if name in _CODE:
                code = "\n".join(self.content)
                block = nodes.literal_block(code, code, classes=["code", f"lang-{argument}"])
                caption = self.options.get("caption", "")
                words = self.state.inline_text(caption, self.lineno)[0] if caption else []
                return [*([nodes.paragraph("", "", *words)] if words else []), block]
            container, description = nodes.container(), list[Any]()
            if name in _SINCE:
                argument, _, sentence = argument.partition(" ")
                description = self.state.inline_text(f" {sentence}" if sentence else "", self.lineno)[0]
            if name != "only":
                container += nodes.paragraph(
                    "", "", nodes.strong(text=f"{name} {argument}".strip()), *description
                )
            self.state.nested_parse(self.content, self.content_offset, container)
            return [container]

    return Foreign


def _foreign_role(
    _name: str, raw: str, text: str, _line: int, _inliner: Any, _options: Any = None, _content: Any = None
) -> tuple[list[Any], list[Any]]:
    """A role of Sphinx or another tool: its text without its target."""
    from docutils import nodes, utils

    label = re.sub(r"\s*<[^<>]*>$", "", utils.unescape(text)) or text
    return [nodes.inline(raw, label.lstrip("!~"))], []


# AsciiDoc -------------------------------------------------------------------------------------------


def _asciidoc(text: str) -> str:
    from connectors.files.asciidoc import asciidoc_markdown

    return asciidoc_markdown(text, MOST_CHARACTERS)


# PDF and DOCX ---------------------------------------------------------------------------------------


def _in_subprocess(kind: str, text: str) -> str:
    command = [sys.executable, "-I", office.__file__, kind]
    try:
        done = subprocess.run(  # noqa: S603 (a module of this package)
            command, input=text.encode("latin-1"), capture_output=True, timeout=2 * MOST_SECONDS, env={},
            check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        bounds = f"{MOST_SECONDS} seconds or {MOST_BYTES // 1024**2} MB of memory"
        raise NotReadable(f"takes more than {bounds} to read; split it, or exclude it") from None
    if "why" in answer:
        raise NotReadable(answer["why"])
    return _html(answer["html"]) if "html" in answer else str(answer["text"])


READERS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "html": ("", _html),
    "rst": ("docutils", _rst),
    "asciidoc": ("", _asciidoc),
    "pdf": ("pypdf", partial(_in_subprocess, "pdf")),
    "docx": ("mammoth", partial(_in_subprocess, "docx")),
}
"""Format -> the library it needs, empty for none, and its reader."""
