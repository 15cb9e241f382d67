"""PDF and DOCX as text and HTML, by this file as a program of its own: what a hostile one does ends with that process.

It runs without our packages: nothing of ours is imported.
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
"""Of processor time for one PDF or DOCX."""
MOST_BYTES = 768 * 1024**2
"""Of address space, Python and the libraries included."""
MOST_UNPACKED = 200_000_000
"""Bytes of a DOCX's entries; none gives more than it says."""
_MOST_BASES = 20
"""Styles that are based on each other."""
_EDGES = 2
"""Lines at the top and at the bottom of a page that may be the same on all pages."""


class _NotReadable(Exception):
    """The message continues a sentence that begins with the file's name."""


# DOCX -------------------------------------------------------------------------------------------------

_TEXTS = re.compile(r"(?:.*/)?(?:document\w*|footnotes|endnotes)\.xml")
_STYLES = re.compile(r"(?:.*/)?styles\w*\.xml")
_USED = re.compile(r".*\.(?:xml|rels)")
"""Pictures are left out."""
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
"""Elements about text that Mammoth leaves out with their text."""
_PLAIN = {"noBreakHyphen": "-", "ptab": "\t", "cr": " "}
_HIDDEN = {"r": ("rPr", "vanish"), "sdt": ("sdtPr", "showingPlcHdr")}
"""Elements that are not shown where the property at this path is on."""
_LEVELS = range(1, 10)
"""Of headings; a tenth is text."""
_BLOCKS = frozenset({"body", "tc", "txbxContent", "footnote", "endnote", "sdtContent"})
_PRIVATE = range(0xE000, 0xF900)
"""Of a symbol whose sign depends on its font, which Mammoth knows of some."""


def _docx(data: bytes) -> Mapping[str, str]:
    from zipfile import BadZipFile, ZipFile

    import mammoth

    try:
        with ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MOST_UNPACKED:
                much = f"unpacks to {size // 10**6} MB, and the most is {MOST_UNPACKED // 10**6} MB"
                raise _NotReadable(f"{much}; split it, or exclude it")
            prepared = io.BytesIO()
            with ZipFile(prepared, "w") as copy:
                for name in dict.fromkeys(filter(_USED.fullmatch, archive.namelist())):
                    copy.writestr(name, _prepared(name, archive.read(name)))
        found = mammoth.convert_to_html(
            prepared, style_map=_STYLE_MAP, convert_image=lambda _: [], external_file_access=False
        )
    except BadZipFile:
        raise _NotReadable(
            "is no DOCX: it has a password or an old format; save it as DOCX without one"
        ) from None
    return {"html": found.value}


def _prepared(name: str, content: bytes) -> bytes:
    """An entry in the form in which Mammoth shows all that Word shows."""
    is_text = _TEXTS.fullmatch(name)
    if not is_text and not _STYLES.fullmatch(name):
        return content
    root = ET.fromstring(content)  # noqa: S314 (in a process with bounds; expat refuses what grows)
    if not is_text:
        _name_headings(root)
    else:
        _Words(root).write()
    return ET.tostring(root)


