"""PDF to text and DOCX to HTML, run as a separate process, which contains the damage of hostile files.

The process runs without the packages of this project, so that this module imports none of them.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from unicodedata import normalize
from xml.etree import ElementTree as ET

MOST_SECONDS = 60
"""Most seconds of processor time for one PDF or DOCX."""
MOST_BYTES = 768 * 1024**2
"""Most bytes of address space, with Python and the libraries."""
MOST_UNPACKED = 200_000_000
"""Most unpacked bytes of a DOCX's entries; zipfile reads no more than an entry declares."""
_MOST_BASES = 20
"""Most styles in a chain of base styles."""
_EDGES = 2
"""Lines at the top and at the bottom of a page that may repeat on all pages."""


class _NotReadable(Exception):
    """The file cannot be read; the message continues a sentence that begins with its name."""


# DOCX -------------------------------------------------------------------------------------------------

_TEXTS = re.compile(r"(?:.*/)?(?:document\w*|footnotes|endnotes)\.xml")
_STYLES = re.compile(r"(?:.*/)?styles\w*\.xml")
_USED = re.compile(r".*\.(?:xml|rels)")
"""Entries that are converted; pictures are not."""
_STYLE_MAP = "\n".join(
    [
        "p[style-name='Title'] => h1:fresh",
        *(f"p[style-name='heading {n}'] => h{n}:fresh" for n in range(1, 7)),
    ]
)
_HEADING = re.compile(
    r"(?:heading|überschrift|titre|título|titolo|título|kop|nagłówek|заголовок|rubrik|otsikko|nadpis|overskrift|başlık"
    r"|címsor|naslov|επικεφαλίδα|見出し|标题|標題|제목)[ _]?([1-9])",
    re.IGNORECASE,
)
_TITLES = frozenset(
    {"title", "titel", "titre", "título", "titolo", "tytuł", "название", "标题", "表題", "제목"}
)
_WRAPPERS = frozenset({"fldSimple", "dir", "bdo", "smartTag", "rubyBase"})
"""Elements around text that Mammoth drops with their text."""
_PLAIN = {"noBreakHyphen": "-", "ptab": "\t", "cr": " "}
_HIDDEN = {"r": ("rPr", "vanish"), "sdt": ("sdtPr", "showingPlcHdr")}
"""Element -> path of the property that hides it."""
_LEVELS = range(1, 10)
"""Levels of headings; level 10 is text."""
_BLOCKS = frozenset({"body", "tc", "txbxContent", "footnote", "endnote", "sdtContent"})
_PRIVATE = range(0xE000, 0xF900)
"""Code points of symbols that depend on their font; Mammoth knows some of the fonts."""


def _docx(data: bytes) -> Mapping[str, str]:
    from zipfile import BadZipFile, ZipFile

    import mammoth

    try:
        with ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MOST_UNPACKED:
                too_large = f"unpacks to {size // 10**6} MB, and the most is {MOST_UNPACKED // 10**6} MB"
                raise _NotReadable(f"{too_large}; split it, or exclude it")
            prepared = io.BytesIO()
            with ZipFile(prepared, "w") as copy:
                for name in dict.fromkeys(filter(_USED.fullmatch, archive.namelist())):
                    copy.writestr(name, _prepared(name, archive.read(name)))
        converted = mammoth.convert_to_html(
            prepared, style_map=_STYLE_MAP, convert_image=lambda _: [], external_file_access=False
        )
    except BadZipFile:
        raise _NotReadable(
            "is no DOCX: it has a password or an old format; save it as DOCX without one"
        ) from None
    return {"html": converted.value}


def _prepared(name: str, content: bytes) -> bytes:
    """An entry changed so that Mammoth converts all text that Word shows."""
    is_text = _TEXTS.fullmatch(name)
    if not is_text and not _STYLES.fullmatch(name):
        return content
    root = ET.fromstring(content)  # noqa: S314 (in a process with bounds; expat refuses what grows)
    if not is_text:
        _name_headings(root)
    else:
        _Rewriter(root).write()
    return ET.tostring(root)


