"""Markup within lines of Markdown: tags, references and codes as the words that stand for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape

from connectors.markup.inline import subscript, superscript

GONE, _BREAK, _ITEM = "\ufdd0", "\ufdd1", "\ufdd2"
"""Stand for markup that went, a line break and an item of a list; no text has these characters."""
_MARKERS = re.compile(f"[{GONE}{_BREAK}{_ITEM}]")

CODE_SPAN = (
    r"(?<!``)(?P<more>`*)(?!`)"
    r"(?:[^`\n]++|\n(?![ \t]*(?:\n|$|[-*+][ \t]|\d{1,9}[.)][ \t]|[>#|]|```|~~~))"
    r"|(?!`(?P=more)(?!`))`++)++`(?P=more)(?!`)"
)
"""What follows the first backtick of a span of code, which ends in its paragraph with as many as it begins."""
_VALUE = r"""(?:"[^"<]{0,1000}"|'[^'<]{0,1000}'|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}|[^\s"'=<>`{}]+)"""
_ATTRIBUTE = rf"(?:[\w:@.#*()\[\]-]+(?:[ \t]*=[ \t\n]*{_VALUE})?|\{{\.\.\.[^{{}}]*\}})"
_TOKEN = re.compile(
    # The first sign by itself: most are none of these, and the rest is looked at only where one is.
    rf"""[`\\<!\[^{{%:&](?:(?<=`)(?P<code>{CODE_SPAN})
    |(?<=\\)(?P<escaped>[<{{\[!%&^\\`])
    |(?<=<)a\s[^<>]*?\bhref\s*=\s*(?P<href>"[^"\s<>]+"|'[^'\s<>]+')[^<>]*>(?P<linked>[^<>\n\[\]]+)</a>
    |(?<=[\w)\]]<)(?P<raised>su[pb])>(?P<exponent>[^<>\n\[\]]{{1,60}})</(?P=raised)>
    |(?<=<)(?P<slash>/?)(?P<tag>[A-Za-z][\w.-]*)(?P<attributes>(?:\s+{_ATTRIBUTE})*+)\s*(?P<alone>/?)>
    |(?<=<)/?>
    |(?<=!)\[\[[^\[\]\n|]*\.(?:avif|bmp|gif|jpe?g|mp[34]|pdf|png|svg|webp|excalidraw)(?:\#[^\[\]\n|]*)?(?:\|[^\[\]\n]*)?\]\]
    |(?<=!)\[\[(?P<embed>[^\[\]\n|]+?)(?:\\?\|(?P<alias>[^\[\]\n]*))?\]\]
    |(?<=\[)(?<![A-Za-z\d_)\]]\[)\[(?P<page>[^\[\]\n|]+?)(?:\\?\|(?P<words>[^\[\]\n]*))?\]\]
        (?![(\[]|:[ \t]*[<\w/#]\S*[ \t]*(?:\n|\Z|["']))
    |(?<=\[)\^(?P<note>[^\[\]\s]+)\](?::[ \t]*)?
    |(?<=\^)\[(?P<aside>[^\[\]\n]+)\]
    |(?<=\[)[#¶🔗\ufffc]?\]\((?:\#[^()\s]*)?\)
    |(?<=\{{)\{{[<%](?P<shortcode>[^{{}}\n]*)[>%]\}}\}}
    |(?<=\{{)%-?[ ]*raw[ ]*-?%\}}(?P<raw>(?:[^{{]|\{{(?!%-?[ ]*(?:end)?raw\b))*+)\{{%-?[ ]*endraw[ ]*-?%\}}
    |(?<=\{{)%(?P<liquid>[^{{}}\n]*)%\}}
    |(?<=\{{)\{{-?\s*(?:(?P<literal>"[^"{{}}\n]*"|'[^'{{}}\n]*')\s*\||(?:site|page|layout|theme|include)\b|\$(?:frontmatter|page|site|theme|t|tm|params|route|lang|title|withBase|localePath)\w*\b)[^{{}}\n]*\}}\}}
    |(?<=\{{):(?:[:/][\w ="'./-]*|(?:[ ]*(?:[#.][\w-]+|[\w-]+[:=][^{{}}\n]*|(?:no_)?toc\b))+[ ]*)\}}
    |(?<=[)\]`:]\{{)[ ]?(?:[#.][\w:.-]+|[\w-]+=(?:"[^"\n]*"|[^\s{{}}"']+))(?:[ ]+[^{{}}\n]*)?\}}
    |(?<=\{{)(?:"[ ]*"|'[ ]*')\}}
    |(?<=\{{)[\w:.-]+\}}`(?P<role>[^`\n]*)`
    |(?<=%)(?<![\w%]%)(?<!\d[ ]%)%(?!%)[^%\n]+(?<!\d)%%(?!\w)
    |(?<=:)(?:material|fontawesome|octicons|simple)-[\w-]+:
    |(?<=&)(?P<entity>(?:\#\d{{1,7}}|\#[xX][\da-fA-F]{{1,6}}|[A-Za-z]\w{{1,30}});))""",
    re.VERBOSE,
)
_HTML = frozenset(
    {
        "a", "abbr", "acronym", "address", "area", "article", "aside", "audio", "b", "base", "bdi", "bdo",
        "big", "blockquote", "body", "br", "button", "caption", "center", "cite", "code", "col", "colgroup",
        "data", "dd", "del", "details", "dfn", "dialog", "dir", "div", "dl", "dt", "em", "embed", "fieldset",
        "figcaption", "figure", "font", "footer", "form", "frame", "h1", "h2", "h3", "h4", "h5", "h6", "head",
        "header", "hgroup", "hr", "html", "i", "iframe", "img", "input", "ins", "kbd", "label", "legend", "li",
        "link", "main", "map", "mark", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup", "option",
        "p", "param", "picture", "pre", "q", "rp", "rt", "ruby", "s", "samp", "section", "select", "small",
        "source", "span", "strike", "strong", "sub", "summary", "sup", "table", "tbody", "td", "template",
        "textarea", "tfoot", "th", "thead", "time", "title", "tr", "track", "tt", "u", "ul", "var", "video",
        "wbr",
    }
)  # fmt: skip
_APART = frozenset(
    {
        "address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "figcaption", "p", "section",
        "summary", "td", "th", "tr",
    }
)  # fmt: skip
"""Elements whose text does not go on in the same sentence."""
CLOSED = re.compile(r"</([A-Za-z][\w.-]*)\s*>")
_LABELS = re.compile(
    r"""\b(?:alt|caption|header|heading|label|name|summary|term|text|title)\s*=\s*\{?(?:"([^"<>]*)"|'([^'<>]*)')"""
)
LABEL = re.compile(
    r"\b(?:label|title|heading|summary|text|caption|header)\s*=\s*\{?(?:\"([^\"<>]*)\"|'([^'<>]*)')"
)
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_REFERENCE = re.compile(r"\s*(?:rel)?ref\s+(?:path=)?\"([^\"]*)\"")
_SHORTCODES = frozenset(
    {
        "accordion", "admonition", "alert", "button", "callout", "card", "collapse", "details", "expand",
        "heading", "hint", "notice", "step", "tab",
    }
)  # fmt: skip
"""Shortcodes whose quoted words are a label."""
_KEPT_ESCAPED = frozenset("#|`<*_[]")
_OPEN_ENDED = frozenset(
    {
        "body", "br", "col", "colgroup", "dd", "dt", "head", "hr", "html", "li", "option", "p", "rp", "rt", "tbody",
        "td", "tfoot", "th", "thead", "tr", "wbr",
    }
)  # fmt: skip
"""Elements that need no end."""
_NO_WORDS = re.compile(r"(?:[\s>|*_#+-]|\d{1,9}[.)]|<[^<>]*>)*+")
_NEAR, _LONGEST = 200, 2000
"""Characters before a mark that are looked at for words, and of a paragraph for the end of an element."""


