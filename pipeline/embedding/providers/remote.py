"""Models of services over HTTP: OpenAI and all that speak its language, Ollama, HuggingFace."""

from __future__ import annotations

import base64
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors, unit
from pipeline.embedding.known_models import KNOWN, ModelFacts, refuse_misfits
from pipeline.embedding.providers.http_service import LASTS, HttpService, judge
from pipeline.embedding.token_bound import MARKS, counter
from pipeline.errors import EmbedderRefused, EmbedderUnavailable, TextRejected

UNKNOWN_TOKENS = 512
"""What a model that is not known here surely reads; most read this much or more."""
TOKENS_A_CALL = 300_000
"""Of OpenAI, and taken for every server that speaks its language."""
_NOT_FOUND = 404


class RemoteEmbedder(ABC):
    """Puts a model's prefixes before the texts, asks the service, and brings its vectors to length 1."""

    tokens_a_call: ClassVar[int | None] = None

    def __init__(self, options: EmbeddingOptions) -> None:
        """Nothing is sent yet.

        Raises:
            ConfigurationError: dimensions, batch size or key do not fit the model.
        """
        refuse_misfits(options)
        provider = KNOWN[options.provider]
        self.model = provider.named(options.model)
        self.dimensions = provider.dimensions_of(options.model, options.dimensions) or 0
        unknown = ModelFacts(dimensions=self.dimensions, tokens=UNKNOWN_TOKENS)
        self._facts = provider.of(options.model) or unknown
        self.count_tokens = counter(english=self._facts.english)
        prefixes = (self._facts.document_prefix, self._facts.query_prefix)
        own = max(map(self.count_tokens, prefixes)) + MARKS
        self.limits = EmbedderLimits(
            texts=options.batch_size or provider.batch,
            tokens_per_text=max(1, (options.max_tokens or self._facts.tokens) - own),
            tokens=self.tokens_a_call,
            empty=False,
        )
        self._public = not options.base_url
        self._charged = threading.local()
        self._service = HttpService(
            title=provider.title,
            model=self.model,
            base_url=options.base_url or provider.base_url,
            key=options.api_key,
            timeout=options.timeout,
        )

    @property
    def used_tokens(self) -> int | None:
        """What the service charged for the last call of this thread; None if it did not tell."""
        tokens = getattr(self._charged, "tokens", None)
        return tokens if isinstance(tokens, int) and tokens > 0 else None

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: may work later.
            EmbedderRefused: key, model, plan or address are refused.
            TextTooLong, TextRejected: one of these texts is refused; smaller calls tell which.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return self._embedded(self._facts.document_prefix, texts)

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); errors as for documents."""
        rows = self._embedded(self._facts.query_prefix, [text])
        if len(rows) != 1:
            raise self._unreadable()
        vector: Vectors = rows[0]
        return vector

    def _embedded(self, prefix: str, texts: Sequence[str]) -> Vectors:
        # Servers written in C would end a text at a NUL and say nothing.
        rows = self._ask([prefix + text.replace("\0", " ") for text in texts])
        with self._reading(), np.errstate(over="ignore"):
            numbers = np.asarray(rows, dtype=np.float64)
            if numbers.ndim != 2:  # noqa: PLR2004 - rows and columns
                raise ValueError("rows")
            return unit(numbers.astype(np.float32))

    @abstractmethod
    def _ask(self, texts: list[str]) -> Any:
        """One call: a list of numbers per text. What the service says it charged is noted in `_charged.tokens`."""

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Around the reading of an answer, whose form is taken for granted inside."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._unreadable() from None

    def _unreadable(self) -> EmbedderUnavailable:
        return EmbedderUnavailable(f"{self._service} sent an answer without embeddings in it", fix=LASTS)


class OpenAiEmbedder(RemoteEmbedder):
    """`POST {base}/embeddings`, of OpenAI and of vLLM, LocalAI, LM Studio, TEI."""

    tokens_a_call = TOKENS_A_CALL

    def _ask(self, texts: list[str]) -> Any:
        body: dict[str, Any] = {"model": self.model, "input": texts}
        if self.dimensions != self._facts.dimensions:  # most servers refuse the key
            body["dimensions"] = self.dimensions
        if self._public:  # a quarter of the bytes; not every compatible server knows it
            body["encoding_format"] = "base64"
        answer = self._service.post("embeddings", body)
        with self._reading():
            items = answer["data"]
            if any("index" in item for item in items):
                # Each place must be named once: a text must not get its neighbour's vector.
                by_index = {item["index"]: item for item in items}
                items = [by_index[n] for n in range(len(items))]
            usage = answer.get("usage")
            self._charged.tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
            return [_numbers(item["embedding"]) for item in items]


def _numbers(embedding: Any) -> Any:
    """A list of numbers, or little-endian floats as base64."""
    if not isinstance(embedding, str):
        return embedding
    return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")


class HuggingFaceEmbedder(RemoteEmbedder):
    """`POST {base}/models/{model}/pipeline/feature-extraction`, at the router or at an endpoint of one's own."""

    def _ask(self, texts: list[str]) -> Any:
        # Without `truncate: false` a server with automatic cutting would cut long texts in silence.
        body = {"inputs": texts, "normalize": True, "truncate": False}
        rows = self._service.post(f"models/{self.model}/pipeline/feature-extraction", body)
        with self._reading():
            by_token = (
                bool(rows) and isinstance(rows[0], list) and bool(rows[0]) and isinstance(rows[0][0], list)
            )
        if by_token:
            # How vectors of tokens become one (their mean, the first, the last) is part of a model: no guessing.
            raise EmbedderRefused(
                f"{self._service} answers with a vector per token: {self.model} is no model for whole texts",
                fix="use a model of sentence-transformers, whose card names a pooling",
            )
        return rows


