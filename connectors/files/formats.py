"""HTML, reStructuredText, AsciiDoc, PDF and DOCX as Markdown, so that titles, headings and decisions are found in them.

PDF and DOCX are read by this file as a program of its own: what a hostile one does ends with that process.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar
from unicodedata import normalize

if TYPE_CHECKING:  # nothing of ours is imported at the top: the program runs without our packages
    from connectors.markup.parsing import Element

MOST_SECONDS = 60
"""Of processor time for one PDF or DOCX."""
MOST_BYTES = 768 * 1024**2
"""Of address space, Python and the libraries included."""
MOST_CHARACTERS = 5_000_000
MOST_UNPACKED = 200_000_000
"""Bytes of a DOCX's entries; none gives more than it says."""
_EDGES = 2
"""Lines at the top and at the bottom of a page that may be the same on all pages."""


class NotReadable(Exception):
    """The message continues a sentence that begins with the file's name; never leaves this file."""


def markdown_of(name: str, text: str) -> str:
    """The Markdown of a file of one of the `FORMATS`.

    `text` of a PDF or DOCX are its bytes, one character each.

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
        found = read(text)
    except NotReadable as error:
        raise DocumentRejected(f"{name} {error}") from None
    if len(found) > MOST_CHARACTERS:
        much = f"{name} holds more than {MOST_CHARACTERS} characters of text"
        raise DocumentRejected(much, fix="split it, or exclude it")
    return found


# HTML -----------------------------------------------------------------------------------------------

_ASIDE = frozenset({"nav", "footer", "button", "select", "noscript", "svg", "dialog"})
_ASIDE_ROLES = frozenset({"navigation", "search", "contentinfo", "complementary"})


def _html(text: str) -> str:
    from connectors.markup.elements import to_markdown

    titles: list[str] = []

    def content(page: Element) -> Element:
        """What the page is about; the rest is on every page of its site."""
        every = [page, *page.within()]
        titles.extend(one.content(300) for one in every if one.name == "title")
        for one in every:
            one.children = [child for child in one.children if isinstance(child, str) or not _aside(child)]
        mains = (one for one in page.within() if one.name == "main" or one.get("role") == "main")
        return next(mains, page)

    found = to_markdown(text, most_characters=MOST_CHARACTERS, content=content)
    if found.capped:
        raise NotReadable("is too large to read; split it, or exclude it")
    title = " ".join(" ".join(titles[:1]).split())
    headed = found.text.startswith("# ") or "\n# " in found.text
    return f"# {title}\n\n{found.text}" if title and found.text and not headed else found.text


def _aside(element: Element) -> bool:
    hidden = "hidden" in element.attributes or element.get("aria-hidden") == "true"
    anchor = element.name == "a" and "headerlink" in element.get("class")
    return hidden or anchor or element.name in _ASIDE or element.get("role") in _ASIDE_ROLES


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
"""Directives that say nothing to a reader of the page."""
_SINCE = frozenset({"versionadded", "versionchanged", "versionremoved", "deprecated"})
"""Directives of a version, behind which a sentence may stand."""


def _without_mail_head(text: str) -> tuple[str, str]:
    """The title that a head as of a mail tells, as PEPs begin, else none; and the text with that head as a list."""
    head = _MAIL_HEAD.match(text)
    if head is None:
        return "", text
    said = re.search(r"^(?:Title|Subject): (.+)", head[0], re.MULTILINE)
    listed = re.sub(r"^(?=\S)", "* ", head[0], flags=re.MULTILINE)
    return said[1] if said else "", listed + text[head.end() :]


def _rst(text: str) -> str:
    from docutils.core import publish_parts
    from docutils.parsers.rst import directives, roles
    from docutils.parsers.rst.directives.images import Figure, Image
    from docutils.parsers.rst.languages import en

    title, text = _without_mail_head(text)
    before = [(kept, dict(kept)) for kept in (directives._directives, roles._roles)]  # noqa: SLF001
    try:
        for name in {*map(str.lower, _DIRECTIVE.findall(text))} - {*en.directives} | _CODE:
            directives.register_directive(name, _foreign_directive())
        for image in (Image, Figure):
            known = {
                name: kind for name, kind in image.option_spec.items() if name != "loading"
            }  # it reads any file
            directives.register_directive(
                image.__name__.lower(), type("Safe", (image,), {"option_spec": known})
            )
        for pair in _ROLE.findall(text):
            name = "".join(pair).lower()
            if name not in en.roles:
                roles.register_local_role(name, _foreign_role)
        parts = publish_parts(text, writer="html5", settings_overrides=_RST_SAFE)
    except ValueError:  # as for the number of an item with thousands of digits
        raise NotReadable("has a number that nobody can read; shorten it, or exclude it") from None
    finally:
        for kept, was in before:  # what one file defines is nothing to the next
            kept.clear()
            kept.update(was)
    return _html(f"<h1>{escape(title)}</h1>{parts['fragment']}" if title else parts["fragment"])


def _foreign_directive() -> Any:
    """A directive of Sphinx or another tool: what it is about as a line, and what it holds."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives

    class Foreign(Directive):  # type: ignore[misc]
        optional_arguments, final_argument_whitespace, has_content = 1, True, True
        option_spec: ClassVar[Any] = defaultdict(lambda: directives.unchanged, name=directives.unchanged)

        def run(self) -> list[Any]:
            name, about = self.name.lower().rpartition(":")[2], " ".join(" ".join(self.arguments).split())
            if name in _SILENT:
                return []
            if name in _CODE:
                code = "\n".join(self.content)
                return [nodes.literal_block(code, code, classes=["code", f"lang-{about}"])]
            found, said = nodes.container(), list[Any]()
            if name in _SINCE:
                about, _, more = about.partition(" ")
                said = self.state.inline_text(f" {more}" if more else "", self.lineno)[0]
            if name != "only":
                found += nodes.paragraph("", "", nodes.strong(text=f"{name} {about}".strip()), *said)
            self.state.nested_parse(self.content, self.content_offset, found)
            return [found]

    return Foreign


