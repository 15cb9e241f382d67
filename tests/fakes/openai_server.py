"""A fake of OpenAI's embeddings, and of servers that speak its language, at `{address}/v1`."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

from tests.fakes.embedding_words import Change, Usage, count_tokens, unchanged, word_vector
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer

KEY = "sk-fake-0123456789"
MOST_TEXTS = 2048
MOST_TOKENS = 300_000
MODELS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


def problem(status: int, message: str, *, code: str | None = None, param: str | None = None) -> Answer:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 429 else "requests"
    return Answer(
        status=status,
        json={"error": {"message": message, "type": kind, "param": param, "code": code}},
    )


class FakeOpenAI(FakeServer):
    """Answers `POST /v1/embeddings` with vectors of words; a model may be given a size and a length of its own."""

    def __init__(
        self,
        *,
        key: str = KEY,
        models: Mapping[str, int] | None = None,
        tokens_per_text: int = 8192,
        base64_known: bool = True,
    ) -> None:
        super().__init__()
        self.key = key
        """Empty: no key is asked for, as on a server of one's own."""
        self.models = dict(MODELS if models is None else models)
        self.tokens_per_text = tokens_per_text
        self.base64_known = base64_known
        self.shuffled = True
        """Answers come in another order than the texts, each with its index."""
        self.change: Change = unchanged
        self.refused_words: set[str] = set()
        """A text with one of these words is refused."""
        self.usage = Usage()

    def answer(self, seen: Seen) -> Answer:
        if seen.path != "/v1/embeddings":
            return problem(404, f"Invalid URL (POST {seen.path})")
        if self.key and seen.headers.get("Authorization") != f"Bearer {self.key}":
            shown = seen.headers.get("Authorization", "").removeprefix("Bearer ")
            return problem(401, f"Incorrect API key provided: {shown}.", code="invalid_api_key")
        body = seen.json
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        return self._refusal(body, texts) or self._vectors(body, texts)

    def _refusal(self, body: dict[str, Any], texts: list[str]) -> Answer | None:
        model = body["model"]
        if model not in self.models:
            return problem(404, f"The model `{model}` does not exist", code="model_not_found")
        if "dimensions" in body and not model.startswith("text-embedding-3"):
            return problem(400, "This model does not support specifying dimensions.", param="dimensions")
        return self._refused_texts(texts)

    def _refused_texts(self, texts: list[str]) -> Answer | None:
        if len(texts) > MOST_TEXTS or any(not text for text in texts):
            return problem(400, "'$.input' is invalid.", param="input")
        counts = [count_tokens(text) for text in texts]
        if max(counts) > self.tokens_per_text:
            said = (
                f"This model's maximum context length is {self.tokens_per_text} tokens, however you requested"
            )
            return problem(400, f"{said} {max(counts)} tokens: {texts[0][:50]}")
        if sum(counts) > MOST_TOKENS:
            said = f"Requested {sum(counts)} tokens, max {MOST_TOKENS} tokens per request"
            return problem(400, said, code="max_tokens_per_request")
        if any(word in text.split() for text in texts for word in self.refused_words):
            return problem(400, f"Invalid input: {texts[0][:50]}", param="input")
        return None

    def _vectors(self, body: dict[str, Any], texts: list[str]) -> Answer:
        width = body.get("dimensions") or self.models[body["model"]]
        packed = self.base64_known and body.get("encoding_format") == "base64"
        vectors = self.change([word_vector(text, width, salt=body["model"]) for text in texts])
        items = []
        for index, vector in enumerate(vectors):
            raw = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if packed else vector
            items.append({"object": "embedding", "index": index, "embedding": raw})
        if self.shuffled:
            items.reverse()
        with self.lock:
            self.usage.add(texts)
        tokens = sum(count_tokens(text) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return Answer(json={"object": "list", "data": items, "model": body["model"], "usage": usage})
