"""OpenAI's embeddings, and those of every server that speaks its language: vLLM, LocalAI, LM Studio, TEI."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.embedding import Embedder, EmbeddingOptions, Vectors
from pipeline.embedding.providers.remote import Charged, RemoteEmbedder, RemoteModel, rows_of, unreadable
from pipeline.embedding.providers.service import Access, Service

TOKENS_A_CALL = 300_000


def open_openai(options: EmbeddingOptions) -> Embedder:
    """The model the options name; nothing is sent yet.

    Raises:
        ConfigurationError: dimensions, batch size or key do not fit it.
    """
    model = RemoteModel.of(options)
    calls = Calls(Service(model.access), shortened=_shortened(model), packed=not options.base_url)
    return RemoteEmbedder(model, calls.ask, tokens=TOKENS_A_CALL, charged=calls.charged)


def _shortened(model: RemoteModel) -> int | None:
    """The width to ask for: only models known to give several are told one, most servers refuse the key."""
    return None if model.dimensions == model.facts.dimensions else model.dimensions


class Calls:
    """`POST {base}/embeddings`."""

    def __init__(self, service: Service, *, shortened: int | None = None, packed: bool = False) -> None:
        """`packed` asks for numbers as base64, a quarter of the bytes; not every compatible server knows it."""
        self._service = service
        self.charged = Charged()
        self._more: dict[str, Any] = {} if shortened is None else {"dimensions": shortened}
        if packed:
            self._more["encoding_format"] = "base64"

    def ask(self, texts: Sequence[str]) -> Vectors:
        """A row per text."""
        access = self._service.access
        body = {"model": access.model, "input": list(texts), **self._more}
        answer = self._service.post("embeddings", body)
        items = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise unreadable(access)
        usage = answer.get("usage")
        self.charged.note(usage.get("total_tokens") if isinstance(usage, dict) else None)
        if any("index" in item for item in items):
            items = _in_order(items, access)
        return rows_of([_numbers(item.get("embedding"), access) for item in items], access)


def _in_order(items: list[dict[str, Any]], access: Access) -> list[dict[str, Any]]:
    """By their index, which must name each place once: a text must not get its neighbour's vector."""
    by_index = {item.get("index"): item for item in items}
    if set(by_index) != set(range(len(items))):
        raise unreadable(access)
    return [by_index[n] for n in range(len(items))]


def _numbers(embedding: Any, access: Access) -> Any:
    """A list of numbers, or little-endian floats as base64."""
    if not isinstance(embedding, str):
        return embedding
    try:
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    except (binascii.Error, ValueError):
        raise unreadable(access) from None