def has_words(text: str, begin: int, end: int) -> bool:
    """Whether words of a sentence stand before a place on its line, so that the mark there may only be named."""
    return not _NO_WORDS.fullmatch(text, max(begin, text.rfind("\n", 0, end) + 1, end - _NEAR), end)


def one_line(text: str) -> str:
    """The words of a text with one blank between them."""
    return " ".join(text.split())


def shown_lines(lines: list[str], closed: frozenset[str], notes: frozenset[str]) -> Iterator[str]:
    """Lines of text without the markup in them; of one of nothing else a blank line remains, and of several one."""
    text = "\n".join(lines)
    replaced = _TOKEN.sub(_replacement(closed, notes), text)
    in_html, indent = False, -1
    was_blank = was_made_blank = False
    for raw in replaced.split("\n"):
        line = raw
        bare = raw.lstrip()
        if bare[:1] in (GONE, _ITEM, _BREAK):
            in_html, indent, line = True, -1, bare
        elif not bare:
            in_html = False
        elif in_html:
            width = len(raw) - len(bare)
            indent = width if indent < 0 else indent
            line = raw[min(width, indent) :]
        marked = bool(_MARKERS.search(line))
        line = _resolved(line) if marked else line
        if not line.strip() and was_blank and (marked or was_made_blank):
            continue
        was_blank, was_made_blank = not line.strip(), marked and not line.strip()
        yield line