def _foreign_role(
    _name: str, raw: str, text: str, _line: int, _inliner: Any, _options: Any = None, _content: Any = None
) -> tuple[list[Any], list[Any]]:
    """A reference of Sphinx or another tool: its words without its target."""
    from docutils import nodes, utils

    shown = re.sub(r"\s*<[^<>]*>$", "", utils.unescape(text)) or text
    return [nodes.inline(raw, shown.lstrip("!~"))], []


# AsciiDoc -------------------------------------------------------------------------------------------

_ADOC_DROPPED = re.compile(
    r":!?[\w-]+!?:(?:\s.*)?$|//(?!/)|\[.*\]$|(?:={4,}|_{4,}|\*{4,}|--|\+|<<<)$|\w+::\S*\[.*\]$"
)
_Shown = Callable[[re.Match[str]], str]
_ADOC_LINES: tuple[tuple[re.Pattern[str], _Shown], ...] = (
    (re.compile(r"(={1,6})[ \t]+(\S.*)"), lambda m: f"{'#' * len(m[1])} {m[2]}"),
    (re.compile(r"\.(?=[^\s.])(.+)"), lambda m: f"**{m[1]}**"),
    (re.compile(r"[ \t]*(?:\*{1,5}|\.{1,5}|-)[ \t]+(\S.*)"), lambda m: f"- {m[1]}"),
    (re.compile(r"(\S.*?):{2,4}$"), lambda m: f"\n**{m[1]}**\n"),
)  # fmt: skip
_ADOC_LINK = re.compile(r"(?:link:|(?=https?:))([^\s\[\]]{1,1000})\[([^\[\]\n]{0,500})\]")
_ADOC_MACRO = re.compile(
    r"<<[^<>,\n]{0,200},\s*([^<>\n]{1,300})>>|\b(?:xref|linkgit):([^\s\[\]]{1,200})\[([^\[\]\n]{0,300})\]"
)
_ADOC_UNDER = "=-~^+"
_ADOC_FENCE = re.compile(r"-{4,}|\.{4,}|/{4,}|`{3,}")


def _asciidoc(text: str) -> str:
    found: list[str] = []
    fence = above = ""
    lines = text.split("\n")
    for index, line in enumerate(map(str.rstrip, lines)):
        marks = line if _ADOC_FENCE.fullmatch(line) else ""
        before = lines[max(0, index - 2)] if index > 1 else ""
        alone = not before.strip() or before.startswith(("[", "//", ":"))
        if fence:
            if line == fence:
                fence = ""
                found += [] if marks[0] == "/" else ["```"]
            elif fence[0] != "/":
                found.append(line)
        elif above.strip() and alone and line and line[0] in _ADOC_UNDER and _underlines(above, line):
            found[-1] = f"{'#' * (_ADOC_UNDER.index(line[0]) + 1)} {above}"
        elif marks:
            fence = marks
            found += [] if marks[0] == "/" else ["", "```"]
        elif not _ADOC_DROPPED.match(line):
            found.append(_adoc_line(line))
            above = line
            continue
        above = ""
    return "\n".join(found)


def _underlines(above: str, line: str) -> bool:
    return not line.strip(line[0]) and len(line) > 1 and abs(len(above) - len(line)) < 3  # noqa: PLR2004


def _adoc_line(line: str) -> str:
    line = _ADOC_LINK.sub(lambda m: f"[{m[2] or m[1]}]({m[1]})", line)
    line = _ADOC_MACRO.sub(lambda m: m[1] or (f"{m[2]}({m[3]})" if m[3].isdigit() else m[3] or m[2]), line)
    for pattern, shown in _ADOC_LINES:
        if match := pattern.fullmatch(line):
            return shown(match)
    return line


