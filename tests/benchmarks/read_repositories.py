"""Read checkouts of public repositories as `larder ingest` would, without a database, for somebody to look at.

    python tests/benchmarks/read_repositories.py FOLDER [FOLDER ...] --out REPORTS [--titles 50] [--texts 10]

Writes REPORTS/FOLDER.json: every refusal and every skipped file with its reason, a random sample of titles beside
the first lines of their files, all decisions beside the lines of their files that speak of a status, and a few
documents whole beside their files. Prints one line of counts for each folder. Nothing here judges: people do.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pipeline.documents import Document, Json, Page
from workers.app.ingestion.sync import open_source
from workers.app.ingestion.sync_now import sources_of_folder
from workers.runtime import Runtime
from workers.settings import loading

READ = ("markdown", "text")
"""Types of sources; other files of `ingest` are outputs of the pipeline."""
STATUS_LINES = 6
FIRST_LINES = 3
MOST_RAW = 20_000
"""Characters of a file that is shown beside its document."""
FACTS = ("decision_status", "superseded_by", "decided_at", "deciders", "status", "reading_note")
# Documents by their endings; some may be taken by no source, which `unlisted` shows.
_DOCUMENT = re.compile(
    r"\.(?:md|mdx|markdown|mkd|mdown|rst|adoc|asciidoc|x?html?|txt|pdf|docx)$", re.IGNORECASE
)
_STATUS = re.compile(
    r"stat(?:us|ut|o\b)|durum|estado|state:|supers|replaced|ersetzt|abgelöst|状态|статус", re.IGNORECASE
)


def raw(folder: Path, document: Document) -> str:
    """The file as text, for eyes only; of a binary one nothing."""
    path = folder / document.external_id
    if not path.is_file() or path.suffix.lower() in {".pdf", ".docx"}:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def pages(folder: Path) -> Iterator[Page]:
    """What the sources that `ingest` would make of the folder give."""
    # What these two ask of the runtime are its settings: no database is needed.
    parts = cast("Runtime", SimpleNamespace(settings=loading.load(None, {}), request_limiter=None))
    for one in sources_of_folder(parts, folder):
        if one.settings.type in READ:
            yield from open_source(parts, one.settings).pages(None)


def title_row(folder: Path, document: Document) -> Json:
    """A title beside the first lines of its file that are not blank."""
    lines = [line for line in raw(folder, document).splitlines() if line.strip()]
    return {
        "path": document.external_id,
        "title": document.title,
        "first_lines": [line[:200] for line in lines[:FIRST_LINES]],
    }


def decision_row(folder: Path, document: Document) -> Json:
    """What a record of a decision tells beside the lines that mention a status, each with the one below it."""
    lines = [line for line in raw(folder, document).splitlines() if line.strip()]
    at = [index for index, line in enumerate(lines) if _STATUS.search(line)][:STATUS_LINES]
    return {
        "path": document.external_id,
        "title": document.title,
        **facts(document),
        "lines": [" / ".join(line.strip()[:160] for line in lines[index : index + 2]) for index in at],
    }


def facts(document: Document) -> Json:
    """The metadata that tell what became of it."""
    return {key: document.metadata[key] for key in FACTS if key in document.metadata}


def text_row(folder: Path, document: Document) -> Json:
    """The document whole beside its file."""
    return {
        "path": document.external_id,
        "title": document.title,
        "kind": document.kind,
        "tags": document.tags,
        "metadata": document.metadata,
        "created": document.created_at,
        "updated": document.updated_at,
        "raw": raw(folder, document)[:MOST_RAW],
        "text": document.text[:MOST_RAW],
    }


def report(folder: Path, titles: int, texts: int, seed: int) -> Json:
    """All that is to be looked at of one folder."""
    found = list(pages(folder))
    documents = sorted((d for page in found for d in page.documents), key=lambda d: d.external_id)
    refused = [p.to_json() for page in found for p in page.failed]
    skipped = [p.to_json() for page in found for p in page.skipped]
    listed = {d.external_id for d in documents} | {p["item"] for p in (*refused, *skipped)}
    there = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {
        "folder": folder.name,
        "listed": len(documents) + len(refused) + len(skipped),
        "documents": len(documents),
        "kinds": Counter(d.kind for d in documents),
        "refused": refused,
        "skipped": skipped,
        "unlisted": sorted(name for name in there if _DOCUMENT.search(name) and name not in listed),
        "notes": [{"path": d.external_id, **facts(d)} for d in documents if "reading_note" in d.metadata],
        "titles": [title_row(folder, d) for d in sample(documents, titles, f"{seed} titles")],
        "decisions": [decision_row(folder, d) for d in documents if d.kind == "decision"],
        "texts": [text_row(folder, d) for d in sample(documents, texts, f"{seed} texts")],
    }


def sample(documents: Sequence[Document], count: int, seed: str) -> list[Document]:
    """So many of them; the same ones at the next run, even if others have come or gone."""
    return sorted(documents, key=lambda d: sha256(f"{seed} {d.external_id}".encode()).digest())[:count]


def main() -> None:
    """Write a report of each folder and print its counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="REPORTS")
    parser.add_argument("--titles", type=int, default=50)
    parser.add_argument("--texts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=31)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for folder in args.folders:
        told: dict[str, Any] = report(folder.resolve(), args.titles, args.texts, args.seed)
        text = json.dumps(told, ensure_ascii=False, indent=1, default=str)
        (args.out / f"{told['folder']}.json").write_text(text, encoding="utf-8")
        counts = {key: len(v) if isinstance(v, list) else v for key, v in told.items()}
        print(json.dumps({k: counts[k] for k in list(counts)[:8]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
