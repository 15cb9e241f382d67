"""Values as PostgreSQL can hold them: one odd character must not stop a whole page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def clean(value: Any) -> Any:
    """`value` without NUL characters, lone surrogates and numbers that JSON lacks, at any depth of JSON."""
    if isinstance(value, str):
        return value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {clean(str(k)): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