def _local(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def _inner(node: ET.Element | None, *names: str) -> ET.Element | None:
    """Descendant at a path of local names; None if there is none."""
    for name in names:
        node = next((child for child in node if _local(child) == name), None) if node is not None else None
    return node


def _value(node: ET.Element | None, name: str = "val") -> str:
    """An attribute by its local name; empty if there is none."""
    pairs = node.attrib.items() if node is not None else ()
    return next((value for key, value in pairs if key.rpartition("}")[2] == name), "")


def _name_headings(root: ET.Element) -> None:
    """Rename styles to `Title` or `heading N` by the outline level of the style or of its base styles."""
    styles = {_value(style, "styleId"): style for style in root if _local(style) == "style"}
    for style in styles.values():
        bases = [style]
        while (
            len(bases) < _MOST_BASES
            and (base := styles.get(_value(_inner(bases[-1], "basedOn")))) is not None
        ):
            bases.append(base)
        level = next(filter(None, map(_level, bases)), 0)
        is_title = _value(_inner(style, "name")).strip().lower() in _TITLES
        if is_title or level in _LEVELS:
            for name in style.iterfind("{*}name"):
                key = next(key for key in name.attrib if key.rpartition("}")[2] == "val")
                name.set(key, "Title" if is_title else f"heading {min(level, 6)}")


def _level(node: ET.Element) -> int:
    """Level of a heading set by a style or paragraph, from 1; 0 if none is set."""
    level = _value(_inner(node, "pPr", "outlineLvl"))
    spelled = _HEADING.fullmatch(_value(_inner(node, "name")).strip())
    return int(level) + 1 if level.isdecimal() else int(spelled[1]) if spelled else 0


class _Rewriter:
    """Rewrites the elements of a document that Mammoth does not support to those that it does."""

    def __init__(self, root: ET.Element) -> None:
        self._root = root
        self._space = root.tag.rpartition("}")[0] + "}" if "}" in root.tag else ""

    def write(self) -> None:
        """Rewrite the tree in place."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            children: list[ET.Element] = []
            remaining = deque(node)
            while remaining:
                child = remaining.popleft()
                replacement = self._replacement(child, node)
                if replacement is None:
                    children.append(child)
                else:  # the replacement is rewritten in turn
                    remaining.extendleft(reversed(replacement))
            node[:] = children
            waiting += children

    def _replacement(self, node: ET.Element, parent: ET.Element) -> list[ET.Element] | None:
        """Elements in place of an element; None if it stays."""
        name = _local(node)
        if name in _WRAPPERS:
            return [*node]
        if name in _PLAIN:
            return [self._text(_PLAIN[name])]
        if name in ("oMath", "oMathPara"):
            run = self._element("r", self._text(_linear(node)))
            return [self._element("p", run) if _local(parent) in _BLOCKS else run]
        if name in _HIDDEN and _is_on(_inner(node, *_HIDDEN[name])):
            return []
        change = self._CHANGES.get(name)
        return change(self, node) if change else None

    def _element(self, name: str, *children: ET.Element) -> ET.Element:
        element = ET.Element(self._space + name)
        element.extend(children)
        return element

    def _text(self, text: str) -> ET.Element:
        element = self._element("t")
        element.text = text
        return element

    def _ruby(self, node: ET.Element) -> list[ET.Element]:
        """Text with its pronunciation in brackets."""
        reading = "".join(text for rt in node.iterfind("{*}rt") for text in rt.itertext()).strip()
        return [*node.iterfind("{*}rubyBase/*"), self._text(f"({reading})")]

    def _boxes(self, node: ET.Element) -> list[ET.Element] | None:
        boxes = [*_outermost(node, "txbxContent")]
        return [self._element("pict", *boxes)] if boxes and [*node] != boxes else None

    def _symbol(self, node: ET.Element) -> list[ET.Element] | None:
        code = _value(node, "char")
        number = int(code, 16) if re.fullmatch("[0-9A-Fa-f]{1,5}", code) else 0
        return None if number in _PRIVATE else [self._text(chr(number))] if number else []

    def _mark_heading(self, paragraph: ET.Element) -> None:
        """Give a paragraph with an outline level, but without a style, the style of a heading."""
        properties, level = _inner(paragraph, "pPr"), _level(paragraph)
        if properties is not None and level in _LEVELS and _inner(properties, "pStyle") is None:
            style = self._element("pStyle")
            style.set(self._space + "val", f"Heading{min(level, 6)}")
            properties.insert(0, style)

    def _choice(self, node: ET.Element) -> list[ET.Element]:
        """The first of several alternative forms that has text, else the last."""
        forms = [form for form in node if _local(form) in ("Choice", "Fallback")]
        worded = (
            form
            for form in forms
            if any(_local(node) in ("txbxContent", "oMath", "t") for node in form.iter())
        )
        return [*next(worded, forms[-1] if forms else [])]

    _CHANGES: ClassVar[Mapping[str, Callable[[_Rewriter, ET.Element], list[ET.Element] | None]]] = {
        "AlternateContent": _choice, "ruby": _ruby, "sym": _symbol, "p": _mark_heading,
        "drawing": _boxes, "pict": _boxes, "object": _boxes,
    }  # fmt: skip


def _is_on(node: ET.Element | None) -> bool:
    return node is not None and _value(node) not in ("0", "false", "off")


def _outermost(node: ET.Element, name: str) -> Iterator[ET.Element]:
    waiting = [*reversed(node)]
    while waiting:
        inner = waiting.pop()
        if _local(inner) == name:
            yield inner
        else:
            waiting += reversed(inner)


# Formulas: Office's elements, and their form on one line. Other elements show their content.
_LINEAR: Mapping[str, str] = {
    "f": "{num}/{den}", "sSup": "{e}{sup}", "sSub": "{e}{sub}", "sSubSup": "{e}{sub}{sup}", "sPre": "{sub}{sup}{e}",
    "limLow": "{e}_{lim}", "limUpp": "{e}^{lim}", "func": "{fName} {e}", "nary": "{sign}{sub}{sup} {body}",
    "rad": "sqrt({body})", "root": "root({deg}, {body})",
}  # fmt: skip
_MARKS = {"sub": "_", "sup": "^"}
_BETWEEN = {"m": "; ", "eqArr": "; ", "mr": ", "}
"""Element with several children -> text between them."""


def _linear(node: ET.Element) -> str:
    """A formula on one line, such as `(a+b)/2`."""
    name = _local(node)
    if name == "t":
        return "".join(node.itertext())
    pieces = [(_local(child), _linear(child)) for child in node if not _local(child).endswith("Pr")]
    inner = dict(pieces)
    if name == "d":
        between = _sign(node, "sepChr", "|").join(text for _, text in pieces)
        return f"{_sign(node, 'begChr', '(')}{between}{_sign(node, 'endChr', ')')}"
    form = _LINEAR.get("root" if name == "rad" and inner.get("deg") else name)
    if form is None:
        return _BETWEEN.get(name, "").join(text for _, text in pieces)
    values = {key: _grouped(text, _MARKS.get(key, "")) for key, text in pieces}
    return form.format_map(defaultdict(str, values, sign=_sign(node, "chr", "∫"), body=inner.get("e", "")))


def _sign(node: ET.Element, key: str, usual: str) -> str:
    """A sign set by an element's properties; `usual` if it is not set."""
    sign = _inner(node, f"{_local(node)}Pr", key)
    return usual if sign is None else _value(sign)


def _grouped(text: str, mark: str = "") -> str:
    return mark + (text if len(text) == 1 or text.isalnum() else f"({text})") if text else ""


# PDF --------------------------------------------------------------------------------------------------


def _pdf(data: bytes) -> Mapping[str, str]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise _NotReadable("has a password; save it without one, or exclude it")
    marks: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for level, mark in _outline(reader.outline, 2):
        marks[reader.get_destination_page_number(mark) or 0].append(
            (level, " ".join(str(mark.title).split()))
        )
    lines: list[str] = []
    for number, page_lines in enumerate(_pages(reader)):
        for level, title in reversed(marks[number]):
            places = ((at, at + 1) for at, line in enumerate(page_lines) if _is_title(line, title))
            start, end = next(places, (0, 0))
            page_lines[start:end] = ["", f"{'#' * level} {title}", ""]
        lines += [*page_lines, ""]
    title = _title(reader)
    text = re.sub(
        "[\ufb00-\ufb06]", lambda m: normalize("NFKC", m[0]), "\n".join(lines)
    )  # searches are typed without ligatures
    text = with_whole_words(text).strip()
    return {"text": f"# {title}\n\n{text}" if title and text else text}


_BROKEN = re.compile(r"(?<![^\W\d_])([^\W\d_]++)([-\u2010\xad])(?:[ \t]*+\n){1,3}[ \t]*+(?=([^\W_]++))")
"""A word with a hyphen at the end of a line or page, and the first word of the next line."""
_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]++(?:[-\u2010][^\W_]++)*+(?![-\u2010\xad][ \t]*+\n)")
"""A word that is not broken."""
_COMPOUND_BEGINS = frozenset(
    "all cross ex full half high long low multi mid non real self semi short single so state two well".split()  # noqa: SIM905 (a list of words)
)
_COMPOUND_ENDS = frozenset(
    "aware based driven free known level like named only oriented party related safe side specific time to wide".split()  # noqa: SIM905 (a list of words)
)
_AND = frozenset({"and", "or", "und", "oder", "bzw", "et", "ou", "y", "o", "e", "en", "of", "och", "og"})
"""Words after the first half of a shared compound: `Unter- und Obergrenze`."""


