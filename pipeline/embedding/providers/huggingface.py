"""The Inference API of HuggingFace: feature extraction, at its router or at an endpoint of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.embedding import Embedder, EmbeddingOptions, Vectors
from pipeline.embedding.providers.remote import RemoteEmbedder, RemoteModel, rows_of
from pipeline.embedding.providers.service import Service
from pipeline.errors import EmbedderRefused


def open_huggingface(options: EmbeddingOptions) -> Embedder:
    """The model the options name; nothing is sent yet.

    Raises:
        ConfigurationError: dimensions, batch size or key do not fit it.
    """
    model = RemoteModel.of(options)
    return RemoteEmbedder(model, Calls(Service(model.access)).ask)


class Calls:
    """`POST {base}/models/{model}/pipeline/feature-extraction`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def ask(self, texts: Sequence[str]) -> Vectors:
        """A row per text.

        Raises:
            EmbedderRefused: the model answers with a vector per token. How those become one vector (their mean,
                the first one, the last one) is part of a model; guessing would only look like working.
        """
        access = self._service.access
        path = f"models/{access.model}/pipeline/feature-extraction"
        # Without `truncate: false` a server with automatic cutting would cut long texts in silence.
        body = {"inputs": list(texts), "normalize": True, "truncate": False}
        answer = self._service.post(path, body)
        if _depth(answer) > 2:  # noqa: PLR2004 - texts and numbers; a third level is tokens
            raise EmbedderRefused(
                f"{access} answers with a vector per token: {access.model} is no model for whole texts",
                fix="use a model of sentence-transformers, whose card names a pooling",
            )
        return rows_of(answer, access)


def _depth(value: object) -> int:
    """How many lists are inside each other, looking at the first item of each."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return depth
