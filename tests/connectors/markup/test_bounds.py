"""Pages that are huge, nested without end, or made to take for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.markup import parsing
from connectors.markup.elements import to_markdown
from connectors.markup.inline import LinkResolver, Target
from tests.complexity import assert_linear

MB = 1_000_000
SECTION = (
    "<h2>Section</h2>"
    + "<p>The <b>quick</b> fox&nbsp;jumps <a href='https://example.com/a_b?c=d'>here</a>, 2 * 3, it _is_ said.</p>"
    * 12
    + "<table><tbody><tr><th>A</th><th>B</th></tr>"
    + "<tr><td><p>Some <strong>text</strong> &amp; more</p></td><td><code>x|y</code></td></tr>" * 10
    + '</tbody></table><ac:structured-macro ac:name="code"><ac:parameter ac:name="language">java</ac:parameter>'
    + "<ac:plain-text-body><![CDATA["
    + "   int x = list<int>(5);\n" * 20
    + "]]></ac:plain-text-body></ac:structured-macro><ul>"
    + "<li><p>item</p><ul><li>nested</li></ul></li>" * 10
    + "</ul>"
)


def _page(size: int) -> str:
    return SECTION * (size // len(SECTION)) + "<p>the last word</p>"


def _convert(html: str) -> None:
    rendered = to_markdown(html, most_characters=100 * MB)
    assert not rendered.capped


def test_the_time_grows_with_the_page_and_no_faster() -> None:
    def convert(html: str) -> None:
        rendered = to_markdown(html, most_characters=100 * MB)
        assert rendered.text.endswith("the last word")
        assert not rendered.capped

    assert_linear(_page, MB // 2, convert)


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "<!--",
        "<![CDATA[",
        "<a ",
        "&",
        "<a b='",
        '<a b="><a "',
        "<a /",
        "<!",
        "<?",
        "</",
        "`",
        "*a",
        "_a ",
        "](",
        "\\",
        "<script>",
    ],
)
def test_a_page_of_one_piece_takes_time_by_its_length(piece: str) -> None:
    assert_linear(lambda size: piece * (size // len(piece)), MB // 4, _convert)


@pytest.mark.parametrize(
    "piece", ["<p>", "<td>", "<table><tr><td>", "<ul><li>", "<b>", "<p><b><i>x", "<blockquote>x"]
)
def test_elements_that_never_end_take_time_by_their_number(piece: str) -> None:
    assert_linear(lambda size: piece * (size // len(piece)), MB // 10, _convert)


def test_what_a_link_leads_to_is_looked_for_in_its_beginning() -> None:
    """A link's elements are read once for each link around them: with a hundred around a page it took 20 s."""

    def elements() -> Iterator[parsing.Element]:
        yield from (parsing.Element("ri:nothing") for _ in range(500))
        yield (
            parsing.Element("ri:page", {"ri:content-title": "Quay"}) if named else parsing.Element("ri:page")
        )
        yield from (parsing.Element("b") for _ in range(1000))
        pytest.fail("it reads on")

    named = True
    assert LinkResolver(None).target(elements()) == Target(label="Quay")
    named = False
    assert LinkResolver(None).target(elements()) == Target()


def _nested(name: str, depth: int, *, close: bool) -> str:
    return f"<p>before</p>{f'<{name}>' * depth}deep{f'</{name}>' * depth if close else ''}<p>behind</p>"


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize(
    "name",
    ["div", "b", "ul", "li", "blockquote", "table", "td", "span", "ac:rich-text-body", "ac:link", "pre", "a"],
)
def test_nested_tags_take_time_by_their_number_and_hide_nothing(name: str, close: bool) -> None:
    def convert(html: str) -> None:
        rendered = to_markdown(html, most_characters=100 * MB)
        assert "before" in rendered.text
        assert "deep" in rendered.text
        assert "behind" in rendered.text
        assert not rendered.capped

    assert_linear(lambda depth: _nested(name, depth, close=close), 5_000, convert)


@pytest.mark.parametrize("depth", [50, 100, 1000])
def test_all_kinds_of_elements_in_each_other_end_cleanly(depth: int) -> None:
    piece = (
        '<ac:structured-macro ac:name="info"><ac:rich-text-body><ul><li><blockquote><dl><dd><b>'
        "<ac:link><ac:link-body><table><tr><td>word "
    )

    assert to_markdown(piece * depth + "deep").text.count("word") == depth


def test_a_hundred_thousand_nested_tags_end_cleanly() -> None:
    assert "deep" in to_markdown(_nested("div", 100_000, close=True), most_characters=100 * MB).text


def test_nesting_too_deep_to_be_shown_keeps_its_text() -> None:
    html = "".join(f"<ul><li>w{n} " for n in range(300))

    rendered = to_markdown(html)

    assert [word for n in range(300) if (word := f"w{n}") not in rendered.text.split()] == []
    assert not rendered.capped
    assert max(len(line) for line in rendered.text.splitlines()) < 200


def test_settings_stay_hidden_however_deep() -> None:
    deep = (
        '<ac:structured-macro ac:name="x"><ac:parameter ac:name="y">secret</ac:parameter><ac:rich-text-body>a'
    )

    assert "secret" not in to_markdown(deep * 2000).text


def test_deep_elements_close_nothing_else() -> None:
    html = "<ul><li>" + "<div>" * 1000 + "a" + "</div>" * 1000 + "</li><li>b</li></ul>"

    assert to_markdown(html).text == "- a\n- b"

    inner = "<ul><li>x</li></ul>y"
    text = to_markdown("<ul><li>" + "<span>" * 1000 + inner + "</span>" * 1000 + "z</li></ul>").text
    assert text.split() == ["-", "x", "yz"]
    assert text.splitlines()[-1] == "  yz"


@pytest.mark.parametrize(
    "html",
    ["<p>word word</p>" * 1000, f"<p>{'word ' * 10_000}</p>", "<pre>" + "word\n" * 10_000 + "</pre>"],
    ids=["paragraphs", "one paragraph", "code"],
)
def test_what_is_too_long_is_cut_and_said(html: str) -> None:
    rendered = to_markdown(html, most_characters=500)

    assert rendered.capped
    assert 400 < len(rendered.text) <= 510
    assert rendered.text.count("```") in (0, 2)
    assert not to_markdown(html, most_characters=100_000).capped


def test_a_table_is_cut_between_rows() -> None:
    html = f"<table><tr><th>head</th></tr>{'<tr><td>0123456789</td></tr>' * 100}</table><p>behind</p>"

    rendered = to_markdown(html, most_characters=300)

    assert rendered.capped
    assert {len(line) for line in rendered.text.splitlines()[2:]} == {14}


def test_what_follows_too_many_tags_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MOST_PIECES", 6)

    assert to_markdown("<p>a</p>" * 3) == ("a\n\na", True)
    assert to_markdown("<p>a</p>" * 2) == ("a\n\na", False)
