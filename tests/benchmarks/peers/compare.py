"""The same documents, model and machine: Larder against LangChain, LlamaIndex, Haystack and CocoIndex.

    python -m tests.benchmarks.peers.compare FOLDER... --python PEERS/bin/python [--documents 200] [--rounds 1] [--again]
        [--only larder langchain:torch ...]

FOLDERs are searched for Markdown files, of which a fixed choice is copied and loaded by each peer into an empty
database of one embedded PostgreSQL; then, with `--again`, loaded again unchanged, and again after 1 % were edited and 1 %
deleted. Peers take turns. Prints seconds of the clock and of all processors (the peer's, its children's and
PostgreSQL's), each without its start until the model is open, and writes tests/benchmarks/out/peers.json. `--python` is of an environment that has what the scripts beside this one name.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg

from pipeline.embedding.model_folder import open_tokenizer
from pipeline.embedding.providers.minilm import MAX_TOKENS, MODEL_FILE
from workers.local import embedded

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "tests" / "benchmarks" / "out" / "peers.json"
SCRIPTS = {
    "langchain": ("langchain_pgvector.py", "select document from langchain_pg_embedding"),
    "llamaindex": ("llamaindex_pgvector.py", "select text from data_peers"),
    "haystack": ("haystack_pgvector.py", "select content from haystack_documents"),
    "cocoindex": ("cocoindex_pgvector.py", "select text from peers"),
}
"""Peer -> its script, and what reads its chunks."""
PEERS = (
    "larder",
    *(f"{n}:{b}" for b in ("torch", "openvino") for n in SCRIPTS if (n, b) != ("cocoindex", "openvino")),
)
SIZES = range(1_000, 60_000)
"""Bytes of a file that is taken."""


def choose(folders: Sequence[Path], count: int) -> list[Path]:
    """So many files, the same ones each time."""
    files = sorted({p for f in folders for p in f.rglob("*.md") if p.is_file() and p.stat().st_size in SIZES})
    random.Random(1).shuffle(files)
    return files[:count]


def copy(files: Sequence[Path], folder: Path) -> None:
    """Under numbers, so that files of one name do not meet."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, path in enumerate(files):
        (folder / f"{number:05}.md").write_text(path.read_text(errors="replace"))


def edit(folder: Path) -> None:
    """Of a hundred files a paragraph more in one, and another one less."""
    files = sorted(folder.iterdir())
    for path in files[::100]:
        path.write_text(path.read_text() + "\n\nThe pump takes its turn when the tank is full.\n")
    for path in files[50::100]:
        path.unlink()


class Server:
    """One PostgreSQL for all peers."""

    def __init__(self, folder: Path) -> None:
        servers = embedded.ensure(folder)
        self.process = psutil.Process(servers.postgres_pid)
        address = urlsplit(servers.database_url)
        password = embedded.Credentials.of_folder(folder).postgres
        self._address = address._replace(netloc=f"postgres:{password}@127.0.0.1:{address.port}")

    def url(self, database: str) -> str:
        return urlunsplit(self._address._replace(path=f"/{database}"))

    def empty(self) -> str:
        """The address of a new database."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("drop database if exists peers with (force)")
            connection.execute("create database peers")
        with psycopg.connect(self.url("peers"), autocommit=True) as connection:
            connection.execute("create extension vector")
        return self.url("peers")


def processor(process: psutil.Process) -> float:
    """Seconds of a process, of its children, and of those of them that are gone."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def timed(job: Callable[[], float], servers: Callable[[], Iterable[psutil.Process]]) -> dict[str, float]:
    """Seconds of the clock, and of processors by the job's children and by servers; the job tells those of its start."""

    def used() -> float:
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + sum(map(processor, servers()))

    before, begun = used(), time.perf_counter()
    start = job()
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "start": start, "processor": used() - before - start}


