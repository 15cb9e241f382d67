"""Decoding of files: by byte order mark, as UTF-8, by the declared encoding, else by detection."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from pipeline.documents.plain_text import composed

if TYPE_CHECKING:
    from charset_normalizer import CharsetMatch

BOMS: tuple[tuple[bytes, str, str], ...] = (
    (codecs.BOM_UTF8, "utf-8", "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le", "utf-32"),  # begins like UTF-16, so it is tested first
    (codecs.BOM_UTF32_BE, "utf-32-be", "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "utf-16"),
)
"""Byte order mark, codec of the bytes after it, name of the encoding."""
CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\f\b\x1b"})
CONTROL_SHARE = 0.1
"""Share of control characters above which a file is binary."""
DECLARED_WITHIN = 4096
"""Bytes at the beginning of a file that are searched for a declared encoding; browsers read 1,024."""
SAMPLE = 65_536
"""Most bytes used to detect an encoding."""

_CODECS: dict[str, tuple[str, str]] = {
    "utf-8": ("utf-8", "utf8 utf-16 utf-16le utf-16be unicode unicode-1-1-utf-8"),
    "windows-1252": ("cp1252", "cp1252 iso-8859-1 iso8859-1 iso88591 latin1 latin-1 l1 ascii us-ascii ansi"),
    "windows-1250": ("cp1250", "cp1250 x-cp1250"),
    "windows-1251": ("cp1251", "cp1251 x-cp1251 win-1251"),
    "windows-1253": ("cp1253", "cp1253 x-cp1253"),
    "windows-1254": ("cp1254", "cp1254 x-cp1254 iso-8859-9 iso8859-9 latin5 l5"),
    "windows-1255": ("cp1255", "cp1255 x-cp1255"),
    "windows-1256": ("cp1256", "cp1256 x-cp1256"),
    "windows-1257": ("cp1257", "cp1257 x-cp1257"),
    "windows-1258": ("cp1258", "cp1258 x-cp1258"),
    "windows-874": ("cp874", "cp874 tis-620 iso-8859-11 dos-874"),
    "ibm866": ("cp866", "cp866 866 csibm866"),
    "iso-8859-2": ("iso8859_2", "iso8859-2 iso88592 latin2 latin-2 l2"),
    "iso-8859-3": ("iso8859_3", "iso8859-3 latin3 l3"),
    "iso-8859-4": ("iso8859_4", "iso8859-4 latin4 l4"),
    "iso-8859-5": ("iso8859_5", "iso8859-5 cyrillic"),
    "iso-8859-6": ("iso8859_6", "iso8859-6 arabic"),
    "iso-8859-7": ("iso8859_7", "iso8859-7 greek greek8"),
    "iso-8859-8": ("iso8859_8", "iso8859-8 iso-8859-8-i hebrew logical visual"),
    "iso-8859-10": ("iso8859_10", "iso8859-10 latin6 l6"),
    "iso-8859-13": ("iso8859_13", "iso8859-13"),
    "iso-8859-14": ("iso8859_14", "iso8859-14"),
    "iso-8859-15": ("iso8859_15", "iso8859-15 latin-9 latin9 l9"),
    "iso-8859-16": ("iso8859_16", "iso8859-16"),
    "koi8-r": ("koi8_r", "koi8 koi koi8r"),
    "koi8-u": ("koi8_u", "koi8-ru"),
    "macintosh": ("mac_roman", "mac x-mac-roman"),
    "x-mac-cyrillic": ("mac_cyrillic", "x-mac-ukrainian"),
    "gbk": ("gb18030", "gb2312 gb-2312 gb-2312-80 chinese csgb2312 x-gbk cp936"),
    "gb18030": ("gb18030", ""),
    "big5": ("big5hkscs", "big5-hkscs cn-big5 csbig5 x-x-big5 cp950"),
    "euc-jp": ("euc_jp", "eucjp x-euc-jp"),
    "iso-2022-jp": ("iso2022_jp_2", "csiso2022jp"),
    "shift_jis": ("cp932", "shift-jis sjis shiftjis x-sjis ms-kanji windows-31j cp932 ms932"),
    "euc-kr": ("cp949", "euckr korean ks-c-5601-1987 ks-c-5601-1989 ksc5601 ksc-5601 windows-949 cp949 uhc"),
}
"""Encoding -> Python's codec, and its other labels by the Encoding Standard and by old editors; `_` is a `-` here."""
_NAMES = {codec: name for name, (codec, _) in _CODECS.items()}
_LABELS = {label: name for name, (_, labels) in _CODECS.items() for label in (name, *labels.split())}
_META = re.compile(rb"<meta\s[^>]{0,1000}>", re.IGNORECASE)
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
_CONTENT_TYPE = re.compile(rb"http-equiv\s*=\s*[\"']?\s*content-type", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\s[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{2,40})")
_COOKIE = re.compile(
    rb"\A(?:[^\n]{0,400}\n)?[^\n]{0,400}?coding[:=]\s*([\w.-]{2,40})|^:encoding:[ \t]+([\w.-]{2,40})",
    re.MULTILINE,
)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_RIVALS = [
    "cp1252", "cp1250", "iso8859_2", "cp1251", "koi8_r", "gb18030", "big5hkscs", "cp932", "euc_jp", "cp949", "cp1253",
    "iso8859_7", "cp1254", "cp1255", "cp1256", "cp1257", "iso8859_5", "iso8859_15", "cp866", "mac_roman",
    "mac_cyrillic", "cp437", "cp850",
]  # fmt: skip
"""Codecs to choose from; some only so that their texts are not detected as another one."""
_MULTIBYTE = frozenset({"gb18030", "big5hkscs", "cp932", "euc_jp", "cp949"})
_FEWEST_LETTERS = 4
"""Fewest letters of several bytes each for a sure reading; fewer may be decodable by chance."""
_CLOSE = 0.02
"""Difference of likelihood below which two readings are both possible."""
_HIGH_CHAOS = 0.1
_WESTERN = frozenset("éèêëàâäáãåæçíìîïñóòôöõøœúùûüÿßÉÈÊÀÂÄÁÃÅÆÇÍÎÑÓÔÖÕØŒÚÛÜ")
_ODD = re.compile(
    r"[^\W\d_][\u201a\u201e\u2039\u02c7\xa4\xa1\xbf\xab\x80-\x9f]|[\u2020\u2021\u20ac](?=[^\W\d_])"
    r"|[^\W\d_][\xa7\xb6\xb9\xb3\xa9\xae\xb1\u2020\u2021\u2030](?=[^\W\d_])"
)
"""Signs next to letters in a way that no language has: a sure mark of a wrong codec."""
_SURE = frozenset("éëàáäâçíîïóôöúüßåÉÀÁÄÇÖÜÅ")
"""Western European letters whose bytes are no usual letters in Central European codecs."""
_WORD = re.compile(r"[^\W\d_]+")
_FOREIGN = re.compile(r"[^\W\d_\x00-\x7f]")


class Unreadable(Exception):
    """The bytes are no text; the message says why. Never leaves the connectors."""


def decode(data: bytes) -> tuple[str, str]:
    """Text and encoding of a file's bytes; all line ends are line feeds.

    Raises:
        Unreadable: they are binary, or the encoding is not sure; the message says where or why.
    """
    for bom, codec, name in BOMS:
        if data.startswith(bom):
            try:
                text = data[len(bom) :].decode(codec)
            except UnicodeDecodeError as error:
                at = len(bom) + error.start
                raise Unreadable(f"is not valid {name} at byte {at}; save it as UTF-8") from None
            _refuse_binary(text.encode())
            return _plain_lines(text), name
    _refuse_binary(data)
    text, name = _without_mark(data)
    return _plain_lines(text), name


def _without_mark(data: bytes) -> tuple[str, str]:
    if b"\x1b$" in data and data.isascii():  # Japanese in seven bits, which is valid UTF-8
        with suppress(UnicodeDecodeError):
            return data.decode("iso2022_jp_2"), "iso-2022-jp"
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError as error:
        position = error.start
    for name in _declared(data[:DECLARED_WITHIN]):
        with suppress(UnicodeDecodeError):
            return data.decode(_CODECS[name][0]), name
    # Any byte is a letter of some old encoding; control characters show that this is not one of them.
    if data.translate(None, CONTROLS) != data:
        raise Unreadable(f"is not valid UTF-8 at byte {position}; save it as UTF-8")
    return _detected(data, position)


def _declared(head: bytes) -> Iterator[str]:
    """Encodings that a file declares: as XML or HTML, or in an editor's `coding:` comment."""
    labels: list[bytes] = []
    if head.lstrip().startswith(b"<"):
        labels += (declaration[1] for declaration in [_XML.match(head)] if declaration)
        for tag in _META.findall(_COMMENT.sub(b"", head)):
            if _CONTENT_TYPE.search(tag) or b"content" not in tag.lower():
                labels += _CHARSET.findall(tag)
    labels += (coding or asciidoc for coding, asciidoc in _COOKIE.findall(head))
    for label in labels:
        if name := _LABELS.get(label.decode("ascii", "replace").lower().replace("_", "-")):
            yield name


def _detected(data: bytes, position: int) -> tuple[str, str]:
    """Text and encoding, detected by the letters.

    Raises:
        Unreadable: several encodings are possible, or none.
    """
    from charset_normalizer import from_bytes

    lines = b"\n".join(line for line in data.splitlines() if not line.isascii())
    matches = from_bytes(lines[:SAMPLE], cp_isolation=_RIVALS, enable_fallback=False)
    plausible = [reading for reading in matches if not _ODD.search(str(reading))]
    likely = [reading for reading in plausible if reading.chaos <= matches[0].chaos + _CLOSE]
    most = max(map(attrgetter("coherence"), likely), default=0.0)
    likeliest = [reading for reading in likely if reading.coherence >= most - _CLOSE]
    codec = ""
    if any(_is_western(reading, most) for reading in plausible if "cp1252" in reading.could_be_from_charset):
        codec = "cp1252"
    elif len(likeliest) == 1 and _is_sure(likeliest[0]):
        codec = likeliest[0].encoding
    with suppress(UnicodeDecodeError, KeyError):
        name = _NAMES[codec]
        return data.decode(codec), name
    raise Unreadable(
        f"is not valid UTF-8 at byte {position}, and its encoding cannot be told for sure; save it as UTF-8"
    )


def _is_sure(reading: CharsetMatch) -> bool:
    """Whether there is evidence for this encoding, not merely none against it."""
    if reading.encoding not in _MULTIBYTE:
        return reading.coherence > 0
    return sum(map(str.isalpha, _FOREIGN.findall(str(reading)))) >= _FEWEST_LETTERS


def _is_western(reading: CharsetMatch, most: float) -> bool:
    """Whether the words are ASCII with a few Western European letters, as in most files of old encodings.

    A text too short for its language to be detected may only have letters of `_SURE`.
    `most` is the coherence of the likeliest reading.
    """
    text, letters = str(reading), _WESTERN if reading.coherence > 0 else _SURE
    if reading.chaos >= _HIGH_CHAOS or reading.coherence < most - 3 * _CLOSE:
        return False
    for word in _WORD.findall(text):
        capital = not word.isupper() and any(map(str.isupper, _FOREIGN.findall(word, 1)))
        foreign = _FOREIGN.findall(word)
        if capital or not letters.issuperset(foreign) or 2 * len(foreign) > len(word) + 1:
            return False
    return True


def _refuse_binary(data: bytes) -> None:
    at = data.find(b"\0")
    if at >= 0:
        raise Unreadable(f"is a binary file: NUL character at byte {at}; exclude it, or save it as UTF-8")
    controls = len(data) - len(data.translate(None, CONTROLS))
    if controls > CONTROL_SHARE * len(data):
        raise Unreadable(
            f"is a binary file: {controls} of {len(data)} bytes are control characters; exclude it"
        )


def _plain_lines(text: str) -> str:
    return composed(text.replace("\r\n", "\n").replace("\r", "\n"))
