"""What the tests of commands that search share: a configuration, and reading answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.pipeline.stores.corpus import Corpus

CONFIG = """\
rag:
  tenant: acme
  timezone: Europe/Berlin
  embedding: {provider: hashing, dimensions: 32}
  retrieval: {minSimilarity: 0}
"""
Run = Callable[..., Result]


def found(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def titles(result: Result) -> list[str]:
    return [r["metadata"]["title"] for r in found(result)["results"]]


def id_of(corpus: Corpus, title: str) -> str:
    return next(str(one["id"]) for one in corpus.documents() if one["title"].startswith(title))
