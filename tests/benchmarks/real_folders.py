"""Turn retrieval sets (corpus.jsonl) into folders of Markdown files and index them as a user would.

    python tests/benchmarks/real_folders.py SET_DIR [SET_DIR ...] [--provider minilm] [--limit N]

Prints how many documents came in, how many failed, and how long it took; exit 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def write_files(corpus: Path, folder: Path, limit: int | None) -> int:
    """One Markdown file per line of `corpus`; returns how many."""
    folder.mkdir(parents=True)
    count = 0
    with corpus.open(encoding="utf-8") as lines:
        for count, line in enumerate(lines, 1):
            row: dict[str, str] = json.loads(line)
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", row["_id"]).strip("-") or f"page-{count}"
            title = " ".join(row["title"].split())
            (folder / f"{name}.md").write_text(f"# {title}\n\n{row['text']}\n", encoding="utf-8")
            if count == limit:
                break
    return count


def larder(root: Path, *args: str) -> Any:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    with tempfile.TemporaryFile() as out:
        command = [
            sys.executable,
            "-m",
            "workers.cli",
            *args,
            "--config",
            str(root / "larder.yaml"),
            "--json",
        ]
        subprocess.run(command, cwd=root, env=env, stdout=out, check=False)
        out.seek(0)
        return json.loads(out.read() or "null")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--provider", default="minilm")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="larder-real-"))
    sources = []
    written = 0
    for folder in args.sets:
        written += write_files(folder / "corpus.jsonl", root / "docs" / folder.name, args.limit)
        sources.append(
            f"    - {{name: {folder.name}, type: markdown, paths: ['./docs/{folder.name}/*.md'], autoIndex: false}}"
        )
    (root / "larder.yaml").write_text(
        f"rag:\n  embedding: {{provider: {args.provider}}}\n  sources:\n" + "\n".join(sources) + "\n"
    )
    try:
        larder(root, "up", "--detach", "--no-flower")
        result = larder(root, "index")
        status = larder(root, "status")
    finally:
        larder(root, "down")
        shutil.rmtree(root, ignore_errors=True)
    for run in result["runs"]:
        print(json.dumps({k: run[k] for k in ("source", "listed", "indexed", "skipped", "failed", "dead")}))
    for error in result["stats"]["errors"]:
        print(json.dumps(error))
    stats = result["stats"]
    held = sum(s["documents"] for s in status["sources"])
    print(
        f"{written} files, {held} documents, {stats['vectors_indexed']} chunks in {stats['time_elapsed']:.0f} s"
    )
    return 0 if result["success"] and held == written else 1


if __name__ == "__main__":
    sys.exit(main())
