"""Markdown without what only its tools read: what stays as it is, and how long it takes. Forms are in tests/cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.files.markdown_text import readable_markdown
from tests.complexity import assert_linear

PIECES = st.sampled_from(
    (
        "<", ">", "/", "{", "}", "%", "`", "```", "~~~", "[", "]", "(", ")", "!", ":", ":::", "#", "|", "\n", "\n\n",
        " ", "    ", "- ", "> ", "<!--", "-->", "<b>", "</b>", "<br>", "<h1>", "</h1>", "<table>", "<tr>", "<td>",
        "</table>", "<pre>", "</pre>", "<script>", "</script>", "<Tab label='x'>", "</Tab>", "{{< x >}}", "{% y %}",
        "[[a|b]]", "[^1]", "[^1]: n", "%%", '=== "T"', '!!! note "T"', "```{note}", "import x from 'y'",
        "export const a = {", "a:: b", "^abc1", "&amp;", "words", "ü",
    )
)  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/design.md", "docs/security.md"])
def test_plain_documents_are_left_as_they_are(name: str) -> None:
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")

    assert readable_markdown(text) == text


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_and_leaves_no_marks_of_ours(text: str) -> None:
    assert not set(readable_markdown(text)) & set("\ufdd0\ufdd1\ufdd2")


@given(
    st.lists(st.sampled_from(["code {{ x }}", "<b>", "import a from 'b'", "", ":::", "    x"]), max_size=8)
)
def test_code_is_left_as_it_is(lines: list[str]) -> None:
    code = "\n".join(["```text", *lines, "```"])

    assert readable_markdown(f"Before.\n\n{code}\n\nBehind.") == f"Before.\n\n{code}\n\nBehind."


@pytest.mark.parametrize(
    "part",
    [
        "<", "{", "[[", "`", "<A {", "<h1>", "<h1>\n", "<!--", "<!-- -->", "<table>\n", "<pre>\n", "<br>", "<li>", "%%",
        '<a b="', "<a href='x'>", "export const a = {\n\n", "!!! note\n", "&a", "![[", "{#a ", "# a {", "> ", "x:: y\n",
    ],
)  # fmt: skip
def test_the_time_grows_with_the_text(part: str) -> None:
    make: Callable[[int], str] = lambda size: part * (size // len(part))  # noqa: E731 (of one line)
    assert_linear(make, 40_000, readable_markdown)
