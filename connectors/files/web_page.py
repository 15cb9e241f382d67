"""HTML pages to Markdown: the main content, without navigation, footers and other parts of the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from connectors.markup.elements import to_markdown
from connectors.markup.parsing import Element

_ASIDE = frozenset({"nav", "footer", "select", "noscript", "dialog", "clipboard-copy"})
_ROLES = frozenset({"navigation", "search", "contentinfo", "complementary"})
_CLASSES = frozenset(
    "headerlink breadcrumb breadcrumbs wy-breadcrumbs theme-doc-breadcrumbs navpath topnav bottomnav subnav navlist "  # noqa: SIM905 (a list of words)
    "subnavlist skipnav legalcopy table-of-contents pagination-nav prev-next-area prev-next-footer edit-this-page "
    "theme-edit-this-page edit-link edit-page-link md-content__button md-source-file theme-last-updated copybtn "
    "copy-button copy-btn back-to-top skip-link skip-to-content skiptocontent".split()
)
"""Classes of site elements in Sphinx, Docusaurus, MkDocs Material, VitePress, Antora, Doxygen, Javadoc and others."""
_IDS = frozenset(
    "titlearea side-nav nav-tree nav-path navrow1 navrow2 navrow3 msearchselectwindow msearchresultswindow".split()  # noqa: SIM905 (a list of words)
)
"""Ids of site elements in Doxygen."""
_GUTTERS = frozenset(
    "linenos linenodiv lineno linenumber line-number line-numbers line-numbers-wrapper line-numbers-rows gutter "  # noqa: SIM905 (a list of words)
    "rouge-gutter lntd lnt ln blob-num hljs-ln-numbers".split()
)
"""Classes of line numbers beside code; removed only if the text is numbers, because other text has them too."""
_CHORE = re.compile(
    r"(?:skip|jump) to .{0,20}(?:content|navigation|main|search)|skip navigation.{0,10}|back to top"
    r"|(?:edit|improve|view|suggest edits? (?:to|on)) (?:this page|page source|(?:this page )?on (?:git\w+|bitbucket))"
    r"|(?:view|show|page) source|report (?:an|this) issue",
    re.IGNORECASE,
)
"""Texts of links that belong to the site, not to the page."""
_PANEL = re.compile(r"tab|panel|accordion|collaps|expand|details", re.IGNORECASE)
"""Classes of content that a click shows."""
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "dt", "summary"})
MOST_LABEL = 300
"""Most characters of a title or label."""


def page_markdown(text: str, most_characters: int) -> tuple[str, bool]:
    """Main content of a page as Markdown below its title, and whether text is missing because the page is too large."""
    titles: list[str] = []
    rendered = to_markdown(
        text, most_characters=most_characters, content=partial(_main_content, titles=titles)
    )
    title = " ".join(" ".join(titles[:1]).split())
    headed = rendered.text.startswith("# ") or "\n# " in rendered.text
    markdown = f"# {title}\n\n{rendered.text}" if title and rendered.text and not headed else rendered.text
    return markdown, rendered.capped


def _main_content(page: Element, titles: list[str]) -> Element:
    titles.extend(_titles(page))
    _name_panels(page)
    for node in [page, *page.within()]:
        if node.name == "template" and "shadowrootmode" in node.attributes:
            node.name = "div"  # a shadow root is shown
        in_heading = node.name in _HEADINGS
        node.children = [
            child
            for child in node.children
            if isinstance(child, str) or not _is_site_element(child, in_heading=in_heading)
        ]
    for table in [node for node in page.within() if node.name == "table"]:
        _without_frame(table)
    mains = (node for node in page.within() if node.name == "main" or node.get("role") == "main")
    return next(mains, page)


def _titles(page: Element) -> Iterator[str]:
    """Titles of the page, without those of drawings."""
    drawn = {id(node) for svg in page.within() if svg.name == "svg" for node in svg.children}
    yield from (
        node.content(MOST_LABEL) for node in page.within() if node.name == "title" and id(node) not in drawn
    )


def _classes(element: Element) -> set[str]:
    return {*element.get("class").lower().split()}


def _is_site_element(element: Element, *, in_heading: bool) -> bool:
    """Whether an element belongs to the site, not to the page, or is never shown."""
    name, classes = element.name, _classes(element)
    if name in _ASIDE and not (name == "dialog" and "open" in element.attributes):
        return True
    if element.get("role") in _ROLES or classes & _CLASSES or element.get("id").lower() in _IDS:
        return True
    if name == "button":  # a button in a heading opens an answer: its text is the question
        return not in_heading and element.get("role") != "tab"
    if classes & _GUTTERS and not element.content(10_000).strip(" \n\r\t0123456789.:|"):
        return True
    if name == "a":
        return _is_chore(element)
    return _is_hidden(element) and not _is_panel(element)


def _is_chore(link: Element) -> bool:
    """True for a link without content: hidden, an anchor without words, or a function such as `Edit this page`."""
    if _is_hidden(link):
        return True
    label = " ".join(link.content(MOST_LABEL).split())
    if link.get("href").startswith("#") and not any(map(str.isalnum, label)):
        return not any(node.name == "img" for node in link.within())
    return _CHORE.fullmatch(label) is not None


def _is_hidden(element: Element) -> bool:
    return "hidden" in element.attributes or element.get("aria-hidden") == "true"


def _is_panel(element: Element) -> bool:
    """Whether a click shows the element: a tab, an answer, details."""
    return (
        element.get("hidden").lower() == "until-found"
        or element.get("role") in ("tabpanel", "region")
        or _PANEL.search(element.get("class")) is not None
    )


def _name_panels(page: Element) -> None:
    """Move the label of each tab into its panel."""
    roles = [node for node in page.within() if node.get("role") in ("tablist", "tab", "tabpanel")]
    tabs = {
        key: node
        for node in roles
        if node.get("role") == "tab"
        for key in (node.get("id"), node.get("aria-controls"))
        if key
    }
    groups: list[tuple[list[Element], list[Element]]] = []
    """Tabs of a tab list, and the panels up to the next tab list."""
    for node in roles:
        if node.get("role") == "tablist" or not groups:
            groups.append(([], []))
        if node.get("role") != "tablist":
            groups[-1][node.get("role") == "tabpanel"].append(node)
    for labels, panels in groups:
        for index, panel in enumerate(panels):
            tab = tabs.get(panel.get("aria-labelledby")) or tabs.get(panel.get("id"))
            if tab is None and len(labels) == len(panels):
                tab = labels[index]
            label = tab.content(MOST_LABEL).strip() if tab else ""
            if tab and label:
                panel.children.insert(0, Element("p", children=[Element("b", children=[label])]))
                tab.name, tab.children = "span", []


def _without_frame(table: Element) -> None:
    """Turn a table of one cell with code into plain blocks: it only framed line numbers beside the code."""
    inner = list(table.within())
    cells = [node for node in inner if node.name in ("td", "th")]
    if len(cells) == 1 and any(node.name == "pre" for node in inner):
        for node in (table, *inner):
            node.name = "div" if node.name in ("table", "tbody", "thead", "tr", "td", "th") else node.name
