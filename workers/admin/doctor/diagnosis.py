"""What a check of the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A finding of `larder doctor`; its fields are those of the document."""

    check: str = ""
    status: Literal["ok", "warning", "error"]
    """Only an error makes the doctor fail."""
    detail: str
    fix: str = ""
    """What to do; empty if nothing is wrong."""
    repaired: bool = False


def fine(detail: str) -> Diagnosis:
    """Nothing is wrong."""
    return Diagnosis(status="ok", detail=detail)


def warning(detail: str, fix: str) -> Diagnosis:
    """Works, and somebody should know."""
    return Diagnosis(status="warning", detail=detail, fix=fix)


def error(detail: str, fix: str) -> Diagnosis:
    """Does not work, or data are wrong."""
    return Diagnosis(status="error", detail=detail, fix=fix)
