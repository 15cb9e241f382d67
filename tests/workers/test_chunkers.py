"""Which chunker a process takes for a document: its source's, its type's, or that of a search index."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import SourceType
from workers.app.ingestion import steps
from workers.runtime import Addresses, Runtime
from workers.settings import load

CONFIG = """
rag:
  chunking: {strategy: recursive, maxSize: 700, overlap: 70}
  sources:
    - {name: docs, type: markdown, paths: a}
    - {name: items, type: pbi_json, paths: a}
    - {name: own, type: pbi_json, paths: a, chunking: {strategy: fixed, maxSize: 300, overlap: 30}}
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    return Runtime(load(tmp_path / "larder.yaml", {}), Addresses())


@pytest.mark.parametrize(
    ("asked", "strategy", "max_size"),
    [
        (("docs", None, ""), "recursive", 700),
        (("items", None, ""), "pbi_aware", 700),
        (("own", None, ""), "fixed", 300),
        (("own", SourceType.PBI, ""), "fixed", 300),
        (("uploaded", None, ""), "recursive", 700),
        (("uploaded", SourceType.PBI, ""), "pbi_aware", 700),
        (("own", None, "semantic"), "semantic", 300),
    ],
)
def test_each_source_is_cut_as_it_is_configured(
    runtime: Runtime, asked: tuple[str, SourceType | None, str], strategy: str, max_size: int
) -> None:
    options = ChunkingOptions(strategy=strategy, max_size=max_size, overlap=max_size // 10)
    name, kind, own = asked
    assert steps.chunkers(runtime, own)(name, kind).version == open_chunker(options, len).version
