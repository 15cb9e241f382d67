"""A page of a site: what it is about, without what every page of its site has around that."""

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
"""Of Sphinx, Docusaurus, MkDocs Material, VitePress, Antora, Doxygen, Javadoc and their like."""
_IDS = frozenset(
    "titlearea side-nav nav-tree nav-path navrow1 navrow2 navrow3 msearchselectwindow msearchresultswindow".split()  # noqa: SIM905 (a list of words)
)
"""Of Doxygen."""
_GUTTERS = frozenset(
    "linenos linenodiv lineno linenumber line-number line-numbers line-numbers-wrapper line-numbers-rows gutter "  # noqa: SIM905 (a list of words)
    "rouge-gutter lntd lnt ln blob-num hljs-ln-numbers".split()
)
"""Classes of the numbers of lines of code; a word about code may have them as well, numbers alone are numbers."""
_CHORE = re.compile(
    r"(?:skip|jump) to .{0,20}(?:content|navigation|main|search)|skip navigation.{0,10}|back to top"
    r"|(?:edit|improve|view|suggest edits? (?:to|on)) (?:this page|page source|(?:this page )?on (?:git\w+|bitbucket))"
    r"|(?:view|show|page) source|report (?:an|this) issue",
    re.IGNORECASE,
)
"""All that such a link says."""
_PANEL = re.compile(r"tab|panel|accordion|collaps|expand|details", re.IGNORECASE)
"""In the class of what one click shows."""
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "dt", "summary"})
MOST_LABEL = 300
"""Characters of a title or label."""


def page_markdown(text: str, most_characters: int) -> tuple[str, bool]:
    """The Markdown of a page's matter below its title, and whether some of it is missing."""
    titles: list[str] = []
    rendered = to_markdown(text, most_characters=most_characters, content=partial(_matter, titles=titles))
    title = " ".join(" ".join(titles[:1]).split())
    headed = rendered.text.startswith("# ") or "\n# " in rendered.text
    found = f"# {title}\n\n{rendered.text}" if title and rendered.text and not headed else rendered.text
    return found, rendered.capped


def _matter(page: Element, titles: list[str]) -> Element:
    titles.extend(_titles(page))
    _name_panels(page)
    for one in [page, *page.within()]:
        if one.name == "template" and "shadowrootmode" in one.attributes:
            one.name = "div"  # it is shown
        in_heading = one.name in _HEADINGS
        one.children = [
            child
            for child in one.children
            if isinstance(child, str) or not _aside(child, in_heading=in_heading)
        ]
    for table in [one for one in page.within() if one.name == "table"]:
        _without_frame(table)
    mains = (one for one in page.within() if one.name == "main" or one.get("role") == "main")
    return next(mains, page)


def _titles(page: Element) -> Iterator[str]:
    """Those of the page; a drawing has one of its own."""
    drawn = {id(one) for svg in page.within() if svg.name == "svg" for one in svg.children}
    yield from (
        one.content(MOST_LABEL) for one in page.within() if one.name == "title" and id(one) not in drawn
    )


def _classes(element: Element) -> set[str]:
    return {*element.get("class").lower().split()}


def _aside(element: Element, *, in_heading: bool) -> bool:
    """Whether it belongs to the site and not to the page, or nobody ever sees it."""
    name, classes = element.name, _classes(element)
    if name in _ASIDE and not (name == "dialog" and "open" in element.attributes):
        return True
    if element.get("role") in _ROLES or classes & _CLASSES or element.get("id").lower() in _IDS:
        return True
    if name == "button":  # what opens an answer is the question
        return not in_heading and element.get("role") != "tab"
    if classes & _GUTTERS and not element.content(10_000).strip(" \n\r\t0123456789.:|"):
        return True
    if name == "a":
        return _is_chore(element)
    return _is_hidden(element) and not _is_panel(element)


def _is_chore(link: Element) -> bool:
    """A link of the site: a place on this page without words, or something to do with it."""
    if _is_hidden(link):
        return True
    label = " ".join(link.content(MOST_LABEL).split())
    if link.get("href").startswith("#") and not any(map(str.isalnum, label)):
        return not any(one.name == "img" for one in link.within())
    return _CHORE.fullmatch(label) is not None


def _is_hidden(element: Element) -> bool:
    return "hidden" in element.attributes or element.get("aria-hidden") == "true"


def _is_panel(element: Element) -> bool:
    """Whether a click shows it: a tab, an answer, details."""
    return (
        element.get("hidden").lower() == "until-found"
        or element.get("role") in ("tabpanel", "region")
        or _PANEL.search(element.get("class")) is not None
    )


def _name_panels(page: Element) -> None:
    """Puts the label of each tab before what it shows, and takes the row of labels away."""
    roles = [one for one in page.within() if one.get("role") in ("tablist", "tab", "tabpanel")]
    tabs = {
        key: one
        for one in roles
        if one.get("role") == "tab"
        for key in (one.get("id"), one.get("aria-controls"))
        if key
    }
    groups: list[tuple[list[Element], list[Element]]] = []
    """The tabs of a list, and the panels up to the next list."""
    for one in roles:
        if one.get("role") == "tablist" or not groups:
            groups.append(([], []))
        if one.get("role") != "tablist":
            groups[-1][one.get("role") == "tabpanel"].append(one)
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
    """Makes a table of one cell, as it frames code beside the numbers of its lines, no table."""
    inner = list(table.within())
    cells = [one for one in inner if one.name in ("td", "th")]
    if len(cells) == 1 and any(one.name == "pre" for one in inner):
        for one in (table, *inner):
            one.name = "div" if one.name in ("table", "tbody", "thead", "tr", "td", "th") else one.name
