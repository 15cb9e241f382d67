"""HTML, reStructuredText, AsciiDoc, PDF and DOCX files as documents, and what evil ones come to."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from pypdf import PdfWriter

from connectors.documents.headings import headings_of
from connectors.files.office import MOST_BYTES
from pipeline.documents import Document, Kind
from tests.connectors.folders import file_options, walk

RST = """\
.. _tides:

=====
Tides
=====

A :func:`~harbour.tide` is *high* or low; see :doc:`the table </table>`.

The gate
--------

.. function:: gate(draught)
   :noindex:

   Says whether a vessel passes.

   .. versionadded:: 3.4

   .. versionchanged:: 3.5
      Takes ``draught`` as :ref:`a depth <depths>`, see *there*.

.. code-block:: python
   :linenos:

   gate(7)

.. toctree::
   :maxdepth: 2

   hidden-page

.. note:: Ask the pilot.
"""
ADOC = """\
= Tides
Ada <ada@example.com>
:toc:

// nobody reads this
A tide is https://example.com/t[high] or <<low,low>>, see linkgit:git-add[1].

The gate
--------

include::/etc/passwd[]

[source,python]
----
== no heading
gate(7)
----

Draught::
  How deep it sits.

=== Deeper

* one
"""
HTML = """\
<!doctype html><html><head><title>Tides | Handbook</title><style>p {}</style></head><body>
<nav><a href="/">Home</a></nav><main><h2>The gate<a class="headerlink" href="#g">¶</a></h2><p>A tide is <b>high</b>.</p>
<script>secret()</script><p hidden>unseen</p></main><footer>imprint</footer></body></html>"""
MARKS = '<w:p><w:pPr><w:pStyle w:val="{}"/></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
STYLES = "".join(
    f'<w:style w:type="paragraph" w:styleId="{key}"><w:name w:val="{name}"/></w:style>'
    for key, name in (("Title", "Title"), ("Heading1", "heading 1"), ("Heading2", "heading 2"))
)
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def docx(
    *paragraphs: tuple[str, str], head: str = "", more: Mapping[str, bytes] = MappingProxyType({})
) -> bytes:
    """A DOCX of paragraphs with their styles; `more` are further entries."""
    made = io.BytesIO()
    body = "".join(MARKS.format(*one) for one in paragraphs)
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    link = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(
            "[Content_Types].xml",
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f'<Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{link}" Target="word/document.xml"/></Relationships>',
        )
        archive.writestr(
            "word/document.xml", f"{head}<w:document {WORD}><w:body>{body}</w:body></w:document>"
        )
        styles = f"<w:styles {WORD}>{STYLES}</w:styles>".encode()
        for name, content in {"word/styles.xml": styles, **more}.items():
            archive.writestr(name, content)
    return made.getvalue()


def pdf(*pages: str, title: str = "", marks: tuple[tuple[str, int], ...] = (), password: str = "") -> bytes:
    """A PDF with a line of text for each line, bookmarks (title, page) and a password."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    kids = []
    for page in pages:
        shown = "".join(f"({line}) Tj T* " for line in page.split("\n"))
        content = f"BT /F 12 Tf 14 TL 72 720 Td {shown}ET".encode()
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F 3 0 R>>>>/Contents %d 0 R>>"
            % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    raw, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(raw))
        raw += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(raw)
    raw += b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1, table, len(objects) + 1, start,
    )  # fmt: skip
    writer = PdfWriter(clone_from=io.BytesIO(raw))
    for mark, number in marks:
        writer.add_outline_item(title=mark, page_number=number)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


Found = tuple[dict[str, Document], dict[str, str], dict[str, str]]