def _resolved(line: str) -> str:
    """The line with what its markers stand for."""
    core = line.strip(f"{GONE} \t")
    if re.fullmatch(
        r"[#>]*", core.translate({ord(GONE): "", ord(_BREAK): "", ord(_ITEM): ""}).replace(" ", "")
    ):
        return ""
    one_line = core.startswith("#") or "|" in core
    at_end = "" if line.endswith(" ") and not line.strip().endswith(GONE) else " "
    first = f"{GONE}{_BREAK}{_ITEM} \t"
    if line[0] in first[:3]:
        begins_item = _ITEM in line[: len(line) - len(line.lstrip(first))]
        line = ("- " if begins_item and not one_line else "") + line.lstrip(first)
    line = line.rstrip(first) if at_end else line
    line = re.sub(
        rf"[ ]*{_BREAK}[ {GONE}{_BREAK}]*(?=(.))",
        ", " if one_line and "|" in core else " " if one_line else "\n",
        line,
    )
    line = re.sub(rf"[ ]*{_ITEM}[ {GONE}]*", ", " if one_line else "\n- ", line)
    line = re.sub(rf"(?<=\s){GONE}[ ]?|{GONE}", "", line)
    return re.sub(r"(?<=\|) *, ", " ", line) if one_line else line


def _markdown_link(link: re.Match[str]) -> str:
    """A link of HTML as one of Markdown."""
    target, words = link["href"].strip("\"'"), one_line(unescape(link["linked"]))
    return f"[{words}]({target})" if words and not set(target) & set("() ") else words


def _replacement(closed: frozenset[str], notes: frozenset[str]) -> Callable[[re.Match[str]], str]:
    """What stands for a token: its words, if it has any; for what is no markup the token itself.

    `closed` are the elements that end somewhere in the text, `notes` the footnotes that are defined in it.
    """

    def words(token: re.Match[str]) -> str:
        kind = token.lastgroup or ""
        if kind == "alone":
            return token[0] if _is_named(token, closed) else _of_tag(token, closed)
        if kind == "note" and token["note"] not in notes:
            return token[0]
        return _WORDS[kind](token) if kind in _WORDS else GONE

    return words


def _of_page(token: re.Match[str]) -> str:
    page, words = token["page"] or token["embed"], token["words"] or token["alias"] or ""
    if words.strip() and not re.search(r"[\s()]", page):
        return f"[{words.strip()}]({page})"
    return words.strip() or page.replace("#^", " ").replace("#", " ").strip()


def _of_role(token: re.Match[str]) -> str:
    words = re.sub(r"\s*<[^<>]*>$", "", token["role"])
    return words if words != token["role"] else f"`{words}`"


