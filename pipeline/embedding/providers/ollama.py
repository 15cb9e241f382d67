"""Models served by Ollama."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.embedding import Embedder, EmbeddingOptions, Vectors
from pipeline.embedding.providers.answers import Answer, judge
from pipeline.embedding.providers.remote import Charged, RemoteEmbedder, RemoteModel, rows_of, unreadable
from pipeline.embedding.providers.service import Service
from pipeline.errors import EmbedderRefused, TextRejected

_NOT_FOUND = 404


def open_ollama(options: EmbeddingOptions) -> Embedder:
    """The model the options name; nothing is sent yet. A model that is not in memory takes its time at first.

    Raises:
        ConfigurationError: dimensions or batch size do not fit it.
    """
    model = RemoteModel.of(options)
    calls = Calls(Service(model.access))
    return RemoteEmbedder(model, calls.ask, charged=calls.charged)


class Calls:
    """`POST /api/embed`, or `/api/embeddings` on a server from before 2024, text by text.

    Which of both is decided by the first answer, once for this object. They give the same vectors: those of the
    older one have not length 1, which `RemoteEmbedder` mends. The older one cuts a long text without a word, so
    there the count of tokens before the call is the only guard.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.charged = Charged()
        self._old_server = False

    def ask(self, texts: Sequence[str]) -> Vectors:
        """A row per text."""
        if not self._old_server:
            # Without `truncate: false` a long text would be cut in silence.
            answer = self._sent("embed", {"input": list(texts), "truncate": False})
            if answer is not None:
                self.charged.note(answer.get("prompt_eval_count"))
                return rows_of(answer.get("embeddings"), self._service.access)
            self._old_server = True
        return rows_of([self._one(text) for text in texts], self._service.access)

    def _one(self, text: str) -> list[float]:
        access = self._service.access
        answer = self._sent("embeddings", {"prompt": text})
        if answer is None:
            raise EmbedderRefused(
                f"{access} answered 404: it knows neither /api/embed nor /api/embeddings",
                fix="check embedding.baseUrl: it is the server's address without /api",
            )
        embedding = answer.get("embedding")
        if not isinstance(embedding, list):
            raise unreadable(access)
        if not embedding:
            raise TextRejected(f"{access} has no vector for a text", fix="leave this text out")
        return embedding

    def _sent(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer's mapping; None if the server does not know the path."""
        access = self._service.access
        answer = self._service.send(f"api/{path}", {"model": access.model, **body})
        if answer.status == _NOT_FOUND:
            if not _is_ollamas(answer):
                return None
            raise EmbedderRefused(
                f"{access} answered 404: it has no model {access.model}", fix=f"ollama pull {access.model}"
            )
        found = judge(answer, access)
        if not isinstance(found, dict):
            raise unreadable(access)
        return found


def _is_ollamas(answer: Answer) -> bool:
    """Whether a 404 speaks of a model: a path that is not known is answered in plain text."""
    body = answer.json()
    return isinstance(body, dict) and "error" in body
