"""Lists, tasks and check boxes, and how Markdown reads them back."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from connectors.markup.elements import to_markdown

SAMPLES: list[tuple[str, str, str]] = [
    ("bullets", "<p>x</p><ul><li>a</li><li>b</li></ul><p>y</p>", "x\n\n- a\n- b\n\ny"),
    ("items with paragraphs", "<ul><li><p>a</p></li><li><p>b</p><p>c</p></li></ul>", "- a\n- b\n\n  c"),
    ("numbers", "<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
    ("numbers from five", '<ol start="5"><li>a<li>b</ol>', "5. a\n6. b"),
    ("a number of its own", '<ol><li>a</li><li value="7">b</li><li>c</li></ol>', "1. a\n7. b\n8. c"),
    (
        "lists within lists",
        "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>",
        "- a\n  - b\n    1. c\n- d",
    ),
    ("bullets within numbers", "<ol><li>a<ul><li>b</li></ul></li></ol>", "1. a\n   - b"),
    (
        "numbers from three cannot interrupt",
        '<ul><li>a<ol start="3"><li>b</li></ol></li></ul>',
        "- a\n\n  3. b",
    ),
    ("text behind an inner list", "<ul><li>a<ul><li>b</li></ul>c</li></ul>", "- a\n  - b\n\n  c"),
    ("a list right within a list", "<ul><li>a</li><ul><li>b</li></ul><li>c</li></ul>", "- a\n  - b\n- c"),
    ("two lists side by side", "<ul><li>a</li></ul><ul><li>b</li></ul>", "- a\n\n* b"),
    ("two numbered lists side by side", "<ol><li>a</li></ol><ol><li>b</li></ol>", "1. a\n\n1) b"),
    ("empty items", "<ul><li>a</li><li> </li><li>b</li></ul>", "- a\n- b"),
    ("unclosed items", "<ul><li>a<li>b<ul><li>c</ul><li>d</ul>", "- a\n- b\n  - c\n- d"),
    ("a quote in an item", "<ul><li>a<blockquote>b</blockquote></li></ul>", "- a\n\n  > b"),
    ("a list in a quote", "<blockquote>a<ul><li>b</li></ul></blockquote>", "> a\n>\n> - b"),
    (
        "tasks",
        (
            "<ac:task-list><ac:task><ac:task-id>17</ac:task-id><ac:task-status>complete</ac:task-status>"
            '<ac:task-body>a <time datetime="2024-01-05" /></ac:task-body></ac:task>'
            "<ac:task><ac:task-id>18</ac:task-id><ac:task-uuid>u</ac:task-uuid>"
            "<ac:task-status>incomplete</ac:task-status>"
            '<ac:task-body><span class="placeholder-inline-tasks">b</span></ac:task-body></ac:task></ac:task-list>'
        ),
        "- [x] a 2024-01-05\n- [ ] b",
    ),
    (
        "tasks within tasks",
        (
            "<ac:task-list><ac:task><ac:task-status>incomplete</ac:task-status><ac:task-body>a"
            "<ac:task-list><ac:task><ac:task-status>complete</ac:task-status><ac:task-body>b</ac:task-body>"
            "</ac:task></ac:task-list></ac:task-body></ac:task></ac:task-list>"
        ),
        "- [ ] a\n  - [x] b",
    ),
    (
        "check boxes",
        '<ul><li><input type="checkbox" checked="">a</li><li><input type=checkbox> b</li></ul>',
        "- [x] a\n- [ ] b",
    ),
    (
        "a task without a state",
        (
            "<ac:task-list><ac:task><ac:task-status>complete</ac:task-status><ac:task-body>a</ac:task-body></ac:task>"
            "<ac:task><ac:task-body>b</ac:task-body></ac:task></ac:task-list>"
        ),
        "- [x] a\n- [ ] b",
    ),
    ("a check box without a list", '<div><input type="checkbox" checked/>a</div>', "[x] a"),
]


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_lists_become(html: str, markdown: str) -> None:
    assert to_markdown(html).text == markdown


def _depths(markdown: str) -> dict[str, list[str]]:
    """By text: the lists it stands in, from the outermost."""
    found: dict[str, list[str]] = {}
    around: list[str] = []
    for token in MarkdownIt("commonmark", {"maxNesting": 100}).parse(markdown):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            around.append(f"{token.tag}{token.attrs.get('start', '')}")
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            around.pop()
        elif token.type == "inline":
            found[token.content] = list(around)
    return found


def test_markdown_reads_each_item_at_its_depth() -> None:
    html = (
        "<p>top</p><ol><li>one<ul><li><p>two</p><ol start='3'><li>three</li></ol><p>more</p></li></ul></li>"
        "<li value='12'><p>twelve</p><ul><li>inner</li></ul></li></ol><p>end</p>"
    )

    assert _depths(to_markdown(html).text) == {
        "top": [],
        "one": ["ol"],
        "two": ["ol", "ul"],
        "three": ["ol", "ul", "ol3"],
        "more": ["ol", "ul"],
        "twelve": ["ol"],
        "inner": ["ol", "ul"],
        "end": [],
    }


def test_markdown_reads_neighbouring_lists_as_two() -> None:
    tokens = MarkdownIt().parse(to_markdown("<ol><li>a</li><li>b</li></ol><ol><li>c</li></ol>").text)

    assert sum(token.type == "ordered_list_open" for token in tokens) == 2


def test_ten_levels_stay_ten_levels() -> None:
    html = "".join(f"<ul><li>w{n}" for n in range(10)) + "</li></ul>" * 10

    depths = _depths(to_markdown(html).text)

    assert depths == {f"w{n}": ["ul"] * (n + 1) for n in range(10)}
