"""The cross-encoder on a real ONNX model of our own: order, batches, truncation, time, wrong files."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import ModelMissing
from pipeline.reranking import FolderReranker, RerankerUnavailable, RerankOptions
from tests.pipeline.reranking import tiny_model

QUESTION = "kestrel nests in towers"
TEXTS = (
    "the otter swims in the river",
    "kestrel falcon kestrel falcon kestrel",
    "the kestrel nests of the river and the falcon nests in towers of clay",
    "kiln fires clay",
)


@pytest.fixture
def encoder(tmp_path: Path) -> FolderReranker:
    return FolderReranker(tiny_model.write(tmp_path / "counter"))


SAME = 2e-3
"""How far a score may be off where the processor computes in bf16."""


def sigmoid(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


@pytest.mark.req("001-024")
def test_scores_are_those_of_the_model_squashed_to_0_to_1(encoder: FolderReranker) -> None:
    """2 words and SEP are met; the pair has 2 + 2 words and 3 marks."""
    assert encoder.scores("kiln fires", ["kiln fires"]) == pytest.approx([sigmoid(3 - 0.07)], abs=SAME)
    assert encoder.scores("kiln fires", ["otter swims"]) == pytest.approx([sigmoid(1 - 0.07)], abs=SAME)
    assert encoder.name == "counter"


@pytest.mark.req("001-024", "001-026")
def test_its_order_differs_from_the_first_ranking(encoder: FolderReranker) -> None:
    """By likeness of single texts the page that repeats one word wins; read as a pair, the one that answers."""
    first = HashingEmbedder(256)
    similarities = first.embed_documents(TEXTS) @ first.embed_query("kestrel falcon kestrel nests in towers")
    assert int(np.argmax(similarities)) == 1
    assert int(np.argmax(encoder.scores(QUESTION, TEXTS))) == 2


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_batches_give_the_scores_of_single_pairs_in_the_order_of_the_texts(
    tmp_path: Path, batch_size: int
) -> None:
    encoder = FolderReranker(tiny_model.write(tmp_path / "m"), RerankOptions(batch_size=batch_size))
    singles = [encoder.scores(QUESTION, [text])[0] for text in TEXTS]
    assert len({round(score, 6) for score in singles}) == len(TEXTS)
    assert encoder.scores(QUESTION, TEXTS) == pytest.approx(singles, abs=SAME)


def test_nothing_to_score_is_no_error(encoder: FolderReranker) -> None:
    assert encoder.scores(QUESTION, []) == []


def test_blank_texts_and_half_characters_are_read(encoder: FolderReranker) -> None:
    scores = encoder.scores("\ud83d otter", ["", "otter \udc00"])
    assert scores[1] > scores[0]


def test_two_classes_give_the_share_of_the_second(tmp_path: Path) -> None:
    one = FolderReranker(tiny_model.write(tmp_path / "one"))
    two = FolderReranker(tiny_model.write(tmp_path / "two", tiny_model.counting(classes=2)))
    assert two.scores(QUESTION, TEXTS) == pytest.approx(one.scores(QUESTION, TEXTS), abs=SAME)


def test_a_model_of_32_bit_numbers_is_fed_with_them(tmp_path: Path, encoder: FolderReranker) -> None:
    small = FolderReranker(tiny_model.write(tmp_path / "small", tiny_model.counting(kind=tiny_model.INT32)))
    assert small.scores(QUESTION, TEXTS) == pytest.approx(encoder.scores(QUESTION, TEXTS))


def test_an_only_output_may_have_any_name(tmp_path: Path, encoder: FolderReranker) -> None:
    content = tiny_model.counting(output="relevance", aside=False)
    other = FolderReranker(tiny_model.write(tmp_path / "other", content))
    assert other.scores(QUESTION, TEXTS) == pytest.approx(encoder.scores(QUESTION, TEXTS))


class TestTruncation:
    def test_what_lies_beyond_the_models_length_is_not_read(self, tmp_path: Path) -> None:
        encoder = FolderReranker(tiny_model.write(tmp_path / "m", most=12))
        # 3 marks and 1 word of the question leave 8 words of the text.
        seventh = encoder.scores("otter", ["clay " * 7 + "otter"])
        eighth = encoder.scores("otter", ["clay " * 8 + "otter"])
        assert seventh == pytest.approx([sigmoid(2 - 0.12)], abs=SAME)
        assert eighth == pytest.approx([sigmoid(1 - 0.12)], abs=SAME)

    def test_a_question_longer_than_the_model_leaves_half_of_it_to_the_text(self, tmp_path: Path) -> None:
        encoder = FolderReranker(tiny_model.write(tmp_path / "m", most=13))
        # 10 words of room: 5 for the question, 5 for the text.
        question = "river " * 4 + "otter swims " + "falcon " * 3000
        assert encoder.scores(question, ["the a of and otter"]) == pytest.approx(
            [sigmoid(2 - 0.13)], abs=SAME
        )
        assert encoder.scores(question, ["the a of and swims"]) == pytest.approx(
            [sigmoid(1 - 0.13)], abs=SAME
        )
        assert encoder.scores(question, ["the a of and the otter"]) == pytest.approx(
            [sigmoid(1 - 0.13)], abs=SAME
        )

    @pytest.mark.parametrize(
        ("files", "most"),
        [
            ({}, 512),
            ({"config.json": {"max_position_embeddings": 40}}, 40),
            (
                {
                    "tokenizer_config.json": {"model_max_length": 30},
                    "config.json": {"max_position_embeddings": 40},
                },
                30,
            ),
            ({"tokenizer_config.json": {"model_max_length": 1e30}}, 512),
            ({"config.json": {}}, 512),
        ],
    )
    def test_the_least_length_that_a_file_names_holds(
        self, tmp_path: Path, files: dict[str, object], most: int
    ) -> None:
        folder = tiny_model.write(tmp_path / "m")
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
        assert FolderReranker(folder).max_tokens == most


class TestTime:
    @pytest.mark.req("001-105")
    def test_it_stops_between_two_batches_when_the_time_is_up(self, tmp_path: Path) -> None:
        """A second passes at each look: made, first batch, second batch, third."""
        clock = itertools.count()
        encoder = FolderReranker(
            tiny_model.write(tmp_path / "m"),
            RerankOptions(batch_size=1, seconds=3.5),
            clock=lambda: float(next(clock)),
        )
        assert len(encoder.scores(QUESTION, TEXTS[:3])) == 3
        with pytest.raises(RerankerUnavailable, match=r"3\.5 s") as caught:
            encoder.scores(QUESTION, TEXTS)
        assert caught.value.transient
        assert caught.value.fix

    def test_a_batch_that_runs_is_not_waited_for(self, tmp_path: Path) -> None:
        """The clock stands still, so that no look at it can end the wait. The next question has its turn afterwards."""
        folder = tiny_model.write(tmp_path / "m")
        texts = ["otter " * 500] * 256
        slow = FolderReranker(folder, RerankOptions(batch_size=256, seconds=0.02), clock=lambda: 0.0)
        with pytest.raises(RerankerUnavailable, match="did not finish"):
            slow.scores("river " * 500, texts)
        slow._options = RerankOptions(seconds=60)
        assert slow.scores(QUESTION, TEXTS) == pytest.approx(FolderReranker(folder).scores(QUESTION, TEXTS))


def test_threads_share_it(encoder: FolderReranker) -> None:
    expected = encoder.scores(QUESTION, TEXTS)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: encoder.scores(QUESTION, TEXTS), range(20))) == [expected] * 20


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("missing", "named"),
        [
            (("model.onnx",), "no model.onnx"),
            (("tokenizer.json",), "no tokenizer.json"),
            (("model.onnx", "tokenizer.json"), "no model.onnx and no tokenizer.json"),
        ],
    )
    def test_missing_files_are_named(self, tmp_path: Path, missing: tuple[str, ...], named: str) -> None:
        folder = tiny_model.write(tmp_path / "m")
        for name in missing:
            (folder / name).unlink()
        with pytest.raises(ModelMissing, match=named) as caught:
            FolderReranker(folder)
        assert caught.value.fix

    @pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "config.json"])
    def test_files_that_are_something_else_are_refused(self, tmp_path: Path, name: str) -> None:
        folder = tiny_model.write(tmp_path / "m")
        (folder / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ModelMissing, match=name):
            FolderReranker(folder)

    def test_a_model_that_asks_for_other_inputs_is_refused(self, tmp_path: Path) -> None:
        folder = tiny_model.write(tmp_path / "m", tiny_model.counting(mask="pixel_mask"))
        with pytest.raises(ModelMissing, match="pixel_mask"):
            FolderReranker(folder)

    def test_a_model_with_three_classes_is_refused(self, tmp_path: Path) -> None:
        folder = tiny_model.write(tmp_path / "m", tiny_model.counting(classes=3))
        with pytest.raises(ModelMissing, match=r"\(1, 3\)"):
            FolderReranker(folder)

    def test_a_tokenizer_of_another_model_is_told(self, tmp_path: Path) -> None:
        folder = tiny_model.write(tmp_path / "m", tiny_model.embedding(rows=6))
        encoder = FolderReranker(folder)  # its probe has low numbers only
        with pytest.raises(RerankerUnavailable, match="OpenVINO failed") as caught:
            encoder.scores("falcon", ["falcon"])
        assert "falcon" not in str(caught.value)

    def test_a_score_that_is_no_number_is_no_score(self, tmp_path: Path) -> None:
        folder = tiny_model.write(
            tmp_path / "m", tiny_model.embedding(rows=4 + len(tiny_model.WORDS), last=float("nan"))
        )
        encoder = FolderReranker(folder)
        with pytest.raises(RerankerUnavailable, match="no number"):
            encoder.scores("falcon", ["falcon"])
