"""Tables with spans, and code with every blank in its place."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from connectors.markup.elements import to_markdown

HEAD = "| A | B |\n| --- | --- |\n"


def _macro(name: str, body: str, /, **parameters: str) -> str:
    settings = "".join(f'<ac:parameter ac:name="{k}">{v}</ac:parameter>' for k, v in parameters.items())
    return (
        f'<ac:structured-macro ac:name="{name}" ac:schema-version="1" ac:macro-id="m-1">{settings}'
        f"<ac:plain-text-body>{body}</ac:plain-text-body></ac:structured-macro>"
    )


IN_CELL = _macro("code", "<![CDATA[if a|b:  x\n  y]]>")
IN_ITEM = _macro("code", "<![CDATA[x\n\n  y]]>")
TABLES: list[tuple[str, str, str]] = [
    (
        "a head of th",
        (
            '<table data-layout="default"><colgroup><col style="width: 68.0px;" /><col /></colgroup><tbody>'
            "<tr><th><p>A</p></th><th><p>B</p></th></tr><tr><td><p>1</p></td><td><p>2</p></td></tr></tbody></table>"
        ),
        HEAD + "| 1 | 2 |",
    ),
    (
        "a thead",
        "<table><thead><tr><td>A</td><td>B</td></tr></thead><tbody><tr><td>1</td><td>2</td></tr></table>",
        HEAD + "| 1 | 2 |",
    ),
    (
        "no head",
        "<table><tr><th>1</th><td>2</td></tr><tr><th>3</th><td>4</td></tr></table>",
        "|  |  |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |",
    ),
    (
        "unclosed rows and cells",
        "<table><tr><th>A<th>B<tr><td>1<td>2</table>after",
        HEAD + "| 1 | 2 |\n\nafter",
    ),
    (
        "a caption",
        "<table><caption>Cap</caption><tr><th>A</th><th>B</th></tr></table>",
        "**Cap**\n\n" + HEAD.strip(),
    ),
    (
        "a cell over two columns",
        '<table><tr><th>A</th><th>B</th></tr><tr><td colspan="2">w</td></tr></table>',
        HEAD + "| w | w |",
    ),
    (
        "a cell over two rows",
        '<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td rowspan="2">w</td></tr><tr><td>2</td></tr></table>',
        HEAD + "| 1 | w |\n| 2 | w |",
    ),
    (
        "a block of two by two",
        (
            '<table><tr><th>A</th><th>B</th></tr><tr><td colspan="2" rowspan="2">w</td></tr><tr></tr>'
            "<tr><td>1</td><td>2</td></tr></table>"
        ),
        HEAD + "| w | w |\n| w | w |\n| 1 | 2 |",
    ),
    (
        "bars",
        "<table><tr><th>A</th><th>B</th></tr><tr><td>x|y</td><td><code>p|q</code></td></tr></table>",
        HEAD + "| x\\|y | `p\\|q` |",
    ),
    (
        "a list and lines in cells",
        "<table><tr><th>A</th><th>B</th></tr><tr><td><ul><li>x</li><li>y</li></ul></td><td>p<br/>q</td></tr></table>",
        HEAD + "| x / y | p / q |",
    ),
    (
        "numbers and boxes in cells",
        (
            "<table><tr><th>A</th><th>B</th></tr><tr><td><ol><li>x</li><li>y</li></ol></td><td><ac:task-list><ac:task>"
            "<ac:task-status>complete</ac:task-status><ac:task-body>z</ac:task-body></ac:task></ac:task-list></td></tr></table>"
        ),
        HEAD + "| 1. x / 2. y | [x] z |",
    ),
    (
        "code in a cell",
        f"<table><tr><th>A</th><th>B</th></tr><tr><td>{IN_CELL}</td><td>1</td></tr></table>",
        HEAD + "| `if a\\|b: x` / `y` | 1 |",
    ),
    (
        "a table in a cell",
        (
            "<table><tr><th>A</th><th>B</th></tr><tr><td><table><tr><td>x</td><td>y</td></tr><tr><td>z</td></tr></table>"
            "</td><td>1</td></tr></table>"
        ),
        HEAD + "| x, y / z | 1 |",
    ),
    (
        "a panel in a cell",
        (
            '<table><tr><th>A</th><th>B</th></tr><tr><td><ac:structured-macro ac:name="note"><ac:parameter ac:name="title">T'
            "</ac:parameter><ac:rich-text-body><p>x</p></ac:rich-text-body></ac:structured-macro></td><td>1</td></tr></table>"
        ),
        HEAD + "| **Note: T** / x | 1 |",
    ),
    (
        "a stray end tag in a cell",
        "<div><table><tr><th>A</div></th><th>B</th></tr></table></div>",
        HEAD.strip(),
    ),
    ("empty rows", "<table><tr><td> </td></tr><tr></tr></table>a", "a"),
    ("cells without a table", "<td>a</td><td>b</td>", "a\nb"),
    ("a heading in a cell", "<table><tr><th><h2>A</h2></th><th>B</th></tr></table>", HEAD.strip()),
    (
        "a table in an item",
        "<ul><li>x<table><tr><th>A</th><th>B</th></tr></table></li></ul>",
        "- x\n\n  | A | B |\n  | --- | --- |",
    ),
    ("text right in a table", "<table>x<tr><th>A</th><th>B</th></tr></table>", "x\n\n" + HEAD.strip()),
]

CODE: list[tuple[str, str, str]] = [
    (
        "a code macro",
        _macro(
            "code", "<![CDATA[def f():\n    return 1]]>", language="Python", linenumbers="true", title="no"
        ),
        "```python\ndef f():\n    return 1\n```",
    ),
    ("without a language", _macro("code", "<![CDATA[x]]>"), "```\nx\n```"),
    (
        "an older form",
        _macro("code", "<![CDATA[x]]>", **{"": "java"}).replace("structured-macro", "macro"),
        "```java\nx\n```",
    ),
    ("noformat", _macro("noformat", "<![CDATA[<b>&amp;\n\t*x*]]>"), "```\n<b>&amp;\n\t*x*\n```"),
    ("a section in two pieces", _macro("code", "<![CDATA[a[b[0]]]]><![CDATA[> 1]]>"), "```\na[b[0]]> 1\n```"),
    ("fences within", _macro("code", "<![CDATA[```\nx\n````]]>"), "`````\n```\nx\n````\n`````"),
    ("line ends of Windows", _macro("code", "<![CDATA[a\r\n  b\r\n]]>"), "```\na\n  b\n```"),
    (
        "cut off",
        '<p>x</p><ac:structured-macro ac:name="code"><ac:plain-text-body><![CDATA[a <b',
        "x\n\n```\na <b\n```",
    ),
    ("blank code", _macro("code", "<![CDATA[ \n ]]>") + "<p>a</p>", "a"),
    ("a diagram", _macro("mermaid", "<![CDATA[graph TD]]>"), "```mermaid\ngraph TD\n```"),
    ("pre", "<pre>\n  a\n   <b>b</b> &lt;c&gt;\n</pre>", "```\n  a\n   b <c>\n```"),
    (
        "pre with code",
        '<pre><code class="language-cs">int x;<br>int y;</code></pre>',
        "```cs\nint x;\nint y;\n```",
    ),
    (
        "pre with lines of div",
        '<pre class="brush: java; x"><div>a</div><div>b</div></pre>',
        "```java\na\nb\n```",
    ),
    ("code in an item", f"<ol><li>a{IN_ITEM}</li></ol>", "1. a\n\n   ```\n   x\n\n     y\n   ```"),
    (
        "settings and dates in pre",
        '<pre>a<ac:placeholder>no</ac:placeholder> <time datetime="2024-01-05"/> b</pre>',
        "```\na 2024-01-05 b\n```",
    ),
    ("CDATA elsewhere", "<p>a <![CDATA[<b> & c]]></p>", "a \\<b> & c"),
]


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in TABLES], ids=[s[0] for s in TABLES])
def test_tables_become(html: str, markdown: str) -> None:
    assert to_markdown(html).text == markdown


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in CODE], ids=[s[0] for s in CODE])
def test_code_becomes(html: str, markdown: str) -> None:
    assert to_markdown(html).text == markdown


def _cells(markdown: str) -> list[str]:
    tokens = MarkdownIt().enable("table").parse(markdown)
    assert tokens[0].type == "table_open"
    return ["".join(t.content for t in token.children or []) for token in tokens if token.type == "inline"]


def test_markdown_reads_the_cells_back() -> None:
    html = (
        '<table><tr><th>A</th><th colspan="2">B</th></tr><tr><td rowspan="2">x|y</td><td><code>p|q\\</code></td>'
        "<td>\\|</td></tr><tr><td>1</td></tr></table>"
    )

    assert _cells(to_markdown(html).text) == ["A", "B", "B", "x|y", "p|q\\", "\\|", "x|y", "1", ""]


def test_a_row_that_is_short_keeps_its_cells_in_their_columns() -> None:
    html = (
        '<table><tr><th>A</th><th>B</th><th>C</th></tr><tr><td>1</td><td>2</td><td rowspan="2">w</td></tr>'
        "<tr><td>3</td></tr></table>"
    )

    assert to_markdown(html).text.splitlines()[-1] == "| 3 |  | w |"


def test_spans_without_measure_repeat_within_bounds() -> None:
    row = '<tr><td rowspan="65000" colspan="1000">word</td></tr>'

    rendered = to_markdown(f"<table>{row * 3000}<tr><td>last</td></tr></table>")

    assert "last" in rendered.text
    assert rendered.text.count("word") >= 3000
    assert len(rendered.text) < 2_000_000
    assert not rendered.capped


@pytest.mark.parametrize(
    "code",
    [
        "a",
        "  a\n\tb  \n\n\n c",
        "\n\n a",
        "~~~\n```\nx",
        "a\n\n",
        "`" * 9,
        "# x\n- y\n> z",
        "&lt; \\ *",
        "    deep",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "<ul><li>x<ol><li>{}</li></ol></li></ul>", "<blockquote>{}</blockquote>"]
)
def test_code_comes_back_from_markdown_blank_for_blank(code: str, around: str) -> None:
    html = around.format(_macro("code", f"<![CDATA[{code}]]>", language="sql"))

    fences = [t for t in MarkdownIt().parse(to_markdown(html).text) if t.type == "fence"]

    assert [(t.info, t.content) for t in fences] == [("sql", code.removesuffix("\n") + "\n")]
