"""Syncs that read only the files which changed: after each the ledger is as if all had been read."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from connectors import open_source
from connectors.files import walk
from pipeline.errors import SourceUnavailable
from pipeline.ingest.sync import Syncer
from pipeline.ledger import admission, documents, runs, sources
from tests.connectors.folders import file_options
from tests.ledger import ago
from tests.pipeline.source_ledger import LEASE, SourceLedger
from tests.pipeline.walked import schedule

ROUGH = 0.02
"""As roughly as this machine's file systems tell times; what was changed longer ago is settled."""
ROUNDS = int(os.environ.get("LARDER_CASES", "12"))
NAMES = ("a.md", "b.md", "c/d.md", "c/e.md", "c/f/g.md", "h\u00e4fen.md", "ha\u0308fen.md", "z.md")
SHOWN = ("pic.png", "c/pic.png")
"""Files that texts show and no pattern names."""
BODIES = (
    "# Quay\n\nOne berth of {n} metres.\n",
    "# Quay\n\nTwo berths of {n} metres, see [a](a.md), [e](/c/e.md) and ![pic](pic.png).\n",
    "---\ntitle: Sheds {n}\ntags: [one, two]\n---\n\nText of the sheds.\n",
    "---\ntitle: [\n---\n\nA header of {n} that cannot be read.\n",
    "---\nsecurity_level: secret{n}\n---\n\nA level that there is not.\n",
    " " * 70 + "\n" * 10,
    "",
    "\x00\x01\x02 {n}",
    "too long {n} " * 100,
)


class Folder:
    """One folder, and two sources of it in the ledger: one whose syncs read what changed, and one that reads all."""

    def __init__(self, notes: SourceLedger, root: Path, seed: int) -> None:
        self.root, self.chance, self.rounds = root, random.Random(seed), 0
        self.comparing = notes
        self.reading = SourceLedger(notes.database, notes.tenant, notes.project, "all")
        root.mkdir()

    def sync(self, **changes: Any) -> runs.RunRow:
        """A sync that reads what changed."""
        return _synced(self.comparing, self.root, **changes)

    def expected(self) -> runs.RunRow:
        """One that reads all."""
        return _synced(self.reading, self.root, read_all_after=0.0)

    def change(self) -> str:
        """Change something; what, in words."""
        done: Callable[[], str] = self.chance.choice([
            self.write, self.write, self.touch, self.rewrite, self.rename, self.swap, self.replace, self.remove,
            self.link, self.show, self.date, self.nothing,
        ])  # fmt: skip
        return f"{done.__name__} {done()}"

    def nothing(self) -> str:
        return ""

    def write(self) -> str:
        name = self.chance.choice(NAMES)
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_text(self.chance.choice(BODIES).replace("{n}", str(self.chance.randrange(10, 99))))
        return name

    def _some(self) -> Path | None:
        files = sorted(p for p in self.root.rglob("*.md") if p.is_file() and not p.is_symlink())
        return self.chance.choice(files) if files else None

    def touch(self) -> str:
        if path := self._some():
            path.touch()
        return str(path)

    def rewrite(self) -> str:
        """Another text of the same length under the same time."""
        if path := self._some():
            before, text = path.stat(), path.read_text()
            path.write_text("".join(str(9 - int(c)) if c.isdigit() and c.isascii() else c for c in text))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return str(path)

    def rename(self) -> str:
        if path := self._some():
            other = self.root / self.chance.choice(NAMES)
            other.parent.mkdir(parents=True, exist_ok=True)
            path.rename(other)
            return f"{path} to {other}"
        return ""

    def swap(self) -> str:
        one, other = self._some(), self._some()
        if one and other and one != other:
            between = self.root / "between"
            for source, target in ((one, between), (other, one), (between, other)):
                source.rename(target)
        return f"{one} and {other}"

    def replace(self) -> str:
        """Another file with the same time, and often of the same length."""
        one, other = self._some(), self._some()
        if one and other and one != other:
            shutil.copy2(one, self.root / "copy")
            (self.root / "copy").rename(other)
        return f"{other} by {one}"

    def remove(self) -> str:
        if path := self._some():
            path.unlink()
        return str(path)

    def link(self) -> str:
        path, target = self.root / "z.md", self._some()
        path.unlink(missing_ok=True)
        if target and target.exists():
            path.symlink_to(target)
        return f"to {target}"

    def show(self) -> str:
        path = self.root / self.chance.choice(SHOWN)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink() if path.exists() else path.write_text("a picture")
        return str(path)

    def date(self) -> str:
        """A clock that is wrong, one way or the other."""
        if path := self._some():
            at = time.time() + self.chance.choice([-1e9, -5.0, 5.0, 1e6])
            os.utime(path, (at, at))
        return str(path)


