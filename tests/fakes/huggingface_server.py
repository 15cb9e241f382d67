"""A fake of HuggingFace's Inference API, feature extraction only."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.embedding_words import Change, Usage, count_tokens, unchanged, word_vector
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer

TOKEN = "hf_fake0123456789"
MOST_TEXTS = 32
MODELS = {
    "sentence-transformers/all-MiniLM-L6-v2": (384, 256),
    "intfloat/multilingual-e5-small": (384, 512),
    "BAAI/bge-m3": (1024, 8192),
}
"""Model -> length of its vectors, tokens it reads."""


class FakeHuggingFace(FakeServer):
    """Vectors of words for models of sentence-transformers; `per_token` names models that do not pool."""

    def __init__(self, *, token: str = TOKEN) -> None:
        super().__init__()
        self.token = token
        """Empty: an endpoint of one's own without a key."""
        self.models = dict(MODELS)
        self.per_token = {"bert-base-uncased": 768}
        self.loading: float | None = None
        """Seconds that the model still says it needs to load."""
        self.change: Change = unchanged
        self.usage = Usage()

    def answer(self, seen: Seen) -> Answer:
        found = re.fullmatch(r"/models/(.+)/pipeline/feature-extraction", seen.path)
        if found is None:
            return Answer(status=404, body="Not Found", content_type="text/plain")
        if self.token and seen.headers.get("Authorization") != f"Bearer {self.token}":
            return Answer(status=401, json={"error": "Invalid username or password."})
        if self.loading is not None:
            said = {"error": f"Model {found[1]} is currently loading", "estimated_time": self.loading}
            return Answer(status=503, json=said)
        return self._vectors(found[1], seen.json)

    def _vectors(self, model: str, body: dict[str, Any]) -> Answer:
        texts = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
        if model in self.per_token:
            width = self.per_token[model]
            return Answer(json=[[word_vector(w, width) for w in text.split()] for text in texts])
        if model not in self.models:
            return Answer(status=400, json={"error": "Model not supported by provider hf-inference"})
        if len(texts) > MOST_TEXTS:
            said = f"batch size {len(texts)} > maximum allowed batch size {MOST_TEXTS}"
            return Answer(status=422, json={"error": said, "error_type": "Validation"})
        width, tokens = self.models[model]
        longest = max(count_tokens(text) for text in texts)
        if longest > tokens and not body.get("truncate"):
            said = f"Input validation error: `inputs` must have less than {tokens} tokens. Given: {longest}"
            return Answer(status=413, json={"error": said, "error_type": "Validation"})
        with self.lock:
            self.usage.add(texts)
        vectors = [word_vector(text, width, salt=model) for text in texts]
        return Answer(json=self.change(vectors))
