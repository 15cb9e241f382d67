"""Confluence's macros, links, pictures and the nodes of its new editor."""

from __future__ import annotations

import pytest

from connectors.markup.elements import to_markdown


class Site:
    """Knows pages A and B, one file, one person, and where relative addresses lead."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, ...]] = []

    def page(self, title: str, space: str | None) -> str | None:
        self.asked.append(("page", title, space))
        return f"https://wiki/{space or 'HERE'}/{title}" if title in ("A", "B (2)") else None

    def attachment(self, name: str, page_title: str | None) -> str | None:
        self.asked.append(("attachment", name, page_title))
        return f"https://wiki/files/{name}" if name == "plan.png" else None

    def user(self, key: str) -> str | None:
        return "Ann Lee" if key == "u-1" else None

    def href(self, href: str) -> str | None:
        if href == "/gone":
            return None
        return f"https://wiki{href}" if href.startswith("/") else href


def _macro(name: str, body: str = "", /, **parameters: str) -> str:
    settings = "".join(f'<ac:parameter ac:name="{k}">{v}</ac:parameter>' for k, v in parameters.items())
    rich = f"<ac:rich-text-body>{body}</ac:rich-text-body>" if body else ""
    return f'<ac:structured-macro ac:name="{name}" ac:macro-id="m-1">{settings}{rich}</ac:structured-macro>'


PAGE = '<ri:page ri:space-key="DEV" ri:content-title="{}" ri:version-at-save="3" />'
FILE = '<ri:attachment ri:filename="{}" />'
ADF = (
    '<ac:adf-extension><ac:adf-node type="panel"><ac:adf-attribute key="panel-type">{}</ac:adf-attribute>'
    "<ac:adf-content>{}</ac:adf-content></ac:adf-node><ac:adf-fallback>{}</ac:adf-fallback></ac:adf-extension>"
)

MACROS: list[tuple[str, str, str]] = [
    ("info", _macro("info", "<p>a</p><p>b</p>"), "> **Info**\n>\n> a\n>\n> b"),
    ("note", _macro("note", "<p>a</p>", title="T", icon="false"), "> **Note: T**\n>\n> a"),
    ("tip", _macro("tip", "<ul><li>a</li></ul>"), "> **Tip**\n>\n> - a"),
    ("warning", _macro("warning", "a", title="A &amp; B"), "> **Warning: A & B**\n>\n> a"),
    (
        "panel",
        _macro("panel", "<p>a</p>", title="T", bgColor="#deebff", borderStyle="solid"),
        "> **T**\n>\n> a",
    ),
    ("a panel without a title", _macro("panel", "<p>a</p>", bgColor="#fff"), "> a"),
    ("expand", _macro("expand", "<p>a</p>", title="More"), "> **More**\n>\n> a"),
    (
        "a panel in an expand",
        _macro("expand", _macro("info", "a"), title="M"),
        "> **M**\n>\n> > **Info**\n> >\n> > a",
    ),
    ("details", _macro("details", "<p>a</p>", id="d", hidden="false"), "a"),
    ("excerpt", _macro("excerpt", "<p>a</p>", hidden="true"), "a"),
    (
        "an excerpt in a line",
        f"<p>x {_macro('excerpt', 'a', **{'atlassian-macro-output-type': 'INLINE'})} y</p>",
        "x a y",
    ),
    ("an unknown macro", _macro("acme-box", "<p>a</p>", title="T", colour="red"), "**T**\n\na"),
    (
        "a title behind the body",
        _macro("info", "a").replace(
            "</ac:structured-macro>", '<ac:parameter ac:name="title">T</ac:parameter></ac:structured-macro>'
        ),
        "> **Info: T**\n>\n> a",
    ),
    ("a stray end tag in a body", f"<p>{_macro('info', 'a</p>b')}c</p>", "> **Info**\n>\n> a\n> b\n\nc"),
    (
        "columns",
        _macro("section", _macro("column", "<p>a</p>", width="50%") + _macro("column", "<p>b</p>")),
        "a\n\nb",
    ),
    ("a table of contents", f"<p>a</p>{_macro('toc', maxLevel='3')}{_macro('children')}<p>b</p>", "a\n\nb"),
    ("an anchor", f"<h2>{_macro('anchor', **{'': 'place'})}Head</h2>", "## Head"),
    ("a dropped macro with a body", _macro("contributors", f"<p>no {_macro('info', 'no')}</p>") + "a", "a"),
    (
        "a status",
        f"<p>It is {_macro('status', title='IN REVIEW', colour='Yellow')} now</p>",
        "It is IN REVIEW now",
    ),
    ("an issue", f"<p>See {_macro('jira', server='S', serverId='1', key='DEV-7')}.</p>", "See DEV-7."),
    (
        "a query",
        _macro("jira", jqlQuery="project = DEV", columns="key,summary", maximumIssues="20"),
        "`project = DEV`",
    ),
    (
        "include",
        _macro("include", **{"": f"<ac:link>{PAGE.format('A')}</ac:link>"}),
        "[A](https://wiki/DEV/A)",
    ),
    (
        "an excerpt of a page named in words",
        _macro("excerpt-include", **{"default-parameter": "DEV:A", "name": "x"}),
        "[A](https://wiki/DEV/A)",
    ),
    (
        "an included page nobody finds",
        _macro("include", **{"": f"<ac:link>{PAGE.format('Z')}</ac:link>"}),
        "Z",
    ),
    ("a drawing", _macro("drawio", diagramName="flow.drawio", width="700", revision="3"), "flow.drawio"),
    ("a gliffy", _macro("gliffy", name="net", size="600"), "net"),
    (
        "a file",
        _macro("view-file", name=FILE.format("plan.png"), height="250"),
        "[plan.png](https://wiki/files/plan.png)",
    ),
    ("a pdf", _macro("viewpdf", name=FILE.format("a.pdf")), "a.pdf"),
    (
        "a macro of an older form",
        '<ac:macro ac:name="info"><ac:parameter ac:name="icon">no</ac:parameter><ac:rich-text-body>a</ac:rich-text-body></ac:macro>',
        "> **Info**\n>\n> a",
    ),
    (
        "a parameter never closed",
        '<ac:structured-macro ac:name="info"><ac:parameter ac:name="icon">no</ac:structured-macro>a',
        "a",
    ),
    ("an empty macro", '<p>a<ac:structured-macro ac:name="toc" />b</p>', "ab"),
    ("a panel of the new editor", ADF.format("note", "<p>a</p>", "<div>a</div>"), "> **Note**\n>\n> a"),
    (
        "a panel of the new editor whose fallback repeats a link",
        ADF.format("note", *[f"<p><ac:link>{PAGE.format('A')}</ac:link></p>"] * 2),
        "> **Note**\n>\n> [A](https://wiki/DEV/A)",
    ),
    (
        "only a fallback",
        ADF.format("note", "", "<p>a</p>").replace("<ac:adf-content></ac:adf-content>", ""),
        "a",
    ),
    (
        "a decision",
        '<ac:adf-extension><ac:adf-node type="decision-list"><ac:adf-node type="decision-item"><ac:adf-attribute key="state">DECIDED</ac:adf-attribute><ac:adf-content>We use X</ac:adf-content></ac:adf-node></ac:adf-node><ac:adf-fallback><ul><li>We use X</li></ul></ac:adf-fallback></ac:adf-extension>',
        "We use X",
    ),
    (
        "a layout",
        '<ac:layout><ac:layout-section ac:type="two_equal"><ac:layout-cell><p>a</p></ac:layout-cell><ac:layout-cell><p>b</p></ac:layout-cell></ac:layout-section></ac:layout>',
        "a\n\nb",
    ),
    (
        "a commented word",
        '<p>a<ac:inline-comment-marker ac:ref="r-1">b</ac:inline-comment-marker>c</p>',
        "abc",
    ),
    ("a placeholder", "<p>a <ac:placeholder>Write here</ac:placeholder></p>", "a"),
    (
        "an emoticon",
        '<p><ac:emoticon ac:name="smile" ac:emoji-shortname=":slight_smile:" ac:emoji-fallback="🙂" /> <ac:emoticon ac:name="tick" /></p>',
        "🙂 :tick:",
    ),
]

LINKS: list[tuple[str, str, str]] = [
    ("a page", f"<p>See <ac:link>{PAGE.format('A')}</ac:link>!</p>", "See [A](https://wiki/DEV/A)!"),
    (
        "a page with brackets",
        f"<ac:link>{PAGE.format('B (2)')}</ac:link>",
        "[B (2)](https://wiki/DEV/B%20%282%29)",
    ),
    (
        "a page with a label",
        f"<ac:link>{PAGE.format('A')}<ac:plain-text-link-body><![CDATA[x & [y]]]></ac:plain-text-link-body></ac:link>",
        "[x & \\[y\\]](https://wiki/DEV/A)",
    ),
    (
        "a page with a rich label",
        f"<ac:link>{PAGE.format('A')}<ac:link-body>x <b>y</b></ac:link-body></ac:link>",
        "[x **y**](https://wiki/DEV/A)",
    ),
    (
        "a label before the page",
        f"<ac:link><ac:link-body>x</ac:link-body>{PAGE.format('A')}</ac:link>",
        "[x](https://wiki/DEV/A)",
    ),
    (
        "a page in this space",
        '<ac:link><ri:page ri:content-title="A"/></ac:link>',
        "[A](https://wiki/HERE/A)",
    ),
    ("a page nobody finds", f"<ac:link>{PAGE.format('Z')}</ac:link>", "Z"),
    (
        "a place on this page",
        '<ac:link ac:anchor="p"><ac:plain-text-link-body><![CDATA[up]]></ac:plain-text-link-body></ac:link>',
        "up",
    ),
    (
        "an attachment",
        f"<ac:link>{FILE.format('plan.png')}</ac:link>",
        "[plan.png](https://wiki/files/plan.png)",
    ),
    ("a person", '<p>Ask <ac:link><ri:user ri:account-id="u-1" /></ac:link>.</p>', "Ask @Ann Lee."),
    ("a person nobody knows", '<p>Ask <ac:link><ri:user ri:userkey="ff80" /></ac:link>.</p>', "Ask ."),
    (
        "a picture",
        f'<ac:image ac:height="250">{FILE.format("plan.png")}</ac:image>',
        "![plan.png](https://wiki/files/plan.png)",
    ),
    ("a picture with words", f'<ac:image ac:alt="The plan">{FILE.format("x.png")}</ac:image>', "![The plan]"),
    (
        "a picture from elsewhere",
        '<ac:image><ri:url ri:value="https://x/y/z.png?v=1" /></ac:image>',
        "![z.png](https://x/y/z.png?v=1)",
    ),
    (
        "a caption",
        f"<ac:image>{FILE.format('x.png')}<ac:caption><p>Cap</p></ac:caption></ac:image>",
        "![x.png]\n\nCap",
    ),
    (
        "a picture in a link",
        f'<a href="https://x"><ac:image>{FILE.format("plan.png")}</ac:image></a>',
        "[![plan.png](https://wiki/files/plan.png)](https://x)",
    ),
    ("an address", '<a href="https://x/a b?c=(d)&amp;e">f</a>', "[f](https://x/a%20b?c=%28d%29&e)"),
    ("an address as its own label", '<a href="https://x/_y_/">https://x/_y_/</a>', "https://x/_y_/"),
    ("a relative address", '<a href="/x">y</a>', "[y](https://wiki/x)"),
    ("an address that is dropped", '<a href="/gone">y</a>', "y"),
    ("a script", '<a href=" java\nscript:alert(1)">y</a><a href="DATA:text/html,x">z</a>', "yz"),
    ("a script out of an entity", '<a href="&#1;javascript:x">y</a>', "y"),
    ("a place", '<a href="#top">y</a><a name="x">z</a><a id="q"/>!', "yz!"),
    ("an empty link", '<p>a<a href="https://x"> </a>b</p>', "a b"),
    (
        "a link over blocks",
        '<a href="https://x"><div>a</div><div>b</div></a>',
        "[a](https://x)\n[b](https://x)",
    ),
    (
        "a link within a link",
        '<a href="https://x">a<a href="https://y">b</a>',
        "[a](https://x)[b](https://y)",
    ),
    ("bold links side by side", '<b>a</b><a href="https://x"><b>b</b></a>', "**a**[**b**](https://x)"),
]


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in MACROS], ids=[s[0] for s in MACROS])
def test_macros_become(html: str, markdown: str) -> None:
    assert to_markdown(html, Site()).text == markdown


@pytest.mark.parametrize(("html", "markdown"), [s[1:] for s in LINKS], ids=[s[0] for s in LINKS])
def test_links_become(html: str, markdown: str) -> None:
    assert to_markdown(html, Site()).text == markdown


def test_without_anybody_to_ask_labels_stay() -> None:
    html = f'<p><ac:link>{PAGE.format("A")}</ac:link> <a href="/x">y</a> <a href="javascript:x">z</a></p>'

    assert to_markdown(html).text == "A [y](/x) z"


def test_an_attachment_of_another_page_is_asked_for_with_that_page() -> None:
    site = Site()

    to_markdown(f'<ac:link><ri:attachment ri:filename="f">{PAGE.format("A")}</ri:attachment></ac:link>', site)

    assert site.asked[-1] == ("attachment", "f", "A")


@pytest.mark.parametrize("panel", ["note", "info", "tip", "warning", "success", "error"])
def test_a_panel_of_the_new_editor_says_its_kind(panel: str) -> None:
    assert to_markdown(ADF.format(panel, "<p>a</p>", "")).text == f"> **{panel.capitalize()}**\n>\n> a"
