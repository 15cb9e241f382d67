"""The first load of a folder of real documents, with edits and a new source meanwhile, against the same load alone.

    python tests/benchmarks/first_hour.py FOLDER [--documents N] [--every SECONDS] [--alone]

Each subfolder of FOLDER becomes a watched source, of which the first N files are taken in all; FOLDER stays as it is.
Prints a table with the limits: seconds until all is found by words, until an edit and a new source are searchable, until
all has vectors, what the edits cost the load, and the processor time of commands without a running installation. Exit
1 if a limit is missed. Take the figures on a quiet machine: the load average stands below the table. `--alone` leaves
out the second load, and what is measured against it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.bench import Line, Site, cpu

ENDINGS = (".md", ".rst", ".adoc", ".html", ".txt")
SOURCE = (
    "    - {{name: '{name}{ending}', type: {kind}, paths: ['./docs/{name}/**/*{ending}'], watch: true}}\n"
)
NEW_AFTER = 2
"""Edits, before a new source is added."""
WORDS = """
    select count(*) > 0 and not exists (select from sync_run where state = 'discovering')
           and not exists (select from index_work where stage = 'fetched' and not dead) from document"""
LOADED = "select count(*) > 0 and count(*) filter (where state = 'pending') = 0 from document"
HELD = "select array_agg(external_id) from document where indexed_version is not null and starts_with(external_id, 'docs/')"
VERSION = "select coalesce(max(indexed_version), 0) from document where external_id = %s"


class RealSite(Site):
    """An installation whose sources are copies of the subfolders of a folder."""

    def __init__(self, folder: Path, most: int | None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="larder-first-"))
        files = (f for f in sorted(folder.rglob("*")) if f.suffix in ENDINGS and f.parent != folder)
        self.files = [f.relative_to(folder) for f in itertools.islice(files, most)]
        for file in self.files:
            target = self.root / "docs" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / file, target)
        kinds = sorted({(f.parts[0], f.suffix) for f in self.files})
        lines = "".join(
            SOURCE.format(name=name, kind="text" if ending == ".txt" else "markdown", ending=ending)
            for name, ending in kinds
        )
        (self.root / "larder.yaml").write_text(f"rag:\n  sources:\n{lines}")

    def ask(self, query: str, *values: object) -> Any:
        """The one value of a query."""
        with self.connect() as connection:
            row = connection.execute(query, values).fetchone()
            return row[0] if row else None

    def edited(self, name: str, mark: str) -> float:
        """Seconds until a file that is searchable already is so with another line."""
        before, path = self.ask(VERSION, name), self.root / name
        begun = time.monotonic()
        path.write_text(f"{path.read_text(encoding='utf-8')}\n\nThe mark is {mark}.\n", encoding="utf-8")
        while self.ask(VERSION, name) == before:
            time.sleep(0.2)
        taken = time.monotonic() - begun
        if not self.larder("search", mark, "--mode", "keyword")["results"]:
            raise SystemExit(f"{name} is indexed anew, and its new line is not found")
        return taken

    def added(self) -> float:
        """Seconds until ten notes of a folder that no source names are searchable."""
        folder = self.root / "notes"
        folder.mkdir()
        for n in range(10):
            (folder / f"note-{n}.md").write_text(f"# Note {n}\n\nThe quay of berth {n} is {n} metres long.\n")
        begun = time.monotonic()
        self.larder("ingest", "notes")
        return time.monotonic() - begun


def load(site: RealSite, every: float | None) -> dict[str, Any]:
    """Seconds of a first load; with edits and a new source in between if `every` says how often."""
    found: dict[str, Any] = {"edits": []}
    site.larder("up", "--detach", "--no-flower")
    begun = time.monotonic()
    site.larder("index", "--no-wait")
    chance, changed = random.Random(1), time.monotonic()
    while not site.ask(LOADED):
        time.sleep(1)
        if "words" not in found and site.ask(WORDS):
            found["words"] = time.monotonic() - begun
        if every is None or time.monotonic() - changed < every or "words" not in found:
            continue
        if held := site.ask(HELD):
            mark = f"zyx{len(found['edits'])}qv{chance.randrange(10**6)}"
            found["edits"].append(site.edited(chance.choice(sorted(held)), mark))
            if len(found["edits"]) == NEW_AFTER:
                found["added"] = site.added()
        changed = time.monotonic()
    found["load"] = time.monotonic() - begun
    found.setdefault("words", found["load"])
    found["chunks"] = site.ask("select sum(chunk_count) from document")
    return found


def measured(folder: Path, most: int | None, every: float, *, alone: bool) -> Iterator[Line]:
    """The lines of the table."""
    site = RealSite(folder, most)
    try:
        busy = load(site, every)
        yield Line(what="found by words", value=busy["words"], unit="s", must=60, at_most=True,
                   detail=f"{len(site.files)} files, {busy['chunks']} chunks")  # fmt: skip
        if edits := sorted(busy["edits"]):
            slow = edits[min(len(edits) - 1, int(0.95 * len(edits)))]
            yield Line(what="edit searchable, p95", value=slow, unit="s", must=15, at_most=True,
                       detail=f"{len(edits)} edits, median {statistics.median(edits):.1f} s")  # fmt: skip
        if "added" in busy:
            yield Line(what="new source searchable", value=busy["added"], unit="s", must=30, at_most=True)
        yield Line(what="all has vectors", value=busy["load"], unit="s")
        site.larder("down")
        site.larder("status")  # starts the servers, which the next one finds
        larder, bare = (
            [sys.executable, "-m", "workers.cli"],
            cpu([sys.executable, "-c", "pass"], site.root),
        )
        for args, must in (
            (["search", "how is it built"], 0.6),
            (["status"], 0.5),
            (["--help"], 0.15),
            (["--version"], 0.15),
        ):
            taken = cpu([*larder, *args], site.root)
            yield Line(what=f"larder {args[0]}, processor", value=taken, unit="s", must=must, at_most=True,
                       detail=f"{taken / bare:.0f} x python -c pass")  # fmt: skip
    finally:
        site.larder("down")
        shutil.rmtree(site.root, ignore_errors=True)
    if alone:
        return
    site = RealSite(folder, most)
    try:
        quiet = load(site, None)
    finally:
        site.larder("down")
        shutil.rmtree(site.root, ignore_errors=True)
    yield Line(what="the load with edits", value=busy["load"] / quiet["load"], unit="x", must=1.1, at_most=True,
               detail=f"{quiet['load']:.0f} s without")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, help="take so many files at most")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between edits")
    parser.add_argument("--alone", action="store_true", help="do not load once more without edits")
    args = parser.parse_args()
    held = True
    for line in measured(args.folder, args.documents, args.every, alone=args.alone):
        limit = f"must {line.must:g}" if line.must is not None else ""
        print(
            f"{line.what:<28}{line.value:9.2f} {line.unit:<2} {limit:<10}{'' if line.holds else 'MISSED '} {line.detail}",
            flush=True,
        )
        held &= line.holds
    print("load average " + ", ".join(f"{n:.1f}" for n in os.getloadavg()))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
