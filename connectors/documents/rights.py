"""Who may read a document, as its fields say: a level and lists of readers, in every spelling."""

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
"""Characters before the sign of a field; what is longer is a sentence."""
_SIGN = re.compile("[:=|]")
_MARKS = " \t>|*_-+:\"'`\\"
_READERS = re.compile(r"$|[\[{]|[\"']?(?:user|group):")
_CODE = ("```", "~~~")


def right_of(key: object) -> str | None:
    """`security_level` or `acl` for a key that is one of them by its letters; None for any other."""
    letters = filter(str.isalpha, normalize("NFKC", str(key)).casefold())
    return _NAMES.get("".join(letters))


def canonical_rights(values: Mapping[str, Any], *others: Mapping[Any, Any]) -> dict[str, Any]:
    """The values with rights under `security_level` and `acl`, however their keys are spelled.

    Of several levels the highest holds, of several lists of readers each; what is no level stays, and is refused.

    Args:
        values: by key.
        others: mappings whose rights hold beside those of the values; nothing else of them is taken.
    """
    rights: dict[str, list[Any]] = {LEVEL: [], ACL: []}
    for key, value in chain.from_iterable(map(Mapping.items, (values, *others))):
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
    """Layers of readers: a flat list of names is one layer; what is no list is a layer that is open to nobody."""
    if not isinstance(acl, list):
        return [[]]
    return [acl] if acl and all(isinstance(reader, str) for reader in acl) else acl


def stated_rights(lines: Iterable[str]) -> Counter[str]:
    """How often lines of a text state each of the rights as a field, in whatever marks; code is left out.

    A sentence about an ACL or a level is no statement: a level has one word, readers are a list or begin with
    `user:` or `group:`.
    """
    stated: Counter[str] = Counter()
    fence = ""
    for line in lines:
        bare = line.strip()
        if bare.startswith(_CODE):
            fence = "" if fence and bare.startswith(fence) else fence or bare[:3]
        elif not fence and (name := _stated(bare)):
            stated[name] += 1
    return stated


def _stated(line: str) -> str | None:
    key, *rest = _SIGN.split(normalize("NFKC", line[:500]).lstrip(_MARKS), maxsplit=1)
    name = right_of(key) if rest and len(key) <= LONGEST_KEY else None
    if name is None:
        return None
    value = rest[0].strip(f"{_MARKS},;")
    plausible = len(value.split()) <= 1 if name == LEVEL else _READERS.match(rest[0].lstrip(" \t*_|"))
    return name if plausible else None
