"""Texts for people and for comparison: characters, keys, plurals, words of headings, titles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import unescape
from typing import Any, NoReturn
from unicodedata import normalize

_BREAKS = re.compile("[\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]")
"""Characters that end or restart a line on some screens."""
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that control a terminal, are invisible or change the writing direction; without line ends and tabs."""


def without_controls(text: str) -> str:
    """The text without control characters, safe for terminals and prompts; unusual line ends become blanks."""
    return CONTROLS.sub("", _BREAKS.sub(" ", text))


_INVISIBLE = re.compile("[\u00ad\u2060\ufeff]|\u200b(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])")
"""Soft hyphens and zero-width blanks, except U+200B in scripts that separate words by it."""


def composed(text: str) -> str:
    """The text in Unicode form NFC without invisible characters, in which documents and queries are compared."""
    return text if text.isascii() else normalize("NFC", _INVISIBLE.sub("", text))


def plain_key(key: Any) -> str:
    """A key in lower case without separators, so that snake, kebab and camel case are equal."""
    return str(key).replace("_", "").replace("-", "").replace(" ", "").lower()


def plain_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    """The mapping with keys of `plain_key`; of two spellings of a key, the first with a value counts."""
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if plain.get(name := plain_key(key)) in (None, "", [], {}):
            plain[name] = item
    return plain


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 page`, `2 pages`; `many` is an irregular plural."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def first_names(names: Sequence[object], most: int) -> str:
    """The first `most` names, separated by commas, and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


_JSON_WORDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def json_type_name(value: Any) -> str:
    """The type of a JSON value for messages, such as "a number"."""
    return _JSON_WORDS.get(type(value), type(value).__name__)


MAX_TITLE = 300
_TARGET = (
    r"""\([^()\s]{0,1000}(?:\([^()\s]{0,300}\)[^()\s]{0,300})?(?:\s{1,5}["'][^"'()]{0,300}["'])?\)"""
    r"|\[[^\[\]]{0,100}\]"
)
_IMAGE = re.compile(rf"!\[([^\[\]]{{0,300}})\](?:{_TARGET})")
LINK = re.compile(rf"\[([^\[\]]{{0,300}})\](?:{_TARGET})")
"""A Markdown link; group 1 is its text."""
LINK_OR_BRACKETS = re.compile(rf"!?{LINK.pattern}?")
_NAMELESS = frozenset({"", "logo", "banner", "header", "icon", "image", "img", "cover", "screenshot"})
"""Alternative texts that name the kind of a picture instead of its content."""
_MARKS = re.compile(
    r"`(?P<code>[^`]+)`|\\(?P<sign>[!-/:-@\[-`{-~])|\*{2,3}|_{2,3}|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|`"
    r"|(?<![\w:]):(?:\w[\w+-]{1,50}|[+-]1):(?![\w:])"
)


def plain_words(text: str, *, link: re.Pattern[str] = LINK) -> str:
    """One line of Markdown without marks, pictures and emoji codes, at most MAX_TITLE characters.

    The text of a picture is used for a line without other words.
    """
    words = _without_marks(_IMAGE.sub(" ", text), link) if "![" in text else ""
    if words:
        return words
    without_images = _IMAGE.sub(
        lambda image: "" if image[1].strip().lower() in _NAMELESS else f" {image[1]} ", text
    )
    return _without_marks(without_images, link)


def _without_marks(text: str, link: re.Pattern[str]) -> str:
    unmarked = _MARKS.sub(r"\g<code>\g<sign>", link.sub(r"\1", text))
    return " ".join(unescape(unmarked).split())[:MAX_TITLE].rstrip()


NEARLY_SAME = 0.85
_STORY = re.compile(r"^as an? [^,]{1,100}?,? i (?:want|need|would like) (?:to )?")


def plain_title(title: str) -> str:
    """The title in lower case with single blanks."""
    return " ".join(title.casefold().split())


@lru_cache(maxsize=10_000)
def _title_words(title: str) -> frozenset[str]:
    """Prefixes of the title's words, without the phrase "As a ..., I want to"."""
    return frozenset(re.findall(r"\b\w{1,5}", _STORY.sub("", plain_title(title))))


def is_same_title(one: str, other: str) -> bool:
    """True for titles of the same backlog item, slightly reworded.

    They have the same numbers, and a share NEARLY_SAME of their letters is in common words.
    """
    words, other_words = _title_words(one), _title_words(other)
    shared, total = 2 * sum(map(len, words & other_words)), sum(map(len, words)) + sum(map(len, other_words))
    return one == other or (
        shared >= NEARLY_SAME * total > 0 and not any(map(str.isdecimal, words ^ other_words))
    )


def json_scalar(text: str) -> object:
    """The JSON scalar that `text` is; itself if it is none, or a number that JSON writes otherwise (1.10, 1e5)."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    is_plain = isinstance(value, str) or (not isinstance(value, dict | list) and json.dumps(value) == text)
    return value if is_plain else text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