def run(command: Sequence[str | Path], env: dict[str, str], folder: Path) -> float:
    """Processor seconds of its start, as it prints them; else 0. Raise with the end of what it wrote if it fails."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    told = re.search(r"^start ([0-9.]+)$", done.stdout, re.MULTILINE)
    return float(told[1]) if told else 0.0


def loads(
    load: Callable[[], float],
    documents: Path,
    servers: Callable[[], Iterable[psutil.Process]],
    again: bool,
) -> dict[str, Any]:
    """First, and if `again` unchanged and changed."""
    found = {"first": timed(load, servers)}
    if again:
        found["unchanged"] = timed(load, servers)
        edit(documents)
        found["changed"] = timed(load, servers)
    return found


def peer(
    name: str, python: Path, documents: Path, server: Server, model: Path, *, again: bool
) -> tuple[dict[str, Any], list[str]]:
    """Its loads, and its chunks."""
    package, _, backend = name.partition(":")
    script, chunks = SCRIPTS[package]
    url = server.empty()
    with tempfile.TemporaryDirectory() as state:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_", "PYTHON"))}
        env |= {"DATABASE_URL": url, "STATE": state, "DOCUMENTS": str(documents), "BACKEND": backend}
        env |= {"MODEL": str(model), "HF_HUB_OFFLINE": "1", "ANONYMIZED_TELEMETRY": "false"}
        env |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "COCOINDEX_DISABLE_USAGE_TRACKING": "1"}
        command = [python, Path(__file__).parent / script]
        found = loads(lambda: run(command, env, Path(state)), documents, lambda: [server.process], again)
    with psycopg.connect(url) as connection:
        return found, [text for (text,) in connection.execute(chunks)]


def larder(documents: Path, *, again: bool) -> tuple[dict[str, Any], list[str]]:
    """The loads by `larder index` beside a running `larder up`, which is its start, and its chunks."""
    root = documents.parent
    source = f"{{name: docs, type: markdown, paths: ['./{documents.name}/*.md'], autoIndex: false}}"
    (root / "larder.yaml").write_text(f"rag:\n  sources:\n    - {source}\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "workers.cli"]

    def servers() -> list[psutil.Process]:
        rows = json.loads((root / ".larder" / "state.json").read_text())["processes"]
        [supervisor] = (row["pid"] for row in rows if row["name"] == "supervisor")  # of all others the parent
        return [server.process, psutil.Process(supervisor)]

    try:
        server = Server(root / ".larder")
        run([*command, "up", "--detach", "--no-flower"], env, root)
        time.sleep(5)
        begun = sum(map(processor, servers()))
        found = loads(lambda: run([*command, "index"], env, root), documents, servers, again)
        found["first"]["start"] = begun
        with psycopg.connect(server.url("larder")) as connection:
            rows = connection.execute("select content from chunk").fetchall()
    finally:
        run([*command, "down"], env, root)
        shutil.rmtree(root / ".larder")
    return found, [text for (text,) in rows]


def exported(python: Path, folder: Path) -> Path:
    """The model as OpenVINO reads it, written by sentence-transformers once."""
    code = (
        "import sys; from sentence_transformers import SentenceTransformer as S; "
        "S(sys.argv[1], backend='openvino').save_pretrained(sys.argv[2])"
    )
    if not folder.is_dir():
        env = os.environ | {"HF_HUB_OFFLINE": "1"}
        run([python, "-c", code, MODEL_FILE.locate().parent, folder], env, folder.parent)
    return folder


@contextmanager
def server_in(folder: Path) -> Iterator[Server]:
    folder.mkdir()
    try:
        yield Server(folder)
    finally:
        embedded.stop(folder)


def measure(args: argparse.Namespace, root: Path) -> Iterator[dict[str, Any]]:
    """A row for each peer and round."""
    files = choose(args.folders, args.documents)
    tokenizer, _ = open_tokenizer(MODEL_FILE.locate().parent)
    tokenizer.no_truncation()
    models = {"torch": MODEL_FILE.locate().parent}
    if any(name.endswith(":openvino") for name in args.only):
        models["openvino"] = exported(args.python, args.python.parents[1] / "all-MiniLM-L6-v2-openvino")
    with server_in(root / "postgres") as server:
        for number in range(args.rounds):
            for name in args.only:
                copy(files, root / "docs")
                if name == "larder":
                    found, chunks = larder(root / "docs", again=args.again)
                else:
                    model = models[name.partition(":")[2]]
                    found, chunks = peer(name, args.python, root / "docs", server, model, again=args.again)
                lengths = [len(tokenizer.encode(text).ids) for text in chunks]
                read = sum(min(MAX_TOKENS, length) for length in lengths)
                yield {
                    "peer": name,
                    "round": number,
                    "documents": len(files),
                    "chunks": len(chunks),
                    "tokens": sum(lengths),
                    "read": read,
                    **found,
                }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="of the environment with the peers")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="unchanged and changed, too")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS)
    args = parser.parse_args()
    args.python = args.python.absolute()
    rows = []
    with tempfile.TemporaryDirectory(prefix="larder-compare-") as name:
        for row in measure(args, Path(name)):
            rows.append(row)
            times = "  ".join(
                f"{k} {row[k]['seconds']:7.1f} s {row[k]['processor']:7.1f} cpu"
                for k in ("first", "unchanged", "changed")
                if k in row
            )
            print(f"{row['peer']:<20} {row['chunks']:6} chunks, {row['read']:8} tokens  {times}", flush=True)
            OUT.parent.mkdir(exist_ok=True)
            OUT.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
