"""The embedders that the contract is run for: a line each, and for a service the fake that stands in for it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pipeline.embedding import Embedder, EmbeddingOptions, Vectors
from pipeline.embedding.calls import open_embedder
from tests.fakes.faults import Fault
from tests.fakes.gemini_embedding import FakeGeminiEmbedding
from tests.fakes.gemini_errors import retry_info
from tests.fakes.gemini_errors import too_many as gemini_too_many
from tests.fakes.huggingface_server import TOKEN as HUGGINGFACE_TOKEN
from tests.fakes.huggingface_server import FakeHuggingFace
from tests.fakes.ollama_server import FakeOllama
from tests.fakes.openai_server import KEY as OPENAI_KEY
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.server import FakeServer


@dataclass(frozen=True, kw_only=True)
class Service:
    """What the contract must know of a service to make it misbehave."""

    fake: Callable[[], FakeServer]
    """Has a `change`, applied to the vectors of each answer before they leave."""
    key: str
    """The one key that the fake takes."""
    too_many: Callable[[float | None], Fault]
    """A 429 that says when to come back, in seconds, or does not."""
    path: str = ""
    """Of the API, behind the fake's address."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An embedder under contract."""

    options: EmbeddingOptions
    same: float = 1e-6
    """How far two vectors of one text may lie apart."""
    service: Service | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """A candidate, its service started."""

    candidate: Candidate
    options: EmbeddingOptions
    fake: FakeServer | None = None

    def open(self, **changes: object) -> Embedder:
        """A new embedder."""
        return open_embedder(replace(self.options, **changes))  # type: ignore[arg-type]


def vectors_of(options: EmbeddingOptions, texts: Sequence[str]) -> Vectors:
    """Of an embedder that is opened for it."""
    return open_embedder(options).embed_documents(texts)


def used_before_and_after_a_fork(options: EmbeddingOptions) -> tuple[int, float]:
    """How a child ended that compared its vectors with its parent's, and how far the parent's own have moved."""
    embedder = open_embedder(options)

    def moved() -> float:
        return float(abs(embedder.embed_documents(["one", "two"]) - before).max())

    before = embedder.embed_documents(["one", "two"])
    child = os.fork()
    if not child:
        os._exit(0 if moved() < 1e-4 else 1)
    after = moved()
    return os.waitpid(child, 0)[1], after


@contextmanager
def running(name: str) -> Iterator[Running]:
    """The candidate of this name, with its service on loopback if it has one."""
    candidate = CANDIDATES[name]
    service = candidate.service
    if service is None:
        yield Running(candidate=candidate, options=candidate.options)
        return
    with service.fake() as fake:
        options = replace(candidate.options, base_url=fake.address + service.path, api_key=service.key)
        yield Running(candidate=candidate, options=options, fake=fake)


def _gemini(model: str, dimensions: int | None = None) -> Candidate:
    return Candidate(
        options=EmbeddingOptions(provider="gemini", model=model, dimensions=dimensions),
        service=Service(
            fake=lambda: FakeGeminiEmbedding(key="key-of-the-tests"),
            key="key-of-the-tests",
            too_many=lambda s: gemini_too_many(*([] if s is None else [retry_info(f"{s}s")])),
        ),
    )


def _busy(header: Callable[[float], tuple[str, str]]) -> Callable[[float | None], Fault]:
    """A 429 that says in a header when to come back."""

    def fault(seconds: float | None) -> Fault:
        headers = {} if seconds is None else dict([header(seconds)])
        return Fault.status(429, headers=headers, body=b'{"error": "busy"}', content_type="application/json")

    return fault


_whole_seconds = _busy(lambda s: ("Retry-After", str(math.ceil(s))))

CANDIDATES: Mapping[str, Candidate] = {
    "minilm": Candidate(options=EmbeddingOptions(provider="minilm"), same=1e-5),
    "hashing": Candidate(options=EmbeddingOptions(provider="hashing"), same=0.0),
    "gemini": _gemini("gemini-embedding-001"),
    "gemini 2": _gemini("gemini-embedding-2", 1536),
    "openai": Candidate(
        options=EmbeddingOptions(provider="openai"),
        service=Service(
            fake=FakeOpenAI,
            key=OPENAI_KEY,
            too_many=_busy(lambda s: ("retry-after-ms", str(round(1000 * s)))),
            path="/v1",
        ),
    ),
    "ollama": Candidate(
        options=EmbeddingOptions(provider="ollama", model="mxbai-embed-large"),
        service=Service(
            fake=lambda: FakeOllama(key="key-of-the-tests"), key="key-of-the-tests", too_many=_whole_seconds
        ),
    ),
    "huggingface": Candidate(
        options=EmbeddingOptions(provider="huggingface"),
        service=Service(fake=FakeHuggingFace, key=HUGGINGFACE_TOKEN, too_many=_whole_seconds),
    ),
}
SERVICES = tuple(name for name, candidate in CANDIDATES.items() if candidate.service)
