"""Markup within lines of Markdown: tags, references and codes, replaced by their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape

from connectors.markup.inline import subscript, superscript

MARKER, _BREAK, _ITEM = "\ufdd0", "\ufdd1", "\ufdd2"
"""Markers of removed markup, a line break and a list item; no text has these characters."""
_MARKERS = re.compile(f"[{MARKER}{_BREAK}{_ITEM}]")

CODE_SPAN = (
    r"(?<!``)(?P<more>`*)(?!`)"
    r"(?:[^`\n]++|\n(?![ \t]*(?:\n|$|[-*+][ \t]|\d{1,9}[.)][ \t]|[>#|]|```|~~~))"
    r"|(?!`(?P=more)(?!`))`++)++`(?P=more)(?!`)"
)
"""A span of code after its first backtick, closed in its paragraph by as many backticks as opened it."""
_VALUE = r"""(?:"[^"<]{0,1000}"|'[^'<]{0,1000}'|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}|[^\s"'=<>`{}]+)"""
_ATTRIBUTE = rf"(?:[\w:@.#*()\[\]-]+(?:[ \t]*=[ \t\n]*{_VALUE})?|\{{\.\.\.[^{{}}]*\}})"
_TOKEN = re.compile(
    # The first sign alone, for speed: most characters are none of these, and the rest of the pattern is skipped.
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
"""Elements whose text ends the sentence before them."""
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
"""Shortcodes with a quoted label."""
_KEPT_ESCAPED = frozenset("#|`<*_[]")
_OPEN_ENDED = frozenset(
    {
        "body", "br", "col", "colgroup", "dd", "dt", "head", "hr", "html", "li", "option", "p", "rp", "rt", "tbody",
        "td", "tfoot", "th", "thead", "tr", "wbr",
    }
)  # fmt: skip
"""Elements without a required end tag."""
_NO_WORDS = re.compile(r"(?:[\s>|*_#+-]|\d{1,9}[.)]|<[^<>]*>)*+")
_NEAR, _LONGEST = 200, 2000
"""Characters searched for words before a mark, and for the end of an element within a paragraph."""


def has_words(text: str, begin: int, end: int) -> bool:
    """Whether words precede `end` on its line, so that the mark there may be mentioned rather than used."""
    return not _NO_WORDS.fullmatch(text, max(begin, text.rfind("\n", 0, end) + 1, end - _NEAR), end)


def one_line(text: str) -> str:
    """The text on one line, with single blanks."""
    return " ".join(text.split())


def text_lines(lines: list[str], closed: frozenset[str], notes: frozenset[str]) -> Iterator[str]:
    """Lines without their markup; lines of markup only become one blank line."""
    text = "\n".join(lines)
    replaced = _TOKEN.sub(_replacement(closed, notes), text)
    in_html, indent = False, -1
    was_blank = was_made_blank = False
    for raw in replaced.split("\n"):
        line = raw
        stripped = raw.lstrip()
        if stripped[:1] in (MARKER, _ITEM, _BREAK):
            in_html, indent, line = True, -1, stripped
        elif not stripped:
            in_html = False
        elif in_html:
            width = len(raw) - len(stripped)
            indent = width if indent < 0 else indent
            line = raw[min(width, indent) :]
        marked = bool(_MARKERS.search(line))
        line = _resolved(line) if marked else line
        if not line.strip() and was_blank and (marked or was_made_blank):
            continue
        was_blank, was_made_blank = not line.strip(), marked and not line.strip()
        yield line


def _resolved(line: str) -> str:
    """The line with its markers replaced."""
    core = line.strip(f"{MARKER} \t")
    if re.fullmatch(
        r"[#>]*", core.translate({ord(MARKER): "", ord(_BREAK): "", ord(_ITEM): ""}).replace(" ", "")
    ):
        return ""
    one_line = core.startswith("#") or "|" in core
    at_end = "" if line.endswith(" ") and not line.strip().endswith(MARKER) else " "
    first = f"{MARKER}{_BREAK}{_ITEM} \t"
    if line[0] in first[:3]:
        begins_item = _ITEM in line[: len(line) - len(line.lstrip(first))]
        line = ("- " if begins_item and not one_line else "") + line.lstrip(first)
    line = line.rstrip(first) if at_end else line
    line = re.sub(
        rf"[ ]*{_BREAK}[ {MARKER}{_BREAK}]*(?=(.))",
        ", " if one_line and "|" in core else " " if one_line else "\n",
        line,
    )
    line = re.sub(rf"[ ]*{_ITEM}[ {MARKER}]*", ", " if one_line else "\n- ", line)
    line = re.sub(rf"(?<=\s){MARKER}[ ]?|{MARKER}", "", line)
    return re.sub(r"(?<=\|) *, ", " ", line) if one_line else line


def _markdown_link(link: re.Match[str]) -> str:
    """A link of HTML as Markdown."""
    target, words = link["href"].strip("\"'"), one_line(unescape(link["linked"]))
    return f"[{words}]({target})" if words and not set(target) & set("() ") else words


def _replacement(closed: frozenset[str], notes: frozenset[str]) -> Callable[[re.Match[str]], str]:
    """Function that replaces a token by its words, or by itself if it is no markup.

    `closed` are elements with an end tag in the text, `notes` the footnotes defined in it.
    """

    def words(token: re.Match[str]) -> str:
        kind = token.lastgroup or ""
        if kind == "alone":
            return token[0] if _is_named(token, closed) else _tag_words(token, closed)
        if kind == "note" and token["note"] not in notes:
            return token[0]
        return _WORDS[kind](token) if kind in _WORDS else MARKER

    return words


def _page_words(token: re.Match[str]) -> str:
    page, words = token["page"] or token["embed"], token["words"] or token["alias"] or ""
    if words.strip() and not re.search(r"[\s()]", page):
        return f"[{words.strip()}]({page})"
    return words.strip() or page.replace("#^", " ").replace("#", " ").strip()


def _role_words(token: re.Match[str]) -> str:
    words = re.sub(r"\s*<[^<>]*>$", "", token["role"])
    return words if words != token["role"] else f"`{words}`"


def _liquid_words(token: re.Match[str]) -> str:
    label = LABEL.search(token["liquid"])
    return _bold(label[1] or label[2] or "") if label else MARKER


def _bold(words: str) -> str:
    return f"{MARKER}**{words.strip()}**" if words.strip() else MARKER


def _tag_words(token: re.Match[str], closed: frozenset[str]) -> str:
    name, attributes = token["tag"], token["attributes"]
    small = name.lower()
    if small == "img" and (alt := _ALT.search(attributes)):
        source = _SRC.search(attributes)
        words = one_line(alt[1] or alt[2] or "").replace("[", "(").replace("]", ")")
        target = (source[1] or source[2] or "") if source else ""
        return (
            f"{MARKER}![{words}]({target})" if not set(target) & set("() ") and words else f"{MARKER}{words}"
        )
    if small in _HTML and name in (small, name.upper()):
        if small == "br":
            return _BREAK
        if small == "li":
            return MARKER if token["slash"] else _ITEM
        return f"{MARKER} " if small in _APART and token["slash"] else MARKER
    if name not in closed and not (
        token["alone"] and (attributes.strip() or name[0].isupper() or "-" in name)
    ):
        return token[0]
    label = LABEL.search(attributes) if small != "badge" else None
    return _bold(label[1] or label[2] or "") if label else MARKER


_ALT = re.compile(r"""\balt\s*=\s*\{?(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)
_SRC = re.compile(r"""\bsrc\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)


def _exponent(tag: str, words: str) -> str:
    """A power or an index; letters, as in `1st`, are joined to the word."""
    if tag == "sub":
        return subscript(words)
    return words if words.isalpha() and len(words) > 1 else superscript(words)


def _is_named(token: re.Match[str], closed: frozenset[str]) -> bool:
    """Whether a tag is mentioned rather than used: it has no end tag, or none in its paragraph."""
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


def _entity_sign(token: re.Match[str]) -> str:
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


def _shortcode_words(token: re.Match[str]) -> str:
    """Target of a reference, or label of a tab or a note."""
    text = token["shortcode"]
    if reference := _REFERENCE.match(text):
        return reference[1]
    if label := _LABELS.search(text):
        return _bold(label[1] or label[2] or "")
    name = text.strip().partition(" ")[0]
    quoted = _QUOTED.search(text) if name in _SHORTCODES else None
    return _bold(quoted[1] or quoted[2] or "") if quoted else MARKER


_WORDS: dict[str, Callable[[re.Match[str]], str]] = {
    "code": lambda token: token[0],
    "escaped": lambda token: token[0],
    "entity": _entity_sign,
    **dict.fromkeys(("page", "words", "embed", "alias"), _page_words),
    "aside": lambda token: f" ({token['aside']})",
    "role": _role_words,
    "raw": lambda token: token["raw"],
    "linked": _markdown_link,
    "exponent": lambda token: _exponent(token["raised"], token["exponent"]),
    "literal": lambda token: token["literal"][1:-1],
    "shortcode": _shortcode_words,
    "liquid": _liquid_words,
}
"""Name of a token's last group -> function that returns its words; other tokens are removed."""