def with_whole_words(text: str) -> str:
    """`text` with words joined that were broken at line ends; hyphens of compounds stay."""
    whole_words = {word.casefold().replace("\u2010", "-") for word in _WORD.findall(text)}

    def mended(broken: re.Match[str]) -> str:
        begin, mark, end = broken[1], broken[2], broken[3]
        if mark == "\xad":
            return begin
        if end.casefold() in _AND:
            return f"{begin}- "
        return (
            begin
            if _is_one_word(begin, end, text[max(0, broken.start() - 1) : broken.start()], whole_words)
            else f"{begin}-"
        )

    return _BROKEN.sub(mended, text).replace("\xad", "")


def _is_one_word(begin: str, end: str, before: str, whole_words: set[str]) -> bool:
    """Whether a hyphen only breaks a line: by the words of the document, else by the two halves."""
    first, last = begin.casefold(), end.casefold()
    if before in ("-", "\u2010") or not end.isalpha() or (end[0].isupper() and not begin.isupper()):
        return False
    if first + last in whole_words or f"{first}-{last}" in whole_words:
        return first + last in whole_words
    return first not in _COMPOUND_BEGINS and last not in _COMPOUND_ENDS


def _pages(reader: Any) -> Iterator[list[str]]:
    """Lines of each page, without headers and footers that most pages share."""
    pages = [page.extract_text().split("\n") for page in reader.pages]
    usual = Counter(_without_numbers(line) for page in pages for line in {*page[:_EDGES], *page[-_EDGES:]})
    often = {line for line, count in usual.items() if count > max(3, len(pages) / 2)}
    for page in pages:
        inner = range(_EDGES, len(page) - _EDGES)
        yield [
            _literal(line)
            for at, line in enumerate(page)
            if at in inner or _without_numbers(line) not in often
        ]


