"""What the editors of boards make: lines of div, mentions, pasted Word, pictures as data."""

from __future__ import annotations

import pytest

from connectors.markup.elements import to_markdown

FILES = "https://dev.azure.com/org/p-1/_apis/wit/attachments/6e1f"

SAMPLES: list[tuple[str, str, str]] = [
    ("lines", "<div>a</div><div>b</div>", "a\nb"),
    ("an empty line", "<div>a</div><div><br></div><div>b</div>", "a\n\nb"),
    ("lines within lines", "<div><div>a<div>b</div></div>c</div>", "a\nb\nc"),
    ("hard blanks", "<div>a&nbsp;</div><div>&nbsp;b&nbsp;&nbsp;c</div>", "a\nb c"),
    (
        "styles",
        '<div style="box-sizing:border-box;"><span style="font-size:14px;">a </span><b>b</b></div>',
        "a **b**",
    ),
    ("bold that is none", '<b style="font-weight: normal">a</b>', "a"),
    (
        "a mention",
        '<div>Ask <a href="#" data-vss-mention="version:2.0,0f3c-77">@Jane Doe</a>&nbsp;please</div>',
        "Ask @Jane Doe please",
    ),
    (
        "a mentioned item",
        '<a href="https://dev.azure.com/o/p/_workitems/edit/7" data-vss-mention="version:1.0">#7</a>',
        "#7",
    ),
    (
        "Word",
        (
            "<!--[if gte mso 9]><xml><w:View>Normal</w:View></xml><![endif]-->"
            "<p class=MsoNormal style='margin-left:.5in'>a<o:p></o:p></p><p class=\"MsoNormal\"><o:p>&nbsp;</o:p></p>"
            "<p class=MsoListParagraph><![if !supportLists]><span>·</span><![endif]>b<o:p></o:p></p>"
        ),
        "a\n\n·b",
    ),
    ("Word's islands", "<xml><w:x>no</w:x></xml><style>p.Mso{}</style><p>a</p>", "a"),
    (
        "a picture as data",
        '<div>a<img src="data:image/png;base64,iVBORw0KGgo=" alt="Shot">b</div>',
        "a![Shot]b",
    ),
    ("a picture as data without words", '<div>a<img src="data:image/png;base64,iVBORw0KGgo=">b</div>', "ab"),
    (
        "a picture",
        f'<img src="{FILES}?fileName=login%20page.png">',
        f"![login page.png]({FILES}?fileName=login%20page.png)",
    ),
    (
        "an attachment",
        f'<a href="{FILES}?fileName=log.txt">log.txt</a>',
        f"[log.txt]({FILES}?fileName=log.txt)",
    ),
    ("an address without quotes", "<a href=https://x/y/>z</a>", "[z](https://x/y/)"),
    ("steps", "<ol><li>Open<li>Click <i>Save</i></ol><div>Done</div>", "1. Open\n2. Click *Save*\n\nDone"),
    ("code", "<pre><code><div>a {</div><div>&nbsp; b</div></code></pre>", "```\na {\n\xa0 b\n```"),
    (
        "a table",
        "<table><tr><td>Given</td><td>When</td></tr></table>",
        "|  |  |\n| --- | --- |\n| Given | When |",
    ),
    ("upper case", "<DIV>a<BR>b</DIV><P ALIGN=left>c", "a\nb\n\nc"),
    ("an address in upper case", '<A HREF="https://x">y</A>', "[y](https://x)"),
    ("breaks only", "a<br><br>b<br>c</br>d", "a\n\nb\nc\nd"),
]


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_board_html_becomes(html: str, markdown: str) -> None:
    assert to_markdown(html).text == markdown
