"""Work on what files and fields hold grows with their size and no faster."""

from __future__ import annotations

from contextlib import suppress

import pytest

from connectors.azure_devops.document import is_plain
from connectors.azure_devops.structured import structured_text
from connectors.documents.encodings import Unreadable, decode
from connectors.files.office import with_whole_words
from connectors.files.web_page import page_markdown
from tests.complexity import assert_linear


def _repeated(piece: str, size: int) -> str:
    return piece * (size // len(piece))


@pytest.mark.parametrize("piece", ["a", "a-", "a-\n", "-\n", "a \n", "a-a-\n", "\n", "a\xad\n"])
def test_of_broken_words(piece: str) -> None:
    assert_linear(lambda size: _repeated(piece, size), 400_000, with_whole_words)


@pytest.mark.parametrize(
    "piece",
    [
        '<td class="linenos">1',
        "<table><tr><td><pre>x",
        '<a href="#x">#</a>',
        '<div role="tablist"><b role="tab">x</b></div><div role="tabpanel" hidden>y</div>',
        "<svg><text>x",
        "<math><mi>x",
        '<script type="math/tex">',
    ],
)
def test_of_a_page(piece: str) -> None:
    assert_linear(lambda size: _repeated(piece, size), 100_000, lambda html: page_markdown(html, 10**8))


@pytest.mark.parametrize(
    "piece",
    ["<", "<p ", "<b>x", "| ", "#", "- x\n", "&lt;", "<step>", '<compref ref="1">', "<Table1><a>x</a>"],
)
def test_of_a_field(piece: str) -> None:
    def work(text: str) -> None:
        is_plain(text)
        structured_text(f"<steps>{text}", str)

    assert_linear(lambda size: _repeated(piece, size), 200_000, work)


@pytest.mark.parametrize(
    "piece", [b"\xe9", b"\xe9t\xe9 ", "Приют ".encode("koi8_r"), b"<meta ", b"coding: ", b"<!--", b"\x1b$B"]
)
def test_of_an_encoding(piece: bytes) -> None:
    def work(data: bytes) -> None:
        with suppress(Unreadable):
            decode(data)

    assert_linear(lambda size: b"\xff" + piece * (size // len(piece)), 2_000_000, work)
