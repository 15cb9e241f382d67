"""A page of Step 4 as HTML: no script, nothing from elsewhere, readable on a phone, at night and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

TONES: Mapping[str, str] = {
    **dict.fromkeys(("accepted", "implementing", "implemented"), "good"),
    **dict.fromkeys(("proposed", "MEDIUM"), "warn"),
    **dict.fromkeys(("superseded", "rejected", "deprecated", "given up", "HIGH"), "bad"),
}

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5c6370; --line: #dfe2e7; --back: #fff; --tint: #f3f5f8;
  --link: #0b57d0; --good: #0f6b3a; --warn: #8a5300; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6ea; --soft: #a0a7b4; --line: #363b45; --back: #15171b; --tint: #20242b; --link: #8ab4f8;
    --good: #6fcf97; --warn: #f2c26b; --bad: #ff9c93; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 1rem/1.55 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.5rem 0 .75rem; }
* + h1 { border-top: 3px solid var(--line); padding-top: 2rem; margin-top: 3rem; }
p:first-child + h1 { border: 0; padding: 0; margin-top: .75rem; }
h2 { font-size: .85rem; letter-spacing: .06em; text-transform: uppercase; color: var(--soft);
  border-bottom: 1px solid var(--line); padding-bottom: .3rem; margin: 2.25rem 0 .75rem; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 1.5rem 0 .25rem; }
p { margin: .4rem 0; }
ul, ol { margin: .4rem 0; padding-left: 1.4rem; }
li { margin: .3rem 0; }
li.todo { list-style: none; }
li.todo::before { content: ""; float: left; width: .8em; height: .8em; margin: .3em 0 0 -1.4em;
  border: 1.5px solid var(--soft); border-radius: 3px; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
blockquote { margin: .6rem 0; padding: .15rem .9rem; background: var(--tint); border-left: 3px solid var(--soft);
  border-radius: 0 6px 6px 0; }
h1 + blockquote { border-color: var(--warn); margin-bottom: 1rem; }
h3 + p { color: var(--soft); font-size: .9rem; }
code { font: 600 .78rem/1.4 system-ui, sans-serif; display: inline-block; padding: .05rem .5rem; color: var(--soft);
  background: var(--tint); border: 1px solid var(--line); border-radius: 1rem; }
code.good { color: var(--good); border-color: currentcolor; }
code.warn { color: var(--warn); border-color: currentcolor; }
code.bad { color: var(--bad); border-color: currentcolor; }
em, ol { color: var(--soft); font-style: normal; font-size: .9rem; }
@media print {
  main { max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; }
  li, blockquote { break-inside: avoid; }
  * + h1 { break-before: page; border: 0; }
  p:first-child + h1 { break-before: auto; }
  ol a::after { content: " <" attr(href) ">"; }
}
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}</main>
</body>
</html>
"""


def html(markdown: str, title: str, anchors: Sequence[str] = ()) -> str:
    """A page of this text; `anchors` are the ids of its first headings of level 1."""
    from markdown_it.common.utils import escapeHtml

    renderer = _renderer()
    tokens = renderer.parse(markdown)
    for token, anchor in zip(
        (t for t in tokens if t.type == "heading_open" and t.tag == "h1"), anchors, strict=False
    ):
        token.attrSet("id", anchor)
    body: str = renderer.renderer.render(tokens, renderer.options, {})
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return PAGE.format(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=escapeHtml(title),
        style=STYLE,
        body=body.replace("<li>[ ] ", '<li class="todo">'),
    )


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.common.utils import escapeHtml

    def badge(_self: Any, tokens: Any, index: int, *_: Any) -> str:
        text = tokens[index].content
        return f'<code class="{TONES.get(text, "plain")}">{escapeHtml(text)}</code>'

    made = MarkdownIt("commonmark", {"html": False})
    made.add_render_rule("code_inline", badge)
    return made
