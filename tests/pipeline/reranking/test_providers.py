"""Which reranker the options name, and rerankers of another package."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigurationError, ModelMissing, SearchError
from pipeline.reranking import (
    PROVIDERS,
    FolderReranker,
    RerankerUnavailable,
    RerankOptions,
    SentenceTransformerReranker,
    open_reranker,
)
from tests.pipeline.reranking import tiny_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.req("001-047")
def test_nothing_is_opened_unless_it_is_switched_on(tmp_path: Path) -> None:
    assert open_reranker(RerankOptions(model_path=tmp_path / "no folder at all")) is None


@pytest.mark.req("001-024")
def test_a_folder_is_a_cross_encoder_with_the_options_it_was_given(tmp_path: Path) -> None:
    folder = tiny_model.write(tmp_path / "m")
    found = open_reranker(RerankOptions(enabled=True, model_path=folder, batch_size=3, seconds=7.0))
    assert isinstance(found, FolderReranker)
    assert (found._options.batch_size, found._options.seconds) == (3, 7.0)


def test_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_reranker(RerankOptions(enabled=True, provider="magic"))
    assert all(name in caught.value.fix for name in PROVIDERS)


def test_onnx_without_a_folder_says_that_no_model_is_shipped() -> None:
    with pytest.raises(ConfigurationError, match="no model is shipped"):
        open_reranker(RerankOptions(enabled=True, provider="onnx"))


def test_a_name_needs_a_package_and_the_error_says_which() -> None:
    # In a process of its own, where the package is missing whatever is installed here.
    script = """
import sys
sys.modules["sentence_transformers"] = None
from pipeline.errors import ConfigurationError
from pipeline.reranking import RerankOptions, open_reranker
try:
    open_reranker(RerankOptions(enabled=True))
except ConfigurationError as error:
    print(error.exit_code, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("2 ")
    assert "ms-marco-MiniLM-L-6-v2" in done.stdout
    assert "pip install 'sentence-transformers" in done.stdout


def test_its_error_is_one_of_a_search_that_may_work_later() -> None:
    assert issubclass(RerankerUnavailable, SearchError)
    assert RerankerUnavailable().transient
    assert (RerankerUnavailable.code, RerankerUnavailable.name) == ("E004", "SEARCH_FAILURE")


class Overlap:
    """Answers as `sentence_transformers.CrossEncoder` does, with the words in common as logit."""

    def __init__(self, columns: int | None = None, fault: Exception | None = None) -> None:
        self.columns = columns
        self.fault = fault
        self.sizes: list[int] = []

    def predict(self, sentences: list[tuple[str, str]], **options: Any) -> Any:
        assert options == {"batch_size": len(sentences), "show_progress_bar": False}
        if self.fault:
            raise self.fault
        self.sizes.append(len(sentences))
        logits = [float(len(set(q.split()) & set(t.split()))) - 1 for q, t in sentences]
        return np.array(logits) if self.columns is None else np.array([[x] * self.columns for x in logits])


class TestSentenceTransformers:
    def test_scores_are_0_to_1_and_keep_the_models_order(self) -> None:
        model = Overlap()
        found = SentenceTransformerReranker(model, "m", RerankOptions(batch_size=2)).scores(
            "kiln fires clay", ["otter", "kiln fires clay", "kiln"]
        )
        assert found == pytest.approx([0.2689, 0.8808, 0.5], abs=1e-4)
        assert model.sizes == [2, 1]

    def test_it_stops_between_two_batches_when_the_time_is_up(self) -> None:
        clock = itertools.count()
        model = Overlap()
        reranker = SentenceTransformerReranker(
            model, "m", RerankOptions(batch_size=1, seconds=2.5), clock=lambda: float(next(clock))
        )
        with pytest.raises(RerankerUnavailable, match="did not finish"):
            reranker.scores("kiln", ["kiln"] * 3)
        assert model.sizes == [1, 1]

    def test_a_fault_of_the_package_is_ours_without_its_words(self) -> None:
        reranker = SentenceTransformerReranker(Overlap(fault=RuntimeError("secret text")), name="m")
        with pytest.raises(RerankerUnavailable, match="RuntimeError") as caught:
            reranker.scores("kiln", ["kiln"])
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_a_model_with_several_numbers_per_pair_is_refused(self) -> None:
        with pytest.raises(ModelMissing, match=r"\(1, 3\)"):
            SentenceTransformerReranker(Overlap(columns=3), name="m").scores("kiln", ["kiln"])

    def test_a_score_that_is_no_number_is_no_score(self) -> None:
        class Nan(Overlap):
            def predict(self, sentences: list[tuple[str, str]], **options: Any) -> Any:
                return super().predict(sentences, **options) * float("nan")

        with pytest.raises(RerankerUnavailable, match="no number"):
            SentenceTransformerReranker(Nan(), name="m").scores("kiln", ["kiln"])
