"""PBIs seen in many files and runs, brought down to one each: the newest."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from connectors.documents.json_values import parse_json
from connectors.documents.times import parse_time
from connectors.files.contents import FileText
from connectors.files.paging import Entry, failed, skipped
from connectors.pbi.record import PbiRecord, pbi_record
from connectors.pbi.shapes import pbi_items, run_facts, top_level
from pipeline.errors import DocumentRejected

SETTLED_SECONDS = 3600
"""A file that is no JSON for this long is not in the middle of being written: it holds no PBIs."""

NaturalKey = tuple[tuple[bool, int, str], ...]
Rank = tuple[NaturalKey, int, int, float, float, str, int, int]
"""Run, final outputs before steps, step, the PBI's own last change, the file's time; then place in the file."""
_STEP = re.compile(r"step[-_]?(\d{1,9})", re.IGNORECASE)
_FINAL = (("final-output", "final_output", "pbi-", "pbi_"), ("summary",))
"""How files are called that are written behind all steps, the surest first."""
PERCENT = 100
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
        self._bare: dict[str, tuple[Rank, Mapping[str, Any]]] = {}
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
                changed = parse_time(record.updated)
                own = changed.timestamp() if changed else 0.0
                first, last = _file_rank(file, run)
                self._see(record, file, (*first, own, *last, item.stage, item.index))

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
        """The newest state of a PBI; where that is a title with facts alone, the newest text with these facts."""
        winner = self._winners[pbi_id]
        rank, facts = self._bare.get(pbi_id, (winner.rank, {}))
        if rank <= winner.rank:
            return winner
        return replace(winner, record=replace(winner.record, facts={**winner.record.facts, **facts}))

    def quality(self, pbi_id: str) -> dict[str, float]:
        """The newest score; a file without scores leaves the one of an earlier step.

        Steps write percents, PBIs shares, so that what is above 1 is divided by 100 and kept as `quality_score_given`.
        """
        score = self._scores.get(pbi_id, (None, None))[1]
        if score is None or score <= 1:
            return {} if score is None else {"quality_score": score}
        return {"quality_score": round(score / PERCENT, 4), "quality_score_given": score}

    def runs(self, pbi_id: str) -> list[str]:
        """The runs it was seen in, oldest first."""
        return sorted((name for name in self._runs[pbi_id] if name), key=natural_key)

    def version(self, pbi_id: str) -> int:
        """How many different contents the runs gave it; a title alone is none."""
        return len({content for _, content in self._runs[pbi_id].values() if content}) or 1

    def _see(self, record: PbiRecord, file: FileText, rank: Rank) -> None:
        current = self._winners.get(record.id)
        if current is None or (not record.bare, rank) > (not current.record.bare, current.rank):
            self._winners[record.id] = Winner(rank=rank, record=record, file=file)
        if record.bare and record.facts and rank > self._bare.get(record.id, ((), {}))[0]:
            self._bare[record.id] = (rank, record.facts)
        self._see_run(record, file, rank)
        self._see_score(record, rank)

    def _see_run(self, record: PbiRecord, file: FileText, rank: Rank) -> None:
        runs = self._runs.setdefault(record.id, {})
        run, content = run_name(file.external_id), "" if record.bare else record.content_key
        if run not in runs or (content != "", rank) > (runs[run][1] != "", runs[run][0]):
            runs[run] = (rank, content)

    def _see_score(self, record: PbiRecord, rank: Rank) -> None:
        if record.score is not None:
            score = self._scores.get(record.id)
            if score is None or rank > score[0]:
                self._scores[record.id] = (rank, record.score)


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


def _file_rank(
    file: FileText, run: Mapping[str, Any]
) -> tuple[tuple[NaturalKey, int, int], tuple[float, str]]:
    """What counts before the time of a PBI's own last change, and what behind it."""
    name = PurePosixPath(file.external_id).name.lower()
    folder = run_name(file.external_id)
    step = _STEP.match(name)
    final = next((len(_FINAL) - n for n, starts in enumerate(_FINAL) if name.startswith(starts)), 0)
    # A PBI in a file of its own has a `timestamp` too, and that is no time of a step.
    keys = ("generatedat", "processedat", *(("timestamp",) if "step" in run else ()))
    written = next((time for key in keys if (time := parse_time(run.get(key)))), file.modified)
    return (
        (natural_key(folder) if _DATED_RUN.match(folder) else (), final, int(step[1]) if step else 0),
        (written.timestamp() if written else 0.0, file.external_id),
    )
