"""What an operator is told of a reranker that is switched on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.errors import LarderError
from tests.pipeline.reranking import tiny_model
from workers import runtime as runtimes
from workers.app.doctor import doctor, server_checks
from workers.app.health.judgement import Diagnosis
from workers.app.search import retriever
from workers.runtime import Runtime
from workers.settings import load

NOWHERE = "postgresql://x:x@127.0.0.1:1/x"


def looked(root: Path, rerank: str) -> Diagnosis:
    """What the check finds with this configuration; it needs no server."""
    with opened(root, rerank) as runtime:
        return server_checks.reranker(runtime)


@contextmanager
def opened(root: Path, rerank: str) -> Iterator[Runtime]:
    (root / "larder.yaml").write_text(f"rag: {{retrieval: {{rerank: {rerank}}}}}", encoding="utf-8")
    settings = load(root / "larder.yaml", {"LARDER_DATA": str(root / "data")})
    where = runtimes.Addresses(
        database=NOWHERE, control=NOWHERE, admin=NOWHERE, broker="redis://127.0.0.1:1/0"
    )
    made = Runtime(settings, where)
    try:
        yield made
    finally:
        made.database.close()


def test_a_reranker_that_works_tells_how_long_it_takes(tmp_path: Path) -> None:
    tiny_model.write(tmp_path / "tiny")
    found = looked(tmp_path, "{enabled: true, model: ./tiny, candidates: 7}")
    assert found.status == "ok"
    assert "reads 7 texts in 0." in found.detail


def test_none_is_no_finding(tmp_path: Path) -> None:
    assert looked(tmp_path, "{enabled: false, model: ./missing}").status == "ok"


@pytest.mark.parametrize(
    ("folder", "rerank", "words"),
    [
        ("", "{enabled: true, model: ./missing}", "./missing"),
        ("empty", "{enabled: true, model: ./empty}", "model.onnx"),
        ("tiny", "{enabled: true, model: ./tiny, seconds: 0.000001}", "searches go without it"),
    ],
)
def test_one_that_cannot_be_used_is_a_warning_with_the_reason(
    tmp_path: Path, folder: str, rerank: str, words: str
) -> None:
    if folder:
        (tmp_path / folder).mkdir()
    if folder == "tiny":
        tiny_model.write(tmp_path / folder)
    found = looked(tmp_path, rerank)
    assert found.status == "warning"
    assert words in found.detail
    assert found.fix


def test_the_doctor_asks() -> None:
    (check,) = [one for one in doctor.CHECKS if one.name == "reranker"]
    assert check.look is server_checks.reranker
    assert not check.needs_database


@pytest.mark.req("001-105")
def test_what_keeps_it_from_being_loaded_stands_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    with (
        opened(tmp_path, "{enabled: true, model: ./empty}") as runtime,
        caplog.at_level(logging.WARNING),
        pytest.raises(LarderError),
    ):
        retriever(runtime, runtime.settings.tenant_id).reranker()
    assert "searches go without the reranker" in caplog.text
    assert "model.onnx" in caplog.text
