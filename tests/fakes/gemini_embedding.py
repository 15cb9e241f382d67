"""A Gemini for tests that embeds: `:batchEmbedContents` and `:embedContent`, with their limits and quotas.

with FakeGeminiEmbedding() as fake:
    fake.texts_per_minute = 50
    client.models.embed_content(model="gemini-embedding-001", contents=["a", "b"])
    assert (fake.usage.calls, fake.usage.texts) == (1, 2)
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from functools import cache
from typing import Any

from tests.fakes.embedding_words import Change, Usage, count_tokens, unchanged, word_vector
from tests.fakes.gemini_errors import BAD_KEY, quota, refused, retry_info
from tests.fakes.server import Answer, FakeServer, Seen

_PATH = re.compile(r"/v\w+/models/([^/:]+):(batchEmbedContents|embedContent)")
_HALF = re.compile("[\ud800-\udfff]")
NATIVE = 3072
MOST_TEXTS = 100
MOST_BYTES = 4 * 2**20
MODELS = {"gemini-embedding-001": 2048, "gemini-embedding-2": 8192}
"""Name -> tokens it reads; what is longer is cut without a word."""
_BLOCKS = (128, 640, 2304)
"""Each holds all words: a prefix is a worse vector of the same text."""
_TASK_SHARE = 0.3
TASKS = ("RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY")


class Refusal(Exception):
    """What the service says instead of embedding."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class FakeGeminiEmbedding(FakeServer):
    """Both models behind one key."""

    def __init__(self, *, key: str = "key-of-the-tests") -> None:
        super().__init__()
        self.key = key
        self.usage = Usage()
        self.cut = 0
        """Texts that were longer than the model reads: their ends are lost, and nobody is told."""
        self.texts_per_minute: int | None = None
        """Most texts in any `window` seconds: each text of a batch counts as a request."""
        self.texts_per_day: int | None = None
        self.window = 60.0
        self.says_when = True
        """A 429 of the minute tells when to come back."""
        self.change: Change = unchanged
        """What happens to the vectors of each answer before they leave: shorter, fewer, not a number."""
        self._answered: deque[tuple[float, int]] = deque()

    def answer(self, seen: Seen) -> Answer:
        """Like the service: the key first, then the model, then the request, then the quota."""
        match = _PATH.fullmatch(seen.path)
        if match is None or seen.method != "POST":
            return Answer(status=404, body="<html><title>Error 404 (Not Found)!!1</title></html>")
        try:
            self._check_caller(seen, match[1])
            asked = seen.json["requests"] if match[2] == "batchEmbedContents" else [seen.json]
            vectors = self._embed(match[1], asked)
        except Refusal as refusal:
            return refusal.answer
        found = [{"values": vector} for vector in self.change(vectors)]
        return Answer(
            json={"embeddings": found} if match[2] == "batchEmbedContents" else {"embedding": found[0]}
        )

    def _check_caller(self, seen: Seen, model: str) -> None:
        given = seen.headers.get("x-goog-api-key", "") or seen.first("key")
        if not given:
            _refuse(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.")
        if given != self.key:
            _refuse(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", BAD_KEY)
        if model not in MODELS:
            _refuse(404, "NOT_FOUND", f"models/{model} is not found for API version v1.")
        if len(seen.body) > MOST_BYTES:
            _refuse(400, "INVALID_ARGUMENT", f"Request payload size exceeds the limit: {MOST_BYTES} bytes.")

    def _embed(self, model: str, asked: list[dict[str, Any]]) -> list[list[float]]:
        if not 0 < len(asked) <= MOST_TEXTS:
            _refuse(400, "INVALID_ARGUMENT", f"at most {MOST_TEXTS} requests can be in one batch")
        texts = [_text(one) for one in asked]
        if not all(text.strip() for text in texts):
            _refuse(400, "INVALID_ARGUMENT", "* EmbedContentRequest.content: contents is not specified")
        if any(_HALF.search(text) for text in texts):
            _refuse(400, "INVALID_ARGUMENT", "Invalid JSON payload received. Unpaired surrogate in string.")
        vectors = [_vector(_read(text, MODELS[model]), one) for text, one in zip(texts, asked, strict=True)]
        with self.lock:
            self._charge(len(texts))
            self.usage.add(texts)
            self.cut += sum(count_tokens(text) > MODELS[model] for text in texts)
        return vectors

    def _charge(self, texts: int) -> None:
        now = time.monotonic()
        while self._answered and now - self._answered[0][0] >= self.window:
            self._answered.popleft()
        if self.texts_per_day is not None and self.usage.texts + texts > self.texts_per_day:
            _too_many(quota("EmbedContentRequestsPerDayPerProjectPerModel-FreeTier"))
        spent = sum(count for _, count in self._answered)
        if self.texts_per_minute is not None and spent + texts > self.texts_per_minute:
            told = [quota("EmbedContentRequestsPerMinutePerProjectPerModel-FreeTier")]
            if self.says_when:
                at = self._answered[0][0] if self._answered else now
                told.append(retry_info(f"{self.window - (now - at):.9f}s"))
            _too_many(*told)
        self._answered.append((now, texts))


def _refuse(code: int, status: str, message: str, *details: Any) -> None:
    raise Refusal(refused(code, status, message, *details))


def _too_many(*details: Any) -> None:
    _refuse(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", *details)


def _text(one: dict[str, Any]) -> str:
    """All parts of a content together: it gets one vector, however many they are."""
    return "\n".join(part.get("text", "") for part in (one.get("content") or {}).get("parts") or ())


def _read(text: str, tokens: int) -> str:
    """As much of the text as the model reads."""
    count = count_tokens(text)
    return text if count <= tokens else text[: len(text) * tokens // count]


def _vector(text: str, one: dict[str, Any]) -> list[float]:
    """The first numbers of the model's own vector, which alone has length 1; the first ones say the most."""
    width = one.get("outputDimensionality", NATIVE)
    if not 1 <= width <= NATIVE:
        _refuse(400, "INVALID_ARGUMENT", f"output_dimensionality must be between 1 and {NATIVE}")
    task = one.get("taskType", "")
    if task not in (*TASKS, ""):
        _refuse(400, "INVALID_ARGUMENT", f"Invalid value at 'task_type': {task}")
    words = [value for block in _BLOCKS for value in word_vector(text, block)]
    vector = [value + tint for value, tint in zip(words, _colour(task), strict=True)]
    length = math.hypot(*vector)
    return [value / length for value in vector[:width]]


@cache
def _colour(task: str) -> tuple[float, ...]:
    """What a task adds to each number of a vector."""
    return tuple(_TASK_SHARE * value for value in word_vector(f"task {task}", NATIVE))