def read(root: Path, kind: str = "markdown", /, **files: bytes | str) -> Found:
    for name, content in files.items():
        path = root / name.replace("_", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return walk(file_options(name="x", type=kind, root=root, paths=("**/*",), max_bytes=200_000_000))


def one(root: Path, name: str, content: bytes | str, kind: str = "markdown") -> Document:
    documents, failed, skipped = read(root, kind, **{name: content})
    assert (failed, skipped) == ({}, {})
    return next(iter(documents.values()))


def headings(document: Document) -> list[tuple[int, str]]:
    return [(one.level, one.text) for one in headings_of(document.text)]


@pytest.mark.parametrize("kind", ["markdown", "text"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a_rst", RST),
        ("a_adoc", ADOC),
        ("a_docx", docx(("Title", "Tides"), ("Heading2", "The gate"), ("", "Ask the pilot."))),
        (
            "a_pdf",
            pdf("The tides change.\nThe gate\nAsk the pilot.", title="Tides", marks=(("The Gate", 0),)),
        ),
    ],
)
def test_titles_and_headings_are_kept(tmp_path: Path, name: str, content: bytes | str, kind: str) -> None:
    found = one(tmp_path, name, content, kind)
    assert found.title == "Tides"
    assert headings(found)[0] == (1, "Tides")
    assert headings(found)[1] in ((2, "The gate"), (2, "The Gate"))
    assert found.metadata["source_path"] == name.replace("_", ".")


def test_restructured_text_keeps_what_sphinx_says_and_drops_what_it_hides(tmp_path: Path) -> None:
    text = one(tmp_path, "a_rst", RST).text
    assert "A harbour.tide is *high* or low; see the table." in text
    assert "**function gate(draught)**" in text
    assert "Says whether a vessel passes." in text
    assert "**versionadded 3.4**" in text
    assert "**versionchanged 3.5** Takes draught as a depth, see *there*." in text
    assert "```python\ngate(7)\n```" in text
    assert "Ask the pilot." in text
    assert "hidden-page" not in text
    assert "noindex" not in text


def test_asciidoc_becomes_markdown(tmp_path: Path) -> None:
    found = one(tmp_path, "a_adoc", ADOC)
    assert headings(found) == [(1, "Tides"), (2, "The gate"), (3, "Deeper")]
    assert "[high](https://example.com/t) or low, see git-add(1)." in found.text
    assert "```\n== no heading\ngate(7)\n```" in found.text
    assert "**Draught**" in found.text
    assert not {"passwd", "nobody reads", ":toc:"} & set(found.text.split())


def test_of_a_page_its_title_and_its_matter_are_read(tmp_path: Path) -> None:
    found = one(tmp_path, "a_html", HTML)
    assert found.title == "Tides | Handbook"
    assert found.text == "# Tides | Handbook\n\n## The gate\n\nA tide is **high**."


def test_a_bookmark_takes_the_place_of_its_line_and_the_name_of_a_file_is_no_title(tmp_path: Path) -> None:
    page = "The tides change.\n2 The gate\nAsk the pilot."
    text = one(tmp_path, "a_pdf", pdf(page, title="tides-final.docx", marks=(("The Gate", 0),))).text
    assert [line for line in text.split("\n") if line] == [
        "The tides change.",
        "## The Gate",
        "Ask the pilot.",
    ]


def test_pages_of_a_pdf_lose_what_is_on_all_of_them_and_broken_words_are_joined(tmp_path: Path) -> None:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    pages = [
        f"Handbook of tides\nOn page {w} the moor-\ning begins.\n# 1 {w}\n# {w}\nPage {n} of 9"
        for n, w in enumerate(words)
    ]
    text = one(tmp_path, "a_pdf", pdf(*pages)).text
    assert "Handbook" not in text
    assert "of 9" not in text
    assert "On page seven the mooring begins." in text
    assert "\\# seven" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("0001-rows_rst", "Use rows\n========\n\nStatus\n------\n\nAccepted\n\nDecision\n--------\n\nRows.\n"),
        ("0001-rows_adoc", "= Use rows\n\n== Status\n\nAccepted\n\n== Decision\n\nRows.\n"),
        ("0001-rows_html", "<h1>Use rows</h1><h2>Status</h2><p>Accepted</p><h2>Decision</h2><p>Rows.</p>"),
        (
            "0001-rows_docx",
            docx(("Heading1", "Use rows"), ("Heading2", "Status"), ("", "Accepted"), ("Heading2", "Decision"), ("", "Rows.")),
        ),
    ],
)  # fmt: skip
def test_decisions_are_recognised(tmp_path: Path, name: str, content: bytes | str) -> None:
    found = one(tmp_path, name, content)
    assert (found.kind, found.metadata["decision_status"]) == (Kind.DECISION, "accepted")


SECRET = "a secret of this machine"
RST_READS = {
    "include": ".. include:: {}",
    "raw": ".. raw:: html\n   :file: {}",
    "raw url": ".. raw:: html\n   :url: file://{}",
    "csv": ".. csv-table::\n   :file: {}",
    "csv url": ".. csv-table::\n   :url: file://{}",
    "image": ".. image:: {}\n   :loading: embed",
    "figure": ".. figure:: {}\n   :loading: embed\n\n   caption",
    "substitution": ".. |x| image:: {}\n   :loading: embed\n\n|x|",
    "literal": ".. literalinclude:: {}",
    "role": ".. role:: x(raw)\n   :format: html\n\n:x:`<b>{}</b>`",
    "parser": ".. include:: {}\n   :literal:",
}


@pytest.mark.parametrize("how", RST_READS)
def test_no_directive_reads_a_file(tmp_path: Path, how: str) -> None:
    other = tmp_path.parent / f"{tmp_path.name}.svg"
    other.write_text(f"<svg><text>{SECRET}</text></svg>")
    documents, failed, skipped = read(
        tmp_path, a_rst=f"Words\n=====\n\n{RST_READS[how].format(other)}\n\nend\n"
    )
    assert failed == skipped == {}
    assert SECRET not in documents["a.rst"].text
    assert "end" in documents["a.rst"].text