def _local(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def _inner(node: ET.Element | None, *names: str) -> ET.Element | None:
    """What lies at the end of a path of local names."""
    for name in names:
        node = next((child for child in node if _local(child) == name), None) if node is not None else None
    return node


def _value(node: ET.Element | None, name: str = "val") -> str:
    """An attribute by its local name; empty if there is none."""
    pairs = node.attrib.items() if node is not None else ()
    return next((value for key, value in pairs if key.rpartition("}")[2] == name), "")


def _name_headings(root: ET.Element) -> None:
    """Names styles for what they are: by the outline's level, their own or that of a style they are based on."""
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
    """The level of a heading that a style or paragraph gives, from 1; 0 if it gives none."""
    level = _value(_inner(node, "pPr", "outlineLvl"))
    spelled = _HEADING.fullmatch(_value(_inner(node, "name")).strip())
    return int(level) + 1 if level.isdecimal() else int(spelled[1]) if spelled else 0


class _Words:
    """One part of a document, of which elements that Mammoth does not know are made such as it knows."""

    def __init__(self, root: ET.Element) -> None:
        self._root = root
        self._space = root.tag.rpartition("}")[0] + "}" if "}" in root.tag else ""

    def write(self) -> None:
        """Changes the part."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            children: list[ET.Element] = []
            left = deque(node)
            while left:
                child = left.popleft()
                shown = self._shown(child, node)
                if shown is None:
                    children.append(child)
                else:  # looked at in its turn
                    left.extendleft(reversed(shown))
            node[:] = children
            waiting += children

    def _shown(self, node: ET.Element, parent: ET.Element) -> list[ET.Element] | None:
        """What stands for an element; None if it stays."""
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
        made = ET.Element(self._space + name)
        made.extend(children)
        return made

    def _text(self, text: str) -> ET.Element:
        made = self._element("t")
        made.text = text
        return made

    def _ruby(self, node: ET.Element) -> list[ET.Element]:
        """Words with how they are read."""
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
        """A paragraph may have a level of the outline without a style that has one."""
        properties, level = _inner(paragraph, "pPr"), _level(paragraph)
        if properties is not None and level in _LEVELS and _inner(properties, "pStyle") is None:
            style = self._element("pStyle")
            style.set(self._space + "val", f"Heading{min(level, 6)}")
            properties.insert(0, style)

    def _choice(self, node: ET.Element) -> list[ET.Element]:
        """Of the same thing in several forms the one whose words can be read."""
        forms = [form for form in node if _local(form) in ("Choice", "Fallback")]
        worded = (
            form for form in forms if any(_local(one) in ("txbxContent", "oMath", "t") for one in form.iter())
        )
        return [*next(worded, forms[-1] if forms else [])]

    _CHANGES: ClassVar[Mapping[str, Callable[[_Words, ET.Element], list[ET.Element] | None]]] = {
        "AlternateContent": _choice, "ruby": _ruby, "sym": _symbol, "p": _mark_heading,
        "drawing": _boxes, "pict": _boxes, "object": _boxes,
    }  # fmt: skip


def _is_on(node: ET.Element | None) -> bool:
    return node is not None and _value(node) not in ("0", "false", "off")


def _outermost(node: ET.Element, name: str) -> Iterator[ET.Element]:
    waiting = [*reversed(node)]
    while waiting:
        one = waiting.pop()
        if _local(one) == name:
            yield one
        else:
            waiting += reversed(one)


# Formulas: Office's elements, and how their arguments stand on a line. What is not here shows what it holds.
_LINEAR: Mapping[str, str] = {
    "f": "{num}/{den}", "sSup": "{e}{sup}", "sSub": "{e}{sub}", "sSubSup": "{e}{sub}{sup}", "sPre": "{sub}{sup}{e}",
    "limLow": "{e}_{lim}", "limUpp": "{e}^{lim}", "func": "{fName} {e}", "nary": "{sign}{sub}{sup} {body}",
    "rad": "sqrt({body})", "root": "root({deg}, {body})",
}  # fmt: skip
_MARKS = {"sub": "_", "sup": "^"}
_BETWEEN = {"m": "; ", "eqArr": "; ", "mr": ", "}
"""Elements of several parts -> the text between these."""


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
    """A sign that the properties of a part of a formula give."""
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
    found: list[str] = []
    for number, kept in enumerate(_pages(reader)):
        for level, title in reversed(marks[number]):
            places = ((at, at + 1) for at, line in enumerate(kept) if _is_title(line, title))
            start, end = next(places, (0, 0))
            kept[start:end] = ["", f"{'#' * level} {title}", ""]
        found += [*kept, ""]
    title = _title(reader)
    text = re.sub(
        "[\ufb00-\ufb06]", lambda m: normalize("NFKC", m[0]), "\n".join(found)
    )  # nobody types ligatures
    text = with_whole_words(text).strip()
    return {"text": f"# {title}\n\n{text}" if title and text else text}


_BROKEN = re.compile(r"(?<![^\W\d_])([^\W\d_]++)([-\u2010\xad])(?:[ \t]*+\n){1,3}[ \t]*+(?=([^\W_]++))")
"""A word with a hyphen at the end of a line or page, and how the next line begins."""
_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]++(?:[-\u2010][^\W_]++)*+(?![-\u2010\xad][ \t]*+\n)")
"""One that is whole."""
_COMPOUND_BEGINS = frozenset(
    "all cross ex full half high long low multi mid non real self semi short single so state two well".split()  # noqa: SIM905 (a list of words)
)
_COMPOUND_ENDS = frozenset(
    "aware based driven free known level like named only oriented party related safe side specific time to wide".split()  # noqa: SIM905 (a list of words)
)
_AND = frozenset({"and", "or", "und", "oder", "bzw", "et", "ou", "y", "o", "e", "en", "of", "och", "og"})
"""Behind a part of a word whose rest follows: `Unter- und Obergrenze`."""


def with_whole_words(text: str) -> str:
    """`text` without the hyphens by which words are broken at the ends of lines, and with those that are theirs."""
    whole = {word.casefold().replace("\u2010", "-") for word in _WORD.findall(text)}

    def mended(broken: re.Match[str]) -> str:
        begin, mark, rest = broken[1], broken[2], broken[3]
        if mark == "\xad":
            return begin
        if rest.casefold() in _AND:
            return f"{begin}- "
        return (
            begin
            if _is_one_word(begin, rest, text[max(0, broken.start() - 1) : broken.start()], whole)
            else f"{begin}-"
        )

    return _BROKEN.sub(mended, text).replace("\xad", "")


def _is_one_word(begin: str, rest: str, before: str, whole: set[str]) -> bool:
    """Whether a hyphen is there only because the line ended: the rest of the document tells, else the two pieces."""
    first, last = begin.casefold(), rest.casefold()
    if before in ("-", "\u2010") or not rest.isalpha() or (rest[0].isupper() and not begin.isupper()):
        return False
    if first + last in whole or f"{first}-{last}" in whole:
        return first + last in whole
    return first not in _COMPOUND_BEGINS and last not in _COMPOUND_ENDS


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


def main() -> None:
    """Read standard input within bounds, and write what it says as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        answer = {"pdf": _pdf, "docx": _docx}[sys.argv[1]](sys.stdin.buffer.read())
    except _NotReadable as error:
        answer = {"why": str(error)}
    except MemoryError:
        return  # no answer: the bounds are passed
    except Exception as error:  # noqa: BLE001 (its words may quote the file)
        answer = {"why": f"cannot be read: it is damaged ({type(error).__name__}); mend it, or exclude it"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
