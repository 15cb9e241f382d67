"""Paragraphs, emphasis, headings and quotes, and what must not be read as Markdown by accident."""

from __future__ import annotations

import itertools

import pytest
from markdown_it import MarkdownIt

from connectors.markup.elements import to_markdown

SAMPLES: list[tuple[str, str, str]] = [
    ("paragraphs", "<p>One</p><p>Two</p>", "One\n\nTwo"),
    ("white space", "<p>  One\n\t two&nbsp;&nbsp;three </p>\n\n<p>\n</p>", "One two three"),
    ("an empty paragraph", "<p>a</p><p>&nbsp;</p><p><br/></p><p>b</p>", "a\n\nb"),
    ("entities", "<p>caf&eacute; &lt;3 &amp; &#8364; &#x41; &unknown;</p>", "café <3 & € A \\&unknown;"),
    ("line breaks", "<p>a<br/>b<br />c</p>", "a\nb\nc"),
    ("two line breaks end a paragraph", "<p>a<br/><br/>b</p>", "a\n\nb"),
    ("bold", "<p>a <strong>b </strong>c<b> d</b></p>", "a **b** c **d**"),
    ("bold pieces side by side", "<p><b>Lar</b><strong>der</strong>s</p>", "**Larder**s"),
    ("bold within bold", "<p><b>a <strong>b</strong> c</b></p>", "**a b c**"),
    ("empty bold", "<p>a<b> </b>b<i></i>c</p>", "a bc"),
    ("bold over paragraphs", "<b><p>a</p><p>b</p></b>", "**a**\n\n**b**"),
    ("italics and strikes", "<p><em>a</em> <i>b</i> <del>c</del> <s>d</s></p>", "*a* *b* ~~c~~ ~~d~~"),
    ("bold italics", "<p><b><i>a</i></b></p>", "***a***"),
    ("a star in italics", "<p><em>2*3</em></p>", "*2\\*3*"),
    ("bold over an empty line", "<p>x <b>a<br/><br/>b</b> c</p>", "x **a**\n\n**b** c"),
    ("underline and spans", '<p><u>a</u><span style="x">b</span></p>', "ab"),
    ("code", "<p>Call <code>f(*a, **b)</code> and <kbd>a`b</kbd></p>", "Call `f(*a, **b)` and ``a`b``"),
    ("code keeps what looks like Markdown", "<p><code>&lt;b&gt; _x_</code></p>", "`<b> _x_`"),
    ("powers and indexes", "<p>10<sup>5</sup> H<sub>2</sub>O x<sub>max</sub></p>", "10^5 H2O x_max"),
    ("a footnote alone", "<p><sup>1</sup> Note</p>", "1 Note"),
    ("headings", "<h1>A</h1><p>b</p><h3>C <b>d</b></h3><p>e</p>", "# A\n\nb\n\n### C d\n\ne"),
    ("a heading with a break and a sharp", "<h2>On<br/>C #</h2>", "## On C \\#"),
    ("an empty heading", "<h1> </h1><p>a</p>", "a"),
    ("a rule", "<p>a</p><hr/><p>b</p>", "a\n\n---\n\nb"),
    ("quotes", "<blockquote><p>a</p><p>b</p></blockquote>c", "> a\n>\n> b\n\nc"),
    (
        "a quote within a quote",
        "<blockquote>a<blockquote>b</blockquote>c</blockquote>",
        "> a\n>\n> > b\n>\n> c",
    ),
    ("two quotes", "<blockquote>a</blockquote><blockquote>b</blockquote>", "> a\n\n> b"),
    ("definitions", "<dl><dt>A</dt><dd>b</dd><dt>C<dd>d</dl>", "**A**\n: b\n\n**C**\n: d"),
    ("unclosed paragraphs", "<p>a<p>b<div>c</div>d", "a\n\nb\n\nc\nd"),
    ("unclosed bold in a paragraph", "<p><b>a</p><p>b</p>", "**a**\n\nb"),
    ("scripts, styles, comments", "<style>p{}</style>a<script>if (a<b) x</script><!-- no -->b", "ab"),
    ("a head", "<html><head><title>no</title></head><body><p>a</p></body></html>", "a"),
    ("a head that never ends", "<head><title>no</title><p>a</p>", "a"),
    (
        "a conditional comment of Word",
        "<!--[if gte mso 9]><xml>no</xml><![endif]-->a<![if !x]>b<![endif]>",
        "ab",
    ),
    ("an unclosed comment", "<p>a<!-- b</p>", "a b"),
    ("a less-than sign in text", "<p>1 < 2 and <3</p>", "1 < 2 and <3"),
    ("an apostrophe in a tag", "<p class=x don't>a</p><p>it's</p>", "a\n\nit's"),
    ("a greater-than sign in an attribute", '<p title="a > b">c</p>', "c"),
    ("the last tag cut off", "<p>a</p><p class", "a\n\n\\<p class"),
    ("nothing", "", ""),
    ("invisible characters", "<p>a\u200bb\ufeff c\u00add</p>", "ab cd"),
    (
        "a time",
        '<p><time datetime="2024-01-05" /> <time datetime="2024-02-01">today</time></p>',
        "2024-01-05 today (2024-02-01)",
    ),
]

