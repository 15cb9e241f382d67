"""PBIs seen in many files and runs, brought down to one each: the newest."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from connectors.contents import FileText
from connectors.json_values import parse_json
from connectors.paging import Entry, failed, skipped
from connectors.pbi_record import PbiRecord, pbi_record
from connectors.pbi_shapes import pbi_items, run_facts, top_level
from pipeline.errors import DocumentRejected

SETTLED_SECONDS = 3600
"""A file that is no JSON for this long is not in the middle of being written: it holds no PBIs."""

NaturalKey = tuple[tuple[bool, int, str], ...]
Rank = tuple[NaturalKey, bool, int, float, str, int, int]
"""Run, final output before steps, step number, and as last resort file time; then place in the file."""
_STEP = re.compile(r"step[-_](\d{1,9})")
_DIGITS = re.compile(r"(\d+)")
_DATED_RUN = re.compile(r"run[-_]\d")


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The newest state of a PBI with the file it stands in."""

    rank: Rank
    record: PbiRecord
    file: FileText


class Gathering:
    """What has been seen; holds each PBI's newest text and small facts of the other sightings."""

    def __init__(self) -> None:
        self.problems: list[Entry] = []
        self.complete = True
        self._winners: dict[str, Winner] = {}
        self._runs: dict[str, dict[str, tuple[Rank, str]]] = {}
        self._scores: dict[str, tuple[Rank, float]] = {}

    def parsed(self, file: FileText) -> Iterator[Any]:
        """The one value of a JSON file, or none and a problem."""
        try:
            yield parse_json(file.text, file.external_id)
        except DocumentRejected as error:
            problem = failed(file.external_id, str(error), file.url)
            self.unknown(problem, settled=is_settled(file.modified))

    def take(self, file: FileText, data: Any) -> None:
        """Takes the parsed content of a file in."""
        items = pbi_items(data)
        if items is None:
            reason = f"{file.external_id} has no PBIs; it holds {top_level(data)}"
            self.problems.append(skipped(file.external_id, reason, file.url))
            return
        run = run_facts(data)
        for item in items:
            record = pbi_record(item, run)
            if record is None:
                name = f"{file.external_id}#{item.index}"
                reason = (
                    f"{file.external_id}: PBI number {item.index + 1} has neither id nor title; give it an id"
                )
                self.problems.append(failed(name, reason, file.url))
            else:
                self._see(record, file, (*_file_rank(file), item.stage, item.index))

    def unknown(self, problem: Entry, *, settled: bool) -> None:
        """A file that may hold PBIs and cannot be read: what is not seen may be there all the same.

        `settled` if it has been without PBIs for so long that nothing can be hoped for.
        """
        self.problems.append(problem)
        self.complete = self.complete and settled

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all PBIs seen."""
        return frozenset(self._winners)

    def winner(self, pbi_id: str) -> Winner:
        """The newest state of a PBI."""
        return self._winners[pbi_id]

    def quality(self, pbi_id: str) -> float | None:
        """The newest state's score; a file without scores leaves the one of an earlier step."""
        seen = self._scores.get(pbi_id)
        return seen[1] if seen else None

    def runs(self, pbi_id: str) -> list[str]:
        """The runs it was seen in, oldest first."""
        return sorted((name for name in self._runs[pbi_id] if name), key=natural_key)

    def version(self, pbi_id: str) -> int:
        """How many different contents the runs gave it."""
        return len({content for _, content in self._runs[pbi_id].values()})

    def _see(self, record: PbiRecord, file: FileText, rank: Rank) -> None:
        current = self._winners.get(record.id)
        if current is None or rank > current.rank:
            self._winners[record.id] = Winner(rank=rank, record=record, file=file)
        runs = self._runs.setdefault(record.id, {})
        run = run_name(file.external_id)
        if run not in runs or rank > runs[run][0]:
            runs[run] = (rank, record.content_key)
        if record.quality is not None:
            score = self._scores.get(record.id)
            if score is None or rank > score[0]:
                self._scores[record.id] = (rank, record.quality)


def is_settled(modified: datetime | None) -> bool:
    """True if a file has not been written for a while, so that what it holds now is what it is meant to hold."""
    return modified is not None and time.time() - modified.timestamp() > SETTLED_SECONDS


def run_name(path: str) -> str:
    """The folder `run-...` a file lies in; empty if there is none."""
    folders = PurePosixPath(path).parts[:-1]
    return next((name for name in reversed(folders) if name.startswith(("run-", "run_"))), "")


def natural_key(text: str) -> NaturalKey:
    """Sorts `run-10` behind `run-9`."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(text)
    )


def _file_rank(file: FileText) -> tuple[NaturalKey, bool, int, float, str]:
    name = PurePosixPath(file.external_id).name
    run = run_name(file.external_id)
    step = _STEP.match(name)
    return (
        natural_key(run) if _DATED_RUN.match(run) else (),
        name.startswith(("final-output", "final_output")),
        int(step[1]) if step else 0,
        file.modified.timestamp() if file.modified else 0.0,
        file.external_id,
    )
