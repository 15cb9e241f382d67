"""The languages of the keyword search, from the file to the documents of each source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors import open_source
from connectors.web.limiter import RequestLimiter
from pipeline.documents import LANGUAGE_KEY
from workers.app.search import retriever
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

Loaded = Callable[..., Settings]

FILE = """\
rag:
  language: German
  sources:
    - {name: notes, type: text, paths: ['*.txt']}
    - {name: manual, type: markdown, paths: ['*.md'], language: english, metadata: {team: quay}}
    - {name: backlog, type: pbi_json, paths: ['*.json'], language: french}
"""
NOWHERE = "postgresql://x:x@127.0.0.1:1/x"


def no_limiter() -> RequestLimiter:
    raise AssertionError("files need no limiter")


def test_each_source_tells_its_documents_its_language(loaded: Loaded, here: Path) -> None:
    settings = loaded(FILE)
    for name, content in {
        "a.txt": "Eins",
        "b.md": "# Two",
        "c.json": '[{"id": "P-1", "title": "Trois"}]',
    }.items():
        (here / name).write_text(content)
    told = {
        source.name: [document.metadata.get(LANGUAGE_KEY) for page in pages for document in page.documents]
        for source in settings.rag.sources
        for pages in [open_source(source.with_context(settings.context_of(source, no_limiter))).pages(None)]
    }
    assert told == {"notes": ["german"], "manual": [None], "backlog": ["french"]}


def test_questions_are_stemmed_in_every_language_that_is_in_use(loaded: Loaded) -> None:
    assert loaded("rag: {}").rag.languages == ("english",)
    settings = loaded(FILE)
    assert settings.rag.languages == ("german", "english", "french")
    runtime = Runtime(
        settings,
        Addresses(database=NOWHERE, control=NOWHERE, admin=NOWHERE, broker="redis://127.0.0.1:1/0"),
    )
    assert retriever(runtime, runtime.settings.tenant_id).options.languages == (
        "german",
        "english",
        "french",
    )
    runtime.database.close()


@pytest.mark.parametrize(
    "where", ["rag: {language: klingon}", "rag: {sources: [{name: a, type: text, paths: [a], language: de}]}"]
)
def test_an_unknown_language_is_refused_with_the_known_ones(
    lines: Callable[..., list[str]], where: str
) -> None:
    (line,) = lines(where)
    assert "larder.yaml:1" in line
    assert "one of arabic" in line
    assert "german" in line