def _of_liquid(token: re.Match[str]) -> str:
    label = LABEL.search(token["liquid"])
    return _bold(label[1] or label[2] or "") if label else GONE


def _bold(words: str) -> str:
    return f"{GONE}**{words.strip()}**" if words.strip() else GONE


def _of_tag(token: re.Match[str], closed: frozenset[str]) -> str:
    name, attributes = token["tag"], token["attributes"]
    small = name.lower()
    if small == "img" and (alt := _ALT.search(attributes)):
        source = _SRC.search(attributes)
        words = one_line(alt[1] or alt[2] or "").replace("[", "(").replace("]", ")")
        target = (source[1] or source[2] or "") if source else ""
        return f"{GONE}![{words}]({target})" if not set(target) & set("() ") and words else f"{GONE}{words}"
    if small in _HTML and name in (small, name.upper()):
        if small == "br":
            return _BREAK
        if small == "li":
            return GONE if token["slash"] else _ITEM
        return f"{GONE} " if small in _APART and token["slash"] else GONE
    if name not in closed and not (
        token["alone"] and (attributes.strip() or name[0].isupper() or "-" in name)
    ):
        return token[0]
    label = LABEL.search(attributes) if small != "badge" else None
    return _bold(label[1] or label[2] or "") if label else GONE


_ALT = re.compile(r"""\balt\s*=\s*\{?(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)
_SRC = re.compile(r"""\bsrc\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)


def _exponent(tag: str, words: str) -> str:
    """A power or an index as in a page of HTML; the rest of a word such as `1st` goes on in it."""
    if tag == "sub":
        return subscript(words)
    return words if words.isalpha() and len(words) > 1 else superscript(words)


def _is_named(token: re.Match[str], closed: frozenset[str]) -> bool:
    """Whether a tag is one that a sentence tells of: nothing ends it, or nothing in its paragraph."""
    name, text, at = token["tag"], token.string, token.end()
    if token["slash"] or token["alone"] or token["attributes"].strip():
        return False
    if name.lower() in _OPEN_ENDED or name[0].isupper():
        return False
    if name not in closed:
        return True
    if name in _APART or not has_words(text, 0, token.start()):
        return False
    paragraph = text.find("\n\n", at, at + _LONGEST)
    return text.find(f"</{name}", at, paragraph if paragraph >= 0 else at + _LONGEST) < 0


def _of_entity(token: re.Match[str]) -> str:
    sign = unescape(token[0])
    if sign == "\xa0":
        return " "
    if sign in ("\xad", "\u200b"):
        return ""
    return (
        f"\\{sign}"
        if sign in _KEPT_ESCAPED - {"<"}
        or (sign == "<" and token.string[token.end() : token.end() + 1] == "!")
        else sign
    )


def _of_shortcode(token: re.Match[str]) -> str:
    """The target of a reference, the label of a tab or a note."""
    text = token["shortcode"]
    if reference := _REFERENCE.match(text):
        return reference[1]
    if label := _LABELS.search(text):
        return _bold(label[1] or label[2] or "")
    name = text.strip().partition(" ")[0]
    quoted = _QUOTED.search(text) if name in _SHORTCODES else None
    return _bold(quoted[1] or quoted[2] or "") if quoted else GONE


_WORDS: dict[str, Callable[[re.Match[str]], str]] = {
    "code": lambda token: token[0],
    "escaped": lambda token: token[0],
    "entity": _of_entity,
    **dict.fromkeys(("page", "words", "embed", "alias"), _of_page),
    "aside": lambda token: f" ({token['aside']})",
    "role": _of_role,
    "raw": lambda token: token["raw"],
    "linked": _markdown_link,
    "exponent": lambda token: _exponent(token["raised"], token["exponent"]),
    "literal": lambda token: token["literal"][1:-1],
    "shortcode": _of_shortcode,
    "liquid": _of_liquid,
}
"""Name of a token's last group -> what stands for the token, where something does."""
