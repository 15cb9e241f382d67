"""The words of the doctor: a check, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pipeline.documents import Json
from workers.runtime import Runtime


class Health(StrEnum):
    """How bad a finding is; only an error makes the doctor fail."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What one look found."""

    health: Health
    detail: str
    fix: str = ""
    """What to do; empty if nothing is wrong."""


def fine(detail: str) -> Diagnosis:
    """Nothing is wrong."""
    return Diagnosis(health=Health.OK, detail=detail)


def warning(detail: str, fix: str) -> Diagnosis:
    """Works, and somebody should know."""
    return Diagnosis(health=Health.WARNING, detail=detail, fix=fix)


def error(detail: str, fix: str) -> Diagnosis:
    """Does not work, or data are wrong."""
    return Diagnosis(health=Health.ERROR, detail=detail, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing the doctor looks at."""

    name: str
    look: Callable[[Runtime], Diagnosis]
    """Raises errors of ours only; each becomes a finding."""
    repair: Callable[[Runtime], None] | None = None
    """Repeatable, and harmless where nothing is wrong."""
    needs_database: bool = True
    gate: bool = False
    """If it finds an error, no check that needs the database makes sense any more."""
    strict: bool = False
    """A gate that a warning closes, too."""

    def closes(self, found: Diagnosis) -> bool:
        """True if the other questions to the database are to be left out."""
        return self.gate and (found.health is Health.ERROR or (self.strict and found.health is not Health.OK))


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A line of the doctor's report."""

    check: str
    diagnosis: Diagnosis
    repaired: bool = False

    def to_json(self) -> Json:
        """`{"check", "status", "detail", "fix", "repaired"}`."""
        return {
            "check": self.check,
            "status": self.diagnosis.health.value,
            "detail": self.diagnosis.detail,
            "fix": self.diagnosis.fix,
            "repaired": self.repaired,
        }
