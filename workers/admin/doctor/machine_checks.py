"""The doctor's look at this machine: model files, sources, disk."""

from __future__ import annotations

import shutil
import socket
import time
from urllib.parse import urlsplit
from urllib.request import getproxies

from pipeline.embedding import open_embedder
from pipeline.embedding.known_models import KNOWN
from pipeline.errors import LarderError
from pipeline.reranking import open_reranker
from workers.admin import operations
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.runtime import Runtime

GIGABYTE = 1_000_000_000
QUESTION, TEXT = "What warns of shallow water at the bar?", "The bar is shallow at low water. " * 30
"""As long as a usual chunk."""
LEAST_BYTES, LITTLE_BYTES = 1 * GIGABYTE, 5 * GIGABYTE


def model(parts: Runtime) -> Diagnosis:
    """The model's files are there and have the expected content, or its service has an address."""
    options = parts.embedding_options
    embedder = open_embedder(options)
    provider = KNOWN.get(options.provider)
    host = urlsplit(options.base_url or (provider.base_url if provider else "")).hostname
    # A proxy knows hosts that this machine need not know.
    if host and not getproxies() and not _known(host):
        return warning(
            f"the host {host} of {embedder.model} is not known here: nothing new is embedded, and searches find by"
            " words alone (level 3)",
            "look at the network and its name servers, or correct embedding.baseUrl",
        )
    return fine(f"{embedder.model}, {embedder.dimensions} dimensions")


def _known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def reranker(parts: Runtime) -> Diagnosis:
    """The model of the second look, if one is switched on, answers in the time it has."""
    options = parts.rerank_options
    if not options.enabled:
        return fine("none is switched on")
    try:
        made = open_reranker(options)
        begun = time.monotonic()
        if made is not None:
            made.scores(QUESTION, [TEXT] * options.candidates)
        took = time.monotonic() - begun
    except LarderError as failed:
        # Searches answer without it, at level 1.
        fix = failed.fix or "correct retrieval.rerank, or switch it off"
        return warning(f"searches go without it: {failed.message}", fix)
    return fine(f"{options.model} reads {options.candidates} texts in {took:.2f} of {options.seconds:g} s")


def sources(parts: Runtime) -> Diagnosis:
    """Every configured source can be read."""
    checked = operations.check(parts, [])
    bad = [one["source"] for one in checked if not one["ok"]]
    if bad:
        return warning(f"something is wrong with {', '.join(bad)}", f"larder sources check {bad[0]}")
    return fine(f"{len(checked)} configured sources can be read")


def disk(parts: Runtime) -> Diagnosis:
    """There is room where the data lie."""
    folder = parts.settings.data
    while not folder.exists():
        folder = folder.parent
    return judge_disk(shutil.disk_usage(folder).free, str(folder))


def judge_disk(free: int, folder: str) -> Diagnosis:
    """Are so many free bytes enough?"""
    detail = f"{free / GIGABYTE:.1f} GB free at {folder}"
    if free < LEAST_BYTES:
        return error(detail, "make room: PostgreSQL stops when its disk is full")
    if free < LITTLE_BYTES:
        return warning(detail, "make room soon; `larder clear` and the logs folder are places to begin")
    return fine(detail)
