"""Text written so that Markdown reads it as the text it is, with as few escapes as that needs."""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"[`\\<&\]~*_\u200b\ufeff\u00ad]")
_INVISIBLE = re.compile("[\u200b\ufeff\u00ad]")
_TYPED_CODE = re.compile(r"(`[^`\n]++`)")
_MEANT_AS_TEXT = re.compile(
    r"`|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|&(?=#?\w{1,31};)|\](?=\()|~(?=~)|(?<=~)~"
)
_STARS = re.compile(r"(?<!\*)(?:(?<=\S)\*++|\*++(?=\S))")
_OPENING_UNDERSCORES = re.compile(r"(?<![^\W_])(?<!_)_++(?=\S)")
_CLOSING_UNDERSCORES = re.compile(r"(?<=[^\s_])_++(?![^\W_])")
_EDGE_UNDERSCORES = re.compile(f"{_OPENING_UNDERSCORES.pattern}|{_CLOSING_UNDERSCORES.pattern}")
_BLOCK_START = re.compile(
    r"#{1,6}(?=\s|$)|[-+*](?=\s|$)|>|=+\s*$|-+\s*$|(?:[*_-]\s*){3,}$|[-:|\s]*-[-:|\s]*$|\[[^\]]{1,200}\]:"
)
_NUMBERED = re.compile(r"(\d{1,9})(?=[.)](?:\s|$))")
_BACKTICKS = re.compile("`+")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS_AND_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b\ufeff]+")
_RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob", "about"})
_IN_URL = {"(": "%28", ")": "%29", "<": "%3C", ">": "%3E", '"': "%22", "\\": "%5C", "`": "%60"}
_URL_SPECIAL = re.compile(r'[()<>"\\`]')


def escape_text(text: str, *, in_emphasis: bool = False, in_label: bool = False) -> str:
    """A piece of running text; code somebody typed between backticks stays code."""
    if in_label and ("[" in text or "]" in text):
        pieces = re.split(r"([\[\]])", text)
        return "".join(
            f"\\{piece}" if piece in ("[", "]") else escape_text(piece, in_emphasis=in_emphasis)
            for piece in pieces
        )
    if not _SUSPECT.search(text):
        return text
    if "`" not in text:
        return _escape_plain(text, in_emphasis)
    pieces = _TYPED_CODE.split(text)
    pieces[::2] = [_escape_plain(piece, in_emphasis) for piece in pieces[::2]]
    return "".join(pieces)


def _escape_plain(text: str, in_emphasis: bool) -> str:
    text = _MEANT_AS_TEXT.sub(r"\\\g<0>", _INVISIBLE.sub("", text))
    stars = text.count("*")
    if stars and in_emphasis:
        text = text.replace("*", "\\*")
    elif stars > 1:
        text = _STARS.sub(_each_escaped, text)
    if text.count("_") > 1 and _OPENING_UNDERSCORES.search(text) and _CLOSING_UNDERSCORES.search(text):
        text = _EDGE_UNDERSCORES.sub(_each_escaped, text)
    return text


def _each_escaped(run: re.Match[str]) -> str:
    return "".join(f"\\{mark}" for mark in run[0])


def paragraph_lines(text: str) -> list[str]:
    """The lines of a paragraph, without blank ones, each readable as nothing but a line of a paragraph."""
    lines = (line.strip() for line in text.split("\n"))
    return [_escape_start(line) for line in lines if line]


def _escape_start(line: str) -> str:
    if line[0] in "#-+*>=|:_[" and _BLOCK_START.match(line):
        return f"\\{line}"
    if line[0].isdigit() and (number := _NUMBERED.match(line)):
        return f"{number[1]}\\{line[number.end() :]}"
    return line


def escape_heading(text: str) -> str:
    """One line; a last word of `#` is not taken for the heading's end mark."""
    line = " ".join(text.split())
    return re.sub(r"(?<= )(#+)$", r"\\\1", line)


def code_span(code: str) -> str:
    """Code within a line, on one line."""
    text = " ".join(code.split())
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1 if "`" in text else 1)
    blank = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def code_fence(code: str) -> str:
    """A fence that no run of backticks in `code` closes."""
    return "`" * max(3, _longest_run(code) + 1 if "```" in code else 3)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def safe_url(url: str) -> str | None:
    """The address as it may stand in a link; None for an empty one, a mere `#place`, or one that runs code."""
    text = url.strip()
    compact = _BLANKS_AND_CONTROLS.sub("", text[:200])
    scheme = _SCHEME.match(compact)
    if not text or text.startswith("#") or (scheme and scheme[1].lower() in _RUNS_CODE):
        return None
    text = "%20".join(text.split())
    return _URL_SPECIAL.sub(lambda match: _IN_URL[match[0]], text)
