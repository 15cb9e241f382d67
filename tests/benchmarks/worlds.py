"""Step 4 on projects that nobody here made (tests/worlds/README.md): what it shows of them, and what it does not.

    python -m tests.benchmarks.worlds CHECKOUTS [NAME...] [--ungraded FILE] [--json FILE] [--sets FOLDER] [--accept]

CHECKOUTS holds a git checkout for each world, called as the world. Documents are read by the real connectors; what was
indexed is kept in the temporary folder for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import yaml

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, LarderError
from tests.benchmarks import accepted
from workers.app.evaluation import dataset, measuring, sandbox
from workers.app.ingestion.sync import open_source
from workers.runtime import Runtime
from workers.settings import Settings, loading

WORLDS = Path(__file__).resolve().parents[1] / "worlds"
GRADES = ("useful", "related", "noise", measuring.UNJUDGED)


class Answered(NamedTuple):
    """What a world was answered."""

    lines: list[Json]
    """All that is shown, with its grade and, of a document, its percentage."""
    counts: Counter[str]
    """Of what was expected, of duplicates in other words and of items that nothing helps."""
    seconds: list[float]
    missed: list[tuple[int, int, str]]
    """Of each item: how many expected documents it was not shown, how many are not found either, and which."""


def settings_of(about: Json, checkout: Path, made: Path) -> Settings:
    """What somebody would configure who indexes this checkout; files that it takes are written into `made`."""
    address, commit = f"https://github.com/{about['repository']}", about["commit"]
    if not checkout.is_dir() or _git(checkout, "rev-parse", "HEAD").strip() != commit:
        raise ConfigurationError(
            f"{checkout} is no checkout of {address} at {commit}",
            fix=f"git clone {address} {checkout}, then git -C {checkout} checkout {commit}",
        )
    sources = [{"root": str(checkout), "autoIndex": False, **one} for one in about["sources"]]
    if "changes" in about:
        (made / "changes.json").write_text(json.dumps({"pbis": list(_changes(checkout, **about["changes"]))}))
        changes = {"name": "changes", "type": "pbi_json", "identity": "id", "paths": ["changes.json"]}
        # Addresses that are the same each time, or all would be indexed anew.
        sources.append({"root": str(made), "baseUrl": f"{address}/commits", "autoIndex": False, **changes})
    # A folder for each, since a measurement that ends stops the databases of its folder.
    storage = {"data": str(Path(tempfile.gettempdir()) / "larder-worlds" / checkout.name)}
    rag = {"sources": sources, "decisions": about.get("decisions", {}), "storage": storage}
    (made / loading.FILE).write_text(yaml.safe_dump({"rag": rag}))
    return loading.load(made / loading.FILE, {})


def _git(checkout: Path, *args: str) -> str:
    command = ["git", "-C", str(checkout), *args]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout


def _changes(checkout: Path, count: int, without: str) -> Iterator[Json]:
    """The last merged changes as finished work; that of a merge is told by its first line and its commits."""
    form = "--format=%h%x1f%cI%x1f%s%x1f%b%x1e"
    args = (
        "--first-parent",
        f"-{count}",
        "--abbrev=12",
        "-i",
        "-E",
        "--invert-grep",
        f"--grep={without}",
        form,
    )
    for entry in _git(checkout, "log", *args).split("\x1e")[:-1]:
        name, updated, title, body = entry.strip("\n").split("\x1f")
        if title.startswith("Merge pull request"):
            title = body.strip().partition("\n")[0] or title
            body = _git(checkout, "log", "--reverse", "--format=%B", f"{name}^1..{name}^2")
        change = {"id": f"change-{name}", "title": title, "description": body.strip()}
        yield {**change, "status": "merged", "updated": updated}


def table(folder: Path, name: str) -> list[list[str]]:
    """Item, section, document and grade of each line but the header."""
    lines = (folder / name).read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[:4] for line in lines]


def digest(sentence: str) -> str:
    """What stands for a sentence in the judgements, so that they hold no text of the project."""
    return hashlib.sha256(sentence.encode()).hexdigest()[:12]


def write_set(folder: Path, settings: Settings, out: Path) -> dataset.EvalDataset:
    """The world as a set of docs/evaluation.md, read back, so that a reference to nothing is named."""
    # All that sources ask of a runtime are its settings.
    parts = cast("Runtime", SimpleNamespace(settings=settings, request_limiter=None))
    pages = (page for source in settings.rag.sources for page in open_source(parts, source).pages(None))
    rows: list[Json] = []
    for one in (one for page in pages for one in page.documents):
        row = {key: getattr(one, key) for key in ("title", "text", "kind", "url", "source_type", "tags")}
        times = {key: at.isoformat() for key in ("created_at", "updated_at") if (at := getattr(one, key))}
        rows.append({"_id": one.external_id, "metadata": dict(one.metadata), **row, **times})
    items = [json.loads(line) for line in (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    for item in items:
        criteria = "".join(f"\n- {one}" for one in item["acceptance_criteria"])
        item["text"] = f"{item['title']}\n{item['description']}{criteria}"
    grades = {(item, ref): grade for item, _, ref, grade in table(folder, "expected.tsv")}
    pairs, judged = [(*pair, grade) for pair, grade in grades.items()], table(folder, "judgements.tsv")
    meta = {"self_exclude": False}
    dataset.write(out, documents=rows, queries=items, relevant=pairs, context=judged, counts=meta)
    return dataset.read(out)


def answer(name: str, checkouts: Path, sets: Path) -> Answered:
    """Index the checkout of a world, ask all its items, and enrich them."""
    folder = WORLDS / name
    about = yaml.safe_load((folder / "world.yaml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as made:
        settings = settings_of(about, checkouts.resolve() / name, Path(made))
        judged = write_set(folder, settings, sets / name)
    with sandbox.folder_for(settings, keep=True) as place:
        parts = sandbox.open_runtime(settings, judged, place)
        measured = measuring.measure(parts, judged, "hybrid", lambda *_: None, list(judged.queries))
        parts.database.close()
    step4 = cast("measuring.Step4Answers", measured.step4)
    told = Answered([], Counter(), list(step4.seconds), [])
    judged_lines = {tuple(row): measuring.GRADE_NAMES[int(g)] for *row, g in table(folder, "judgements.tsv")}
    for item, line, _ in step4.graded():
        key = line.key if line.section in dataset.DOCUMENT_SECTIONS else digest(line.key)
        grade = judged_lines.get((item, line.section, key), measuring.UNJUDGED)
        told.lines.append({"world": name, "item": item, **line._asdict(), "key": key, "grade": grade})
    expected = table(folder, "expected.tsv")
    for item in judged.queries:
        seen = {(x["section"], x["ref"]) for x in told.lines if x["item"] == item}
        wanted = {(section, ref) for i, section, ref, _ in expected if i == item}
        counts = _counts(wanted, seen, set(measured.rankings[item]))
        told.counts.update(counts)
        refs = ", ".join(sorted({ref for _, ref in wanted} - {ref for _, ref in seen}))
        unseen = counts["expected"] - counts["shown"]
        told.missed.append((unseen, unseen - counts["found alone"], f"{name} {item}: {refs}"))
    return told


def _counts(wanted: set[tuple[str, str]], seen: set[tuple[str, str]], found: set[str]) -> Json:
    """What became of the documents that one item should show."""
    refs, twins = {ref for _, ref in wanted}, {pair for pair in wanted if pair[0] == "likely_duplicates"}
    shown = refs & {ref for section, ref in seen if section in dataset.DOCUMENT_SECTIONS}
    return {
        "expected": len(refs), "shown": len(shown), "found alone": len((refs & found) - shown),
        "in top 10": len(refs & found), "duplicates": bool(twins), "flagged": bool(twins & seen),
        "nothing helps": not wanted, "empty": not wanted and not seen,
    }  # fmt: skip


def report(name: str, told: Answered) -> None:
    """Print the figures of one world or of all."""
    print(f"\n{name:18}{'shown':>7}" + "".join(f"{grade:>9}" for grade in GRADES) + "  useful or related")
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for x in told.lines:
        tens = [] if x["similarity"] is None else [f"{min(x['similarity'], 99) // 10}0 % and over"]
        for what in (x["section"], *tens):
            groups[what][x["grade"]] += 1
    for what, grades in sorted(groups.items()):
        judged, good = grades.total() - grades[measuring.UNJUDGED], grades["useful"] + grades["related"]
        cells = "".join(f"{grades[grade]:9}" for grade in GRADES)
        print(f"  {what:16}{grades.total():7}{cells}  {f'{good / judged:.0%}' if judged else '-':>6}")
    c, seconds = told.counts, sorted(told.seconds)
    p50, p95 = (seconds[int(len(seconds) * share)] for share in (0.5, 0.95))
    print(
        f"  of {c['expected']} expected: {c['shown']} shown, {c['found alone']} only found by search,"
        f" {c['expected'] - c['shown'] - c['found alone']} neither; {c['in top 10']} in the top 10\n"
        f"  flagged of duplicates in other words: {c['flagged']} of {c['duplicates']}\n"
        f"  empty of those that nothing helps: {c['empty']} of {c['nothing helps']}\n"
        f"  seconds per item: p50 {p50:.2f}, p95 {p95:.2f}"
    )


def figures(told: Answered) -> dict[str, float]:
    """What is accepted of all worlds: shares of what was expected, and of what was shown and judged by section."""
    c, groups = told.counts, defaultdict[str, list[bool]](list)
    for x in told.lines:
        if x["grade"] != measuring.UNJUDGED:
            groups[x["section"]].append(x["grade"] != "noise")
    return {
        "expected shown": c["shown"] / c["expected"],
        "expected in top 10": c["in top 10"] / c["expected"],
        "duplicates flagged": c["flagged"],
        "empty where nothing helps": c["empty"] / c["nothing helps"],
        **{f"{section} useful or related": sum(good) / len(good) for section, good in sorted(groups.items())},
    }


def main() -> None:
    """Print the figures of the worlds named on the command line, or of all."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--ungraded", type=Path, metavar="FILE", help="write what nobody has graded")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all lines")
    parser.add_argument("--accept", action="store_true", help="compare with these figures from now on")
    parser.add_argument("--sets", type=Path, metavar="FOLDER", help="keep the sets, for `larder eval`")
    options = parser.parse_args()
    names = options.names or sorted(path.parent.name for path in WORLDS.glob("*/world.yaml"))
    every = Answered([], Counter(), [], [])
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            try:
                one = answer(name, options.checkouts, options.sets or Path(scratch))
            except (LarderError, OSError) as error:
                sys.exit(f"{name}: {error}")
            report(name, one)
            every.lines.extend(one.lines)
            every.counts.update(one.counts)
            every.seconds.extend(one.seconds)
            every.missed.extend(one.missed)
    if len(names) > 1:
        report("all", every)
    if not options.names:
        accepted.compare("worlds", figures(every), accept=options.accept)
    print("\nexpected and not shown, of them not found either: the worst")
    for unseen, unfound, place in sorted(every.missed, reverse=True)[:10]:
        print(f"  {unseen} {unfound} {place}")
    noise = sorted((x for x in every.lines if x["grade"] == "noise"), key=lambda x: -(x["similarity"] or 0))
    print("\nnoise that is shown surest" if noise else "")
    for x in noise[:10]:
        place = " ".join((x["world"], x["item"], x["section"], x["ref"]))
        print(f"  {x['similarity'] or '-':>3} {place}: {x['text'][:100]}")
    if options.json:
        options.json.write_text(json.dumps({"counts": every.counts, "lines": every.lines}, indent=1))
    if options.ungraded:
        left = [x for x in every.lines if x["grade"] == measuring.UNJUDGED]
        rows = [(x["world"], x["item"], x["section"], x["key"], "", x["text"]) for x in left]
        options.ungraded.write_text("".join(dataset.table_row(*row) for row in rows))


if __name__ == "__main__":
    main()
