"""A Gemini for tests that writes: `:generateContent`, with the answers nobody hopes for.

with FakeGeminiText() as fake:
    fake.write = lambda asked: json.dumps({"sentences": []})
    client.models.generate_content(model=fake.model, contents="...")
    assert fake.asked[0].prompt.startswith("...")
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.gemini_errors import BAD_KEY, refused
from tests.fakes.server import Answer, FakeServer, Seen

_PATH = re.compile(r"/(v\w+)/models/([^/:]+):generateContent")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as the model reads it."""

    system: str
    prompt: str
    config: dict[str, Any]
    """`generationConfig`."""


class FakeGeminiText(FakeServer):
    """One model behind one key."""

    def __init__(self, *, key: str = "key-of-the-tests", model: str = "gemini-2.5-flash") -> None:
        super().__init__()
        self.key = key
        self.model = model
        self.write: Callable[[Asked], str] = lambda _asked: json.dumps({})
        """What the model writes."""
        self.finish_reason = "STOP"
        self.block_reason = ""
        """Not empty: the prompt is blocked, and there is no candidate."""
        self.silent = False
        """The candidate has no text."""
        self.asked: list[Asked] = []

    def answer(self, seen: Seen) -> Answer:
        """Like the service: the key first, then the model, then the request."""
        match = _PATH.fullmatch(seen.path)
        if match is None or seen.method != "POST":
            return Answer(status=404, body="<html><title>Error 404 (Not Found)!!1</title></html>")
        given = seen.headers.get("x-goog-api-key", "") or seen.first("key")
        if not given:
            return refused(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.")
        if given != self.key:
            return refused(
                400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", BAD_KEY
            )
        if match[2] != self.model:
            return refused(404, "NOT_FOUND", f"models/{match[2]} is not found for API version {match[1]}.")
        asked = _asked(seen.json)
        if not asked.prompt:
            return refused(
                400, "INVALID_ARGUMENT", "* GenerateContentRequest.contents: contents is not specified"
            )
        with self.lock:
            self.asked.append(asked)
        return Answer(json=self._written(asked))

    def _written(self, asked: Asked) -> dict[str, Any]:
        usage = {"promptTokenCount": len(asked.prompt) // 4, "totalTokenCount": len(asked.prompt) // 4}
        if self.block_reason:
            return {"promptFeedback": {"blockReason": self.block_reason}, "usageMetadata": usage}
        candidate: dict[str, Any] = {"finishReason": self.finish_reason, "index": 0}
        if not self.silent:
            candidate["content"] = {"role": "model", "parts": [{"text": self.write(asked)}]}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": self.model}


def _asked(body: dict[str, Any]) -> Asked:
    return Asked(
        system=_text(body.get("systemInstruction") or {}),
        prompt="\n".join(_text(content) for content in body.get("contents") or ()),
        config=body.get("generationConfig") or {},
    )


def _text(content: dict[str, Any]) -> str:
    return "\n".join(part.get("text", "") for part in content.get("parts") or ())