def _is_title(line: str, title: str) -> bool:
    """Whether a line is the title of a bookmark, possibly with a number before it."""
    return _letters(line).endswith(_letters(title)) and len(line) < len(title) + 12


def _title(reader: Any) -> str:
    """Title of the document; empty if there is none, or a program set it to a file name."""
    title = str(getattr(reader.metadata, "title", None) or "").strip()
    by_program = re.search(r"\.\w{2,4}$|^untitled|^microsoft|^slide \d|[/\\]", title, re.IGNORECASE)
    return "" if by_program else title


def _outline(items: Any, level: int) -> Iterator[tuple[int, Any]]:
    for item in items:
        if isinstance(item, list):
            yield from _outline(item, min(level + 1, 6))
        else:
            yield level, item


def _without_numbers(line: str) -> str:
    """A line with numbers masked, so that lines with page numbers compare equal."""
    return re.sub(r"\d+", "#", line.strip())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _literal(line: str) -> str:
    """A line escaped so that it is no heading, rule or fence in Markdown."""
    return re.sub(r"^\s*(?=#{1,6}(?:\s|$)|[=-]+\s*$|`{3}|~{3})", r"\\", line.rstrip())


def main() -> None:
    """Convert standard input within limits, and write the result, or why there is none, as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        answer = {"pdf": _pdf, "docx": _docx}[sys.argv[1]](sys.stdin.buffer.read())
    except _NotReadable as error:
        answer = {"why": str(error)}
    except MemoryError:
        return  # no answer means that the limits are passed
    except Exception as error:  # noqa: BLE001 (its message may quote the file)
        answer = {"why": f"cannot be read: it is damaged ({type(error).__name__}); mend it, or exclude it"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
