"""A fake of Ollama: `/api/embed`."""

from __future__ import annotations

from tests.fakes.embedding_words import Change, Usage, count_tokens, unchanged, word_vector
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer

PULLED = {
    "nomic-embed-text:latest": (768, 8192),
    "mxbai-embed-large:latest": (1024, 512),
    "all-minilm:latest": (384, 256),
    "bge-m3:latest": (1024, 8192),
}
"""Model -> length of its vectors, tokens it reads."""


class FakeOllama(FakeServer):
    """Vectors of words from the models that were pulled."""

    def __init__(self, *, key: str = "") -> None:
        super().__init__()
        self.key = key
        """Asked for by the proxy that people put before it; Ollama itself asks for none."""
        self.pulled = dict(PULLED)
        self.change: Change = unchanged
        self.usage = Usage()

    def answer(self, seen: Seen) -> Answer:
        if self.key and seen.headers.get("Authorization") != f"Bearer {self.key}":
            return Answer(status=401, body="401 Authorization Required", content_type="text/plain")
        body = seen.json
        if seen.path != "/api/embed":
            return Answer(status=404, body="404 page not found", content_type="text/plain")
        name = body["model"] if ":" in body["model"] else f"{body['model']}:latest"
        if name not in self.pulled:
            return Answer(status=404, json={"error": f'model "{name}" not found, try pulling it first'})
        width, tokens = self.pulled[name]
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if max((count_tokens(text) for text in texts), default=0) > tokens:
            if body.get("truncate", True) is False:
                return Answer(status=400, json={"error": "the input length exceeds the context length"})
            texts = [" ".join(text.split()[:tokens]) for text in texts]
        with self.lock:
            self.usage.add(texts)
        vectors = [word_vector(text, width, salt=name) for text in texts]
        return Answer(json={"model": body["model"], "embeddings": self.change(vectors)})
