"""Whatever the tree: each visible word comes out, no setting does, and nothing raises."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.markup.elements import to_markdown

WORD, SETTING = "\x01", "\x02"
"""Stand for a word and a setting in a generated tree; each becomes unique."""

_PLAIN = "p div h1 h3 b strong i em u code del sup sub span blockquote pre center section ul ol li dl dt dd table tr td th a".split()  # noqa: SIM905 (a list of words)
_AC = [
    "ac:layout",
    "ac:layout-cell",
    "ac:inline-comment-marker",
    "ac:task-list",
    "ac:task",
    "ac:task-body",
    "ac:link",
    "ac:link-body",
    "ac:caption",
    "ac:adf-content",
]
_LEAVES = [
    WORD,
    f" {WORD} {WORD}\n",
    f"<![CDATA[{WORD} <x> ]]>",
    "<br/>",
    "<hr/>",
    f"<!-- {SETTING} -->",
    f"<script>{SETTING}</script>",
    f"<ac:placeholder>{SETTING}</ac:placeholder>",
    '<ac:image ac:width="5"><ri:attachment ri:filename="f.png"/></ac:image>',
    f'<ac:structured-macro ac:name="status"><ac:parameter ac:name="title">{WORD}</ac:parameter><ac:parameter ac:name="colour">{SETTING}</ac:parameter></ac:structured-macro>',
    f'<ac:structured-macro ac:name="toc"><ac:parameter ac:name="x">{SETTING}</ac:parameter></ac:structured-macro>',
    f'<ac:structured-macro ac:name="code"><ac:parameter ac:name="theme">{SETTING}</ac:parameter><ac:plain-text-body><![CDATA[{WORD}\n  {WORD}]]></ac:plain-text-body></ac:structured-macro>',
    f"<ac:task><ac:task-id>{SETTING}</ac:task-id><ac:task-status>complete</ac:task-status><ac:task-body>{WORD}</ac:task-body></ac:task>",
]


def _within(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inner = st.lists(children, max_size=4).map("".join)
    plain = st.builds(lambda name, body: f"<{name}>{body}</{name}>", st.sampled_from(_PLAIN + _AC), inner)
    unclosed = st.builds(lambda name, body: f"<{name}>{body}", st.sampled_from(_PLAIN), inner)
    stray = st.builds(lambda name, body: f"{body}</{name}>", st.sampled_from(_PLAIN + _AC), inner)
    macro = st.builds(
        lambda name, body: (
            f'<ac:structured-macro ac:name="{name}"><ac:parameter ac:name="setting">{SETTING}</ac:parameter>'
            f"<ac:rich-text-body>{body}</ac:rich-text-body></ac:structured-macro>"
        ),
        st.sampled_from(["info", "panel", "expand", "excerpt", "acme"]),
        inner,
    )
    row = st.lists(inner, min_size=1, max_size=3).map("</td><td>".join)
    rows = st.lists(row.map(lambda cells: f"<tr><td rowspan=2>{cells}</td></tr>"), min_size=1, max_size=3)
    table = rows.map("".join).map(lambda body: f"<table>{body}</table>")
    return st.one_of(plain, unclosed, stray, macro, table, inner)


TREES = st.recursive(st.sampled_from(_LEAVES), _within, max_leaves=25)


def _numbered(tree: str) -> tuple[str, int, int]:
    """The tree with unique words, and how many words and settings there are."""
    words = settings_ = 0
    pieces: list[str] = []
    for piece in re.split(f"([{WORD}{SETTING}])", tree):
        if piece == WORD:
            words += 1
            pieces.append(f"word{words}w")
        elif piece == SETTING:
            settings_ += 1
            pieces.append(f"setting{settings_}s")
        else:
            pieces.append(piece)
    return "".join(pieces), words, settings_


@given(TREES)
@settings(max_examples=300, deadline=None)
def test_every_visible_word_is_in_the_text_and_no_setting_is(tree: str) -> None:
    html, words, settings_ = _numbered(tree)

    rendered = to_markdown(html)

    assert [n for n in range(1, words + 1) if f"word{n}w" not in rendered.text] == []
    assert [n for n in range(1, settings_ + 1) if f"setting{n}s" in rendered.text] == []
    assert not rendered.capped


PIECES = st.sampled_from(
    [
        "<",
        ">",
        "</",
        "/>",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "&",
        ";",
        "&#x",
        '"',
        "'",
        "=",
        "<p",
        "<td colspan=",
        "<a href='",
    ]
    + [
        f"<{name}>"
        for name in (
            *_PLAIN,
            *_AC,
            "ac:image",
            "ac:structured-macro ac:name=code",
            "ac:plain-text-body",
            "head",
            "tbody",
        )
    ]
    + [
        f"</{name}>"
        for name in (*_PLAIN, *_AC, "ac:image", "ac:structured-macro", "ac:plain-text-body", "head", "thead")
    ]
    + [
        "<ri:page ri:content-title='x'/>",
        "<ac:parameter ac:name='title'>",
        "</ac:parameter>",
        "<input type=checkbox>",
        "<time datetime=x>",
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=40).map("".join)))
@settings(max_examples=600, deadline=None)
def test_no_text_whatsoever_raises(html: str) -> None:
    rendered = to_markdown(html)

    assert rendered.text == rendered.text.rstrip()
    assert to_markdown(html) == rendered