# PDF and DOCX ---------------------------------------------------------------------------------------


def _apart(kind: str, text: str) -> str:
    command = [sys.executable, "-I", __file__, kind]
    try:
        done = subprocess.run(  # noqa: S603 (this very file)
            command, input=text.encode("latin-1"), capture_output=True, timeout=2 * MOST_SECONDS, env={},
            check=False,
        )  # fmt: skip
        told = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        bounds = f"{MOST_SECONDS} seconds or {MOST_BYTES // 1024**2} MB of memory"
        raise NotReadable(f"takes more than {bounds} to read; split it, or exclude it") from None
    if "why" in told:
        raise NotReadable(told["why"])
    return _html(told["html"]) if "html" in told else str(told["text"])


def _docx(data: bytes) -> Mapping[str, str]:
    from zipfile import BadZipFile, ZipFile

    import mammoth

    try:
        with ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_UNPACKED:
            much = f"unpacks to {size // 10**6} MB, and the most is {MOST_UNPACKED // 10**6} MB"
            raise NotReadable(f"{much}; split it, or exclude it")
        found = mammoth.convert_to_html(
            io.BytesIO(data), style_map="p[style-name='Title'] => h1:fresh", convert_image=lambda _: [],
            external_file_access=False,
        )  # fmt: skip
    except BadZipFile:
        raise NotReadable(
            "is no DOCX: it has a password or an old format; save it as DOCX without one"
        ) from None
    return {"html": found.value}


def _pdf(data: bytes) -> Mapping[str, str]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise NotReadable("has a password; save it without one, or exclude it")
    marks: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for level, mark in _outline(reader.outline, 2):
        marks[reader.get_destination_page_number(mark) or 0].append(
            (level, " ".join(str(mark.title).split()))
        )
    found: list[str] = []
    for number, kept in enumerate(_pages(reader)):
        for level, title in reversed(marks[number]):
            places = ((at, at + 1) for at, line in enumerate(kept) if _is_title(line, title))
            start, end = next(places, (0, 0))
            kept[start:end] = ["", f"{'#' * level} {title}", ""]
        found += [*kept, ""]
    title = _title(reader)
    text = re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", "\n".join(found)).strip()
    text = re.sub("[\ufb00-\ufb06]", lambda m: normalize("NFKC", m[0]), text)  # ligatures, which nobody types
    return {"text": f"# {title}\n\n{text}" if title and text else text}


def _pages(reader: Any) -> Iterator[list[str]]:
    """The lines of each page, without what most pages have at their edges."""
    pages = [page.extract_text().split("\n") for page in reader.pages]
    usual = Counter(_bare(line) for page in pages for line in {*page[:_EDGES], *page[-_EDGES:]})
    often = {line for line, count in usual.items() if count > max(3, len(pages) / 2)}
    for page in pages:
        inner = range(_EDGES, len(page) - _EDGES)
        yield [_literal(line) for at, line in enumerate(page) if at in inner or _bare(line) not in often]


def _is_title(line: str, title: str) -> bool:
    """Whether a line is the title of a bookmark, perhaps with a number before it."""
    return _letters(line).endswith(_letters(title)) and len(line) < len(title) + 12


def _title(reader: Any) -> str:
    """That of the document; empty if a program named it after a file, or not at all."""
    title = str(getattr(reader.metadata, "title", None) or "").strip()
    made = re.search(r"\.\w{2,4}$|^untitled|^microsoft|^slide \d|[/\\]", title, re.IGNORECASE)
    return "" if made else title


def _outline(items: Any, level: int) -> Iterator[tuple[int, Any]]:
    for item in items:
        if isinstance(item, list):
            yield from _outline(item, min(level + 1, 6))
        else:
            yield level, item


def _bare(line: str) -> str:
    """A line of which pages may have the same but for their number."""
    return re.sub(r"\d+", "#", line.strip())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _literal(line: str) -> str:
    """A line that Markdown would not take for a heading, a rule or a fence."""
    return re.sub(r"^\s*(?=#{1,6}(?:\s|$)|[=-]+\s*$|`{3}|~{3})", r"\\", line.rstrip())


READERS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "html": ("", _html),
    "rst": ("docutils", _rst),
    "asciidoc": ("", _asciidoc),
    "pdf": ("pypdf", partial(_apart, "pdf")),
    "docx": ("mammoth", partial(_apart, "docx")),
}
"""Format -> the library that it takes, and what reads it."""


def main() -> None:
    """Read standard input within bounds, and write what it says as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        told = {"pdf": _pdf, "docx": _docx}[sys.argv[1]](sys.stdin.buffer.read())
    except NotReadable as error:
        told = {"why": str(error)}
    except MemoryError:
        return  # nothing said: the bounds are passed
    except Exception as error:  # noqa: BLE001 (its words may quote the file)
        told = {"why": f"cannot be read: it is damaged ({type(error).__name__}); mend it, or exclude it"}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
