"""Rights of a document from its fields: security level and lists of readers, in every spelling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any
from unicodedata import normalize

from pipeline.documents import ACL, LEVEL, LEVELS

_NAMES = {"securitylevel": LEVEL, "acl": ACL}
_RANKS = {level: rank for rank, level in enumerate(LEVELS)}
LONGEST_KEY = 40
"""Most characters of a field's key; a longer one is a sentence."""
_SIGN = re.compile("[:=|]")
_MARKS = " \t>|*_-+:\"'`\\"
_READERS = re.compile(r"$|[\[{]|[\"']?(?:user|group):")
_CODE = ("```", "~~~")


def right_of(key: object) -> str | None:
    """`security_level` or `acl` for a key with the same letters; None for any other."""
    letters = filter(str.isalpha, normalize("NFKC", str(key)).casefold())
    return _NAMES.get("".join(letters))


def canonical_rights(values: Mapping[str, Any], *more: Mapping[Any, Any]) -> dict[str, Any]:
    """The values with rights under the keys `security_level` and `acl`, whatever their spelling.

    Of several levels the highest counts, of several lists of readers all; an unknown level stays, to be refused later.

    Args:
        values: by key.
        more: further mappings, of which only the rights are used.
    """
    rights: dict[str, list[Any]] = {LEVEL: [], ACL: []}
    for key, value in chain.from_iterable(map(Mapping.items, (values, *more))):
        if (name := right_of(key)) and value not in (None, *rights[name]):
            rights[name].append(value)
    canonical = {key: value for key, value in values.items() if right_of(key) is None}
    if levels := rights[LEVEL]:
        canonical[LEVEL] = max(levels, key=lambda level: _RANKS.get(str(level).strip().lower(), len(LEVELS)))
    if acls := rights[ACL]:
        is_no_list = len(acls) == 1 and not isinstance(acls[0], list)
        canonical[ACL] = acls[0] if is_no_list else [*chain.from_iterable(map(reader_layers, acls))]
    return canonical


def reader_layers(acl: Any) -> list[Any]:
    """Layers of readers: a flat list of names is one layer; a value that is no list is one layer without readers."""
    if not isinstance(acl, list):
        return [[]]
    return [acl] if acl and all(isinstance(reader, str) for reader in acl) else acl


def stated_rights(lines: Iterable[str]) -> Counter[str]:
    """Number of lines that state each of the rights as a field, in any notation; code is left out.

    A sentence about an ACL or a level does not count: a level has one word, readers are a list or begin with
    `user:` or `group:`.
    """
    stated: Counter[str] = Counter()
    fence = ""
    for line in lines:
        stripped = line.strip()
        if stripped.startswith(_CODE):
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
        elif not fence and (name := _stated(stripped)):
            stated[name] += 1
    return stated


def _stated(line: str) -> str | None:
    key, *values = _SIGN.split(normalize("NFKC", line[:500]).lstrip(_MARKS), maxsplit=1)
    name = right_of(key) if values and len(key) <= LONGEST_KEY else None
    if name is None:
        return None
    value = values[0].strip(f"{_MARKS},;")
    plausible = len(value.split()) <= 1 if name == LEVEL else _READERS.match(values[0].lstrip(" \t*_|"))
    return name if plausible else None