def test_a_file_defines_nothing_for_the_next_one(tmp_path: Path) -> None:
    first = ".. role:: tide(strong)\n\n:tide:`one`\n"
    documents = read(tmp_path, a_rst=first, b_rst=":tide:`two`\n")[0]
    assert documents["a.rst"].text == "**one**"
    assert documents["b.rst"].text == "two"


BOMB = (
    '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {x} "{f"&{y};" * 10}">' for y, x in zip("abcdefghi", "bcdefghij", strict=True))
    + "]>"
)
EVIL: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a password": ("a_pdf", lambda: pdf("x", password="secret"), "a.pdf has a password; save it without one"),
    "no PDF": ("a_pdf", lambda: b"%PDF-1.4\n" + b"garbage" * 99, "a.pdf cannot be read: it is damaged"),
    "no DOCX": ("a_docx", lambda: b"\xd0\xcf\x11\xe0" + b"x" * 600, "a.docx is no DOCX: it has a password or an old format"),
    "half a DOCX": ("a_docx", lambda: docx(("", "x"))[:-9], "a.docx is no DOCX"),
    "an empty archive": ("a_docx", lambda: b"PK\x05\x06" + b"\0" * 18, "a.docx cannot be read: it is damaged"),
    "a zip bomb": ("a_docx", lambda: docx(more={"word/styles.xml": b"<a>" + b"x" * 210_000_000}), "a.docx unpacks to 210 MB, and the most is 200 MB"),
    "entities": ("a_docx", lambda: docx(("", "&j;"), head=BOMB), "a.docx cannot be read: it is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_an_evil_file_is_its_own_problem_only(tmp_path: Path, evil: str) -> None:
    name, content, said = EVIL[evil]
    (tmp_path / "good.rst").write_text("Good\n====\n\ntext\n")
    documents, failed, skipped = read(tmp_path, **{name: content()})
    assert list(documents) == ["good.rst"]
    assert [reason.startswith(said) for reason in failed.values()] == [True], failed
    assert skipped == {}


def test_what_holds_no_text_is_left_out_and_said(tmp_path: Path) -> None:
    documents, failed, skipped = read(
        tmp_path, a_pdf=pdf(""), b_docx=docx(), c_html="<nav>only</nav>", d_rst=".. only a comment\n"
    )
    assert (documents, failed) == ({}, {})
    assert sorted(skipped) == ["a.pdf", "b.docx", "c.html", "d.rst"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'1' * 5001}. one\n", "has a number with too many digits"),
        ("- " * 400 + "deep\n", "is nested too deeply"),
    ],
    ids=["number", "list"],
)
def test_what_the_reader_cannot_take_is_a_problem_of_its_file(tmp_path: Path, text: str, said: str) -> None:
    documents, failed, _ = read(tmp_path, a_rst=text, b_rst="Good\n====\n\ntext\n")
    assert list(documents) == ["b.rst"]
    assert f"a.rst {said}" in str(failed["a.rst"])


HUGE = {
    "html": "<p>" + "a" * 10_000_000,
    "tags": "<b>" * 250_000,
    "rst": "a" * 10_000_000,
    "stars": "*" * 1_000_000 + "\n",
    "adoc": "= T\n\n" + "<<" * 2_600_000,
}


@pytest.mark.parametrize("huge", HUGE)
def test_a_line_without_end_ends_in_time(tmp_path: Path, huge: str) -> None:
    ending = huge if huge in ("html", "rst", "adoc") else {"tags": "html", "stars": "rst"}[huge]
    begun = time.process_time()
    read(tmp_path, **{f"a_{ending}": HUGE[huge]})
    assert time.process_time() - begun < 40


MISSING = """
import sys
from pathlib import Path
from connectors import open_source
from tests.connectors.folders import file_options, walk
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Lacking(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("docutils", "mammoth", "pypdf") else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Lacking]
documents, failed, _ = walk(file_options(name="x", type="markdown", root=Path(sys.argv[1]), paths=("**/*",)))
print(sorted(documents), *failed.values(), sep="\\n")
"""


def test_without_the_extra_a_sentence_names_it(tmp_path: Path) -> None:
    for name in ("a.rst", "b.docx", "c.pdf", "d.html", "e.adoc"):
        (tmp_path / name).write_text("text")
    done = subprocess.run(
        [sys.executable, "-c", MISSING, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "['d.html', 'e.adoc']",
        "a.rst needs docutils, which is not installed (install larder[office])",
        "b.docx needs mammoth, which is not installed (install larder[office])",
        "c.pdf needs pypdf, which is not installed (install larder[office])",
    ]
    assert MOST_BYTES < 2**30