LOOKS_LIKE_MARKDOWN = [
    ("# not a heading", "\\# not a heading"),
    ("#hashtag", "#hashtag"),
    ("1. not a list", "1\\. not a list"),
    ("2024) not a list", "2024\\) not a list"),
    ("3.5 litres", "3.5 litres"),
    ("- not a list", "\\- not a list"),
    ("+ not a list", "\\+ not a list"),
    ("* not a list", "\\* not a list"),
    ("> not a quote", "\\> not a quote"),
    ("---", "\\---"),
    ("* * *", "\\* * *"),
    ("*not bold*", "\\*not bold\\*"),
    ("2 * 3 * 4", "2 * 3 * 4"),
    ("a*b*c", "a\\*b\\*c"),
    ("5* hotel", "5* hotel"),
    ("_not italic_", "\\_not italic\\_"),
    ("snake_case_name and _other", "snake_case_name and _other"),
    ("__init__", "\\_\\_init\\_\\_"),
    ("~~not struck~~", "\\~\\~not struck\\~\\~"),
    ("List<String>", "List\\<String>"),
    ("&amp;", "\\&amp;"),
    ("a & b; c", "a & b; c"),
    ("[a](b)", "[a\\](b)"),
    ("[a]: b", "\\[a]: b"),
    ("[a] and (b)", "[a] and (b)"),
    ("C:\\_temp\\x", "C:\\\\_temp\\x"),
    ("typed `code *x*` here", "typed `code *x*` here"),
    ("a lone ` tick", "a lone \\` tick"),
    ("=====", "\\====="),
    ("| --- | --- |", "\\| --- | --- |"),
]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_running_text_becomes(html: str, markdown: str) -> None:
    assert to_markdown(html).text == markdown


@pytest.mark.parametrize(("text", "markdown"), LOOKS_LIKE_MARKDOWN)
def test_text_is_escaped_only_where_markdown_would_change_it(text: str, markdown: str) -> None:
    assert to_markdown(f"<p>{_escaped(text)}</p>").text == markdown


@pytest.mark.parametrize("text", [text for text, _ in LOOKS_LIKE_MARKDOWN if "`code" not in text])
def test_a_reader_of_the_markdown_sees_the_text_as_it_was(text: str) -> None:
    first, second = (to_markdown(f"<p>{before}{_escaped(text)}</p>").text for before in ("", "x<br/>"))

    for markdown, expected in ((first, text), (second, f"x\n{text}")):
        tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(markdown)
        assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
        pieces = tokens[1].children or []
        assert {piece.type for piece in pieces} <= {"text", "text_special", "softbreak"}
        shown = "".join("\n" if piece.type == "softbreak" else piece.content for piece in pieces)
        assert shown == expected


def test_stars_within_bold_do_not_end_it() -> None:
    tokens = MarkdownIt().parse(to_markdown("<p><b>2*</b> and <b>*3</b></p>").text)

    pieces = tokens[1].children or []
    assert [t.type for t in pieces if t.type.startswith("strong")] == ["strong_open", "strong_close"] * 2
    assert "".join(t.content for t in pieces) == "2* and *3"


def test_no_blank_ends_a_line_and_no_two_blank_lines_follow_each_other() -> None:
    html = "".join(f"<div> {html} </div> \n" for _, html, _ in SAMPLES)

    lines = to_markdown(html).text.split("\n")

    assert [line for line in lines if line != line.rstrip()] == []
    assert not any(not a and not b for a, b in itertools.pairwise(lines))
