"""Services as recorded: the answers of a case, in the shapes of the real ones, and a source that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from connectors import ProtectedSource
from connectors.documents.options import SourceContext
from connectors.rest.options import RestOptions
from connectors.rest.source import RestSource
from tests.fakes.server import Answer, FakeServer, Seen

FOLDER = Path(__file__).parents[2] / "cases" / "rest"


class Recorded(FakeServer):
    """Gives each request the first answer whose path it has, with its parameters (or texts of the body)."""

    def __init__(self, answers: list[Mapping[str, Any]]) -> None:
        super().__init__()
        self.answers = answers
        self.used: set[int] = set()
        self.unknown: list[str] = []

    def answer(self, seen: Seen) -> Answer:
        for number, recorded in enumerate(self.answers):
            method, _, target = recorded["to"].partition(" ")
            url = urlsplit(target)
            fits = all(seen.query.get(key) == value for key, value in parse_qs(url.query).items())
            body = seen.body.decode()
            if (method, url.path) == (seen.method, seen.path) and fits and recorded.get("body", "") in body:
                self.used.add(number)
                text = json.dumps(recorded["json"]).replace("{address}", self.address)
                headers = {
                    k: v.replace("{address}", self.address) for k, v in recorded.get("headers", {}).items()
                }
                return Answer(body=text, content_type="application/json", headers=headers)
        self.unknown.append(f"{seen.method} {seen.target} {seen.body.decode()[:500]}")
        return Answer(status=404, json={"message": "not recorded"})


@contextmanager
def recorded_source(
    file: Path, observe: Callable[[str, str], object] = lambda _kind, _text: None
) -> Iterator[tuple[ProtectedSource, Recorded]]:
    """A source with the options of a case, and the service that answers it."""
    case = json.loads(file.read_text("utf-8"))
    with Recorded(case["answers"]) as fake:
        section = {"name": "case", "baseUrl": fake.address, "bearer": "t", **case["options"]}
        options = RestOptions.model_validate(section).with_context(SourceContext(observe=observe))
        yield ProtectedSource(RestSource(options), options), fake