class OllamaEmbedder(RemoteEmbedder):
    """`POST /api/embed`, or `/api/embeddings` on a server from before 2024, text by text.

    Which of both is decided by the first answer, once for this object. The older one cuts a long text without a word,
    so there the count of tokens before the call is the only guard.
    """

    _old_server = False

    def _ask(self, texts: list[str]) -> Any:
        if not self._old_server:
            # Without `truncate: false` a long text would be cut in silence.
            answer = self._answer("embed", {"input": texts, "truncate": False})
            if answer is not None:
                with self._reading():
                    self._charged.tokens = answer.get("prompt_eval_count")
                    return answer["embeddings"]
            self._old_server = True
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> Any:
        answer = self._answer("embeddings", {"prompt": text})
        if answer is None:
            raise EmbedderRefused(
                f"{self._service} answered 404: it knows neither /api/embed nor /api/embeddings",
                fix="check embedding.baseUrl: it is the server's address without /api",
            )
        with self._reading():
            embedding = answer["embedding"]
        if embedding == []:
            raise TextRejected(f"{self._service} has no vector for a text", fix="leave this text out")
        return embedding

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        """The answer's JSON; None if the server does not know the path, which it says in plain text."""
        answer = self._service.send(f"api/{path}", {"model": self.model, **body})
        if answer.status == _NOT_FOUND:
            said = answer.json()
            if not (isinstance(said, dict) and "error" in said):
                return None
            raise EmbedderRefused(
                f"{self._service} answered 404: it has no model {self.model}", fix=f"ollama pull {self.model}"
            )
        return judge(answer, self._service)


_SERVICES: Mapping[str, type[RemoteEmbedder]] = {
    "openai": OpenAiEmbedder,
    "ollama": OllamaEmbedder,
    "huggingface": HuggingFaceEmbedder,
}


def open_remote(options: EmbeddingOptions) -> Embedder:
    """The service's model that the options name; nothing is sent yet. Raises as `RemoteEmbedder`."""
    return _SERVICES[options.provider](options)