def _synced(
    notes: SourceLedger,
    root: Path,
    *,
    die_after: int | None = None,
    force: bool = False,
    walk: bool = False,
    slice_seconds: float = 10.0,
    **changes: Any,
) -> runs.RunRow:
    """A whole sync, broken off after a page and taken up again if so asked; its documents are left as indexed."""
    options = file_options(
        name="notes",
        type="markdown",
        root=root,
        paths=("**/*.md",),
        max_bytes=1000,
        base_url="https://x.example",
    )
    pages = 0

    def after_page() -> None:
        nonlocal pages
        pages += 1
        if pages == die_after:
            raise SourceUnavailable("killed")

    run, complete = notes.open_run(force=force, walk=walk), False
    while not complete:
        with suppress(SourceUnavailable):
            source = open_source(options)
            syncer = Syncer(
                database=notes.database,
                lease=LEASE,
                slice_seconds=slice_seconds,
                after_page=after_page,
                **changes,
            )
            where = notes.where(run, force=force, pipeline=f"{source.extractor}|c1|m")
            complete = syncer.slice(source, where, schedule, config_hash="c1")
    notes.documents.set({"state": "pending"}, state="done", stage="done", last_indexed=ago())
    return notes.run(run)


COUNTS = ("listed", "unchanged", "queued", "skipped", "failed", "noted", "hidden", "deleted", "restored")


def told(run: runs.RunRow) -> dict[str, Any]:
    """What a run says of a folder."""
    problems = sorted((p["item"], p["reason"], p["outcome"]) for p in run.problems)
    return {name: getattr(run, name) for name in COUNTS} | {
        "problems": problems,
        "left_out": run.left_out,
        "walk": run.walk,
    }


def rows(notes: SourceLedger) -> list[Any]:
    """What the ledger has of a folder."""
    columns = ["external_id", "title", "kind", "url", "tags", "metadata", "security_level", "desired_hash"]
    columns += ["desired_version", "state", "hidden", "deleted"]
    return [
        {**{column: one[column] for column in columns}, "body": body}
        for one in notes.documents(source_id=notes.source)
        for body in notes.bodies.values("body", document_id=one["id"]) or [None]
    ]


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "ROUGH_SECONDS", ROUGH)


@pytest.mark.parametrize("seed", range(4))
def test_after_each_sync_the_ledger_is_as_if_all_had_been_read(
    notes: SourceLedger, tmp_path: Path, seed: int
) -> None:
    folder, done = Folder(notes, tmp_path / "notes", seed), []
    for number in range(ROUNDS):
        done += [f"{number}: {folder.change()}" for _ in range(folder.chance.randrange(4))]
        if folder.chance.random() < 0.8:
            time.sleep(2 * ROUGH)
        how: dict[str, Any] = folder.chance.choice([{}, {}, {"slice_seconds": -1.0}, {"die_after": 1}])
        told_by = told(folder.sync(**how))
        assert told_by == told(folder.expected()), (seed, how, done)
        assert rows(folder.comparing) == rows(folder.reading), (seed, how, done)


