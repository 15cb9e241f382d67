"""Every parser against inputs that nobody thought of: each ends in time and memory, with a result or an error of ours.

Five seconds for all of them; `make drills` takes five minutes (LARDER_FUZZ, in seconds). What fails is found again by its
seed.
"""

from __future__ import annotations

import base64
import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kombu.transport.virtual import Message

from connectors.documents.values import build_document
from connectors.files.formats import markdown_of
from connectors.files.markdown import markdown_document
from connectors.files.options import MarkdownOptions
from connectors.files.walk import FileText
from connectors.markup.elements import to_markdown
from connectors.pbi.record import pbi_record
from connectors.pbi.shapes import holds_pbis, pbi_items, run_facts, top_level
from connectors.pbi.sources import json_document
from pipeline.documents import Document
from pipeline.errors import DocumentRejected
from tests.connectors.folders import file_options
from tests.connectors.test_formats import docx, pdf

SECONDS = float(os.environ.get("LARDER_FUZZ", "5"))
MOST_SECONDS = 5.0
"""Of processor time for one input of at most `MOST_CHARACTERS`; a few milliseconds is what they take."""
MOST_BYTES = 200 * 1024**2
MOST_CHARACTERS = 200_000
YAML = [
    "---\n",
    "a: ",
    "&a ",
    "*a ",
    "<<: ",
    "[",
    "]",
    "{",
    "}",
    "- ",
    "? ",
    "| \n",
    "!!int ",
    "!!set ",
    "!!binary ",
    "0x",
]
MARKDOWN = [
    "# ",
    "```",
    "~~~",
    "[x](",
    ")",
    "![",
    "](",
    "| a ",
    "|---|",
    "> ",
    "* ",
    "1. ",
    "Status: ",
    "accepted",
    "`",
]
MARKUP = [
    "<p>", "</p>", "<ac:structured-macro ac:name='code'>", "<ac:parameter>", "<![CDATA[", "]]>", "<!--", "-->", "<table>",
    "<tr>", "<td colspan='", "</td>", "<ul>", "<li>", "<a href='", "'>", "&#", "&#x", "&amp", ";", "<pre>", "<ri:page ", "<",
]  # fmt: skip
PBI = [
    '{"pbis": [', '{"id": ', '"title": ', '"scores": {', '"overall": ', "]", "}", ",", "1e999", "NaN", "null", '"P-1"', "-0",
    '"effort": ', '"timestamp": ', "[", '"comments": [', '"acceptance_criteria": ', '"status": ', ":",
]  # fmt: skip
ANY = [
    "\n",
    " ",
    "\t",
    "\0",
    "\ud800",
    "\u202e",
    "é",
    "𝕏",
    '"',
    "'",
    "\\",
    "9" * 5000,
    "f" * 100,
    "2024-13-45",
    "x",
]