@pytest.fixture
def folder(notes: SourceLedger, tmp_path: Path) -> Folder:
    """A folder of three documents whose first sync is over, none of which was changed lately."""
    folder = Folder(notes, tmp_path / "notes", 0)
    for name in ("a.md", "b.md", "c.md"):
        (folder.root / name).write_text(
            f"# {name}\n\nA text of its own, of more than a line, for a file that is tiny is opened for that.\n"
        )
    time.sleep(2 * ROUGH)
    assert folder.sync().queued == 3
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened."""
    found: list[str] = []
    read = walk._read

    def noting(file: walk.FoundFile, *more: Any) -> Any:
        found.append(file.external_id)
        return read(file, *more)

    monkeypatch.setattr(walk, "_read", noting)
    return found


ALL = ["a.md", "b.md", "c.md"]


def test_a_sync_without_changes_opens_nothing_and_counts_all(folder: Folder, opened: list[str]) -> None:
    run = folder.sync()
    assert (run.listed, run.unchanged, run.queued, run.walk, opened) == (3, 3, 0, True, [])


@pytest.mark.parametrize(
    "why", ["force", "walk", "a day later", "a day before", "configured", "cleared", "extractor"]
)
def test_all_files_are_read_where_what_was_noted_does_not_count(
    folder: Folder, opened: list[str], why: str
) -> None:
    how: dict[str, Any] = {"force": {"force": True}, "walk": {"walk": True}}.get(why, {})
    notes, day = folder.comparing, 86_400
    if why.startswith("a day"):
        at = time.time() + (day if why.endswith("before") else -day - 1)
        notes.sources.set(cursor={"read_at": at})
    elif why == "configured":
        with notes.database.tenant(notes.tenant) as connection:
            sources.register(connection, [notes.registration(config_hash="other")])
            sources.register(connection, [notes.registration()])
    elif why == "cleared":
        with notes.database.tenant(notes.tenant) as connection:
            documents.clear(connection, notes.source)
    elif why == "extractor":
        notes.sources.set(pipeline_version="markdown-0|c1|m")
    run = folder.sync(**how)
    assert (run.listed, sorted(opened)) == (3, ALL)
    opened.clear()
    folder.sync()
    assert opened == []


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"state": "pending"}, {"queued": 1}),
        ({"state": "dead"}, {"failed": 1}),
        ({"deleted": True, "hidden": True}, {"queued": 1}),
        ({"pipeline_version": "markdown-0|c1|m"}, {"queued": 1}),
    ],
)
def test_a_document_that_is_not_done_is_read_and_told_as_ever(
    folder: Folder, opened: list[str], change: dict[str, Any], counts: dict[str, int]
) -> None:
    folder.comparing.set("b.md", **change)
    run = folder.sync()
    assert (run.listed, run.unchanged, opened) == (3, 2, ["b.md"])
    assert {name: getattr(run, name) for name in counts} == counts


def test_what_was_hidden_and_is_there_again_is_shown_without_being_read(
    folder: Folder, opened: list[str]
) -> None:
    folder.comparing.set("b.md", hidden=True)
    assert (folder.sync().restored, opened) == (1, [])
    assert not folder.comparing.row("b.md")["hidden"]


def test_too_many_deletions_wait_for_a_person_as_ever(folder: Folder) -> None:
    for name in ALL:
        (folder.root / name).unlink()
    run = folder.sync(guard=admission.DeletionGuard(share=0.2, documents=1))
    assert (
        run.hidden,
        folder.comparing.sources.one(id=folder.comparing.source)["held"],
    ) == (0, 3)


def test_a_document_of_a_file_changed_a_moment_ago_is_read_until_it_is_settled(
    folder: Folder, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "ROUGH_SECONDS", 3600.0)
    (folder.root / "b.md").write_text(
        "# b\n\nAnother text, of more than a line, for a file that is tiny is opened for that as well.\n"
    )
    assert (folder.sync().queued, opened) == (1, ["b.md"])
    assert (folder.sync().queued, opened) == (0, ["b.md"] * 2)
    monkeypatch.setattr(walk, "ROUGH_SECONDS", 0.0)
    assert (folder.sync().queued, folder.sync().queued, opened) == (0, 0, ["b.md"] * 3)