def text_of(chance: random.Random, words: list[str]) -> str:
    """Words of a language and none, some of them a great many times."""
    pieces = []
    for _ in range(chance.randint(1, 60)):
        piece = "".join(chance.choices(words * 4 + ANY, k=chance.randint(1, 4)))
        pieces.append(piece * min(chance.choice([1] * 20 + [10, 100, 5000]), 20_000 // len(piece) + 1))
    return "".join(pieces)[:MOST_CHARACTERS]


def file_of(name: str, text: str) -> FileText:
    return FileText(external_id=name, relative=name, url="", text=text, encoding="utf-8", modified=None)


def front_matter(chance: random.Random, root: Path) -> None:
    options = file_options(name="x", type="markdown", root=root, paths=("*.md",))
    assert isinstance(options, MarkdownOptions)
    text = f"---\n{text_of(chance, YAML)}\n---\n{text_of(chance, MARKDOWN[:3])}"
    made_of(partial(markdown_document, options, file_of("x.md", text)))


def markdown(chance: random.Random, root: Path) -> None:
    options = file_options(name="x", type="markdown", root=root, paths=("*.md",))
    assert isinstance(options, MarkdownOptions)
    made_of(partial(markdown_document, options, file_of("adr/0001-x.md", text_of(chance, MARKDOWN))))


def storage_format(chance: random.Random, _root: Path) -> None:
    to_markdown(text_of(chance, MARKUP))  # takes any text without raising


RST = [
    ".. ", "::\n", "   ", ":a: b\n", "====\n", "----\n", "* ", "1. ", "`x <y>`_", ":ref:`", "`", "**", "|x|", ".. |x| image:: y\n",
    "+--+\n", "| a |\n", "== ==\n", ".. _x: y_\n", "[1]_", ".. note::\n", ".. code-block:: c\n", "::\n\n", ".. table::\n", ".. math::\n",
]  # fmt: skip
ADOC = ["= ", "== ", "----\n", "====\n", "|===\n", "* ", "[source]\n", "link:x[", "]", "<<a,", ">>", "//", ":a: b\n", "::\n", "include::x[]\n"]  # fmt: skip
PDF = [
    b"1 0 obj", b"endobj\n", b"<<", b">>", b"/Kids[1 0 R]", b"/Type/Pages", b"/Type/Page", b"/Outlines 1 0 R", b"/First 1 0 R", b"/Next 1 0 R",
    b"/Parent 1 0 R", b"stream\n", b"endstream", b"/Length 99999999", b"/Filter/FlateDecode", b"/Contents 1 0 R", b"/Prev 9", b"/Count -1",
]  # fmt: skip


def html_page(chance: random.Random, _root: Path) -> None:
    read_as("x.html", text_of(chance, MARKUP))


def restructured_text(chance: random.Random, _root: Path) -> None:
    read_as("x.rst", text_of(chance, RST)[:20_000])  # docutils takes a second for these


def asciidoc(chance: random.Random, _root: Path) -> None:
    read_as("x.adoc", text_of(chance, ADOC))


def pdf_file(chance: random.Random, _root: Path) -> None:
    """One that was written properly, with a few places changed."""
    data = bytearray(pdf("one\ntwo", "three", title="T", marks=(("two", 0), ("three", 1))))
    for _ in range(chance.randint(1, 8)):
        at, word = chance.randrange(len(data)), chance.choice(PDF)
        data[at : at + chance.choice([0, len(word)])] = word
    read_as("x.pdf", data.decode("latin-1"))


def docx_file(chance: random.Random, _root: Path) -> None:
    words = [
        "<w:tbl>",
        "<w:tr>",
        "<w:tc>",
        "</w:tc>",
        "<w:r>",
        "</w:r>",
        "<w:t>x</w:t>",
        "<w:hyperlink r:id='x'>",
        "<w:drawing/>",
        "&#0;",
    ]
    data = bytearray(docx(("", "".join(chance.choices(words, k=20)))))
    if chance.random() < 0.5:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    read_as("x.docx", data.decode("latin-1"))


def read_as(name: str, text: str) -> None:
    with suppress(DocumentRejected, RecursionError):  # what is nested too deeply is told by `bounded`
        assert isinstance(markdown_of(name, text), str)


def pbi_json(chance: random.Random, root: Path) -> None:
    options = file_options(name="x", type="json", root=root, paths=("*.json",))
    text = text_of(chance, PBI)
    made_of(partial(json_document, options, file_of("x.json", text)))
    value = value_of(chance, 6)
    holds_pbis(value)
    top_level(value)
    for item in pbi_items(value) or ():
        pbi_record(item, run_facts(value))


def value_of(chance: random.Random, depth: int) -> Any:
    """JSON of any shape under keys that mean something."""
    keys = [
        "pbis",
        "pbi",
        "id",
        "title",
        "scores",
        "overall",
        "effort",
        "timestamp",
        "comments",
        "tags",
        "status",
        "x",
    ]
    if depth and chance.random() < 0.4:
        return {chance.choice(keys): value_of(chance, depth - 1) for _ in range(chance.randint(0, 6))}
    if depth and chance.random() < 0.4:
        return [value_of(chance, depth - 1) for _ in range(chance.randint(0, 6))]
    return chance.choice(
        [None, True, -1, 10**400, 1e308, float("inf"), float("nan"), "", "P-1", "9" * 5000, "a\0b"]
    )


def envelope(chance: random.Random, _root: Path) -> None:
    class Channel:
        """Knows the encodings of bodies as Kombu's channels do."""

        def decode_body(self, body: Any, encoding: str | None = None) -> Any:
            return {"base64": base64.b64decode}[encoding](body) if encoding else body

    raw = text_of(
        chance,
        ['{"body": ', '"properties": {', '"headers": ', '"e30="', '"delivery_tag": ', "}", ",", "[", "]"],
    )
    with suppress(Exception):  # set aside by whoever takes it; here only time and memory count
        Message(json.loads(raw), channel=Channel()).decode()  # type: ignore[no-untyped-call]


def made_of(make: Callable[[], Document | None]) -> None:
    try:
        build_document(make, "x")
    except DocumentRejected as error:
        assert "cannot be read" not in str(error), error  # noqa: PT017 - an error that nobody expected
        assert "takes more" not in str(error), error  # noqa: PT017


TARGETS = (
    front_matter, markdown, storage_format, pbi_json, envelope,
    html_page, restructured_text, asciidoc, pdf_file, docx_file,
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_any_input_ends_in_time_and_memory(
    target: Callable[[random.Random, Path], None], tmp_path: Path
) -> None:
    end = time.monotonic() + SECONDS / len(TARGETS)
    number = int(os.environ.get("LARDER_FUZZ_SEED", "0")) or random.SystemRandom().randrange(2**32)
    while time.monotonic() < end:
        number += 1
        chance = random.Random(number)
        measured = number % 20 == 0  # it makes everything several times slower
        if measured:
            tracemalloc.start()
        begun = time.thread_time()
        try:
            target(chance, tmp_path)
        except Exception as error:  # noqa: BLE001 - the seed is what is asked for
            pytest.fail(f"seed {number}: {type(error).__name__}: {error}")
        took = time.thread_time() - begun
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
        assert took < MOST_SECONDS * (4 if measured else 1), f"seed {number} took {took:.1f} s"
        assert peak < MOST_BYTES, f"seed {number} took {peak / 1024**2:.0f} MB"
