"""The actions of YAML engines: what each answers, and that an error is an answer too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pipeline.actions.actions import SLICE
from pipeline.embedding.providers.hashing import HashingEmbedder
from tests.pipeline.acting import TEXTS, Registry, engine, refused, registry_of


@pytest.fixture
def registry() -> Registry:
    return registry_of(engine())


@pytest.mark.req("003-001", "003-021", "003-028")
def test_embedding_create_single(registry: Registry) -> None:
    answer = registry["embedding.create"]({}, TEXTS[0])
    assert set(answer) == {"embedding", "model", "dimensions"}
    assert answer["embedding"] == HashingEmbedder(64).embed_documents([TEXTS[0]])[0].tolist()
    assert (answer["model"], answer["dimensions"]) == ("hashing-64", 64)
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.req("003-006", "003-021", "003-029")
@pytest.mark.parametrize("batch", [True, False])
def test_embedding_create_batch(registry: Registry, batch: bool) -> None:
    answer = registry["embedding.create"](state={}, text=TEXTS, batch=batch, step="a key of the engine's own")
    assert set(answer) == {"embeddings", "model", "count"}
    assert answer["embeddings"] == HashingEmbedder(64).embed_documents(TEXTS).tolist()
    assert (answer["model"], answer["count"]) == ("hashing-64", 3)


def test_embedding_create_batch_of_one_and_of_none(registry: Registry) -> None:
    assert registry["embedding.create"]({}, TEXTS[0], batch=True)["count"] == 1
    answer = registry["embedding.create"]({}, [])
    assert answer == {"embeddings": [], "model": "hashing-64", "count": 0}


def test_embedding_create_with_another_length_per_call(registry: Registry) -> None:
    assert registry["embedding.create"]({}, TEXTS[0], dimensions=32)["dimensions"] == 32
    assert registry["embedding.create"]({}, TEXTS[0])["dimensions"] == 64


@pytest.mark.req("003-025", "003-028")
@pytest.mark.parametrize("text", [None, 7, {"a": 1}, ["good", None], b"bytes"])
def test_embedding_create_refuses_what_is_no_text(registry: Registry, text: Any) -> None:
    assert "(give " in refused(registry["embedding.create"]({}, text))


@pytest.mark.req("003-002", "003-022", "003-028")
def test_vector_store_single(registry: Registry) -> None:
    answer = registry["vector.store"]({}, TEXTS[0], metadata={"type": "rule"}, ids="r1", collection="rules")
    assert answer == {"stored": 1, "collection": "rules", "ids": ["r1"]}
    (found,) = registry["vector.query"]({}, TEXTS[0], collection="rules")["results"]
    assert (found["id"], found["text"], found["metadata"]) == ("r1", TEXTS[0], {"type": "rule"})


@pytest.mark.req("003-006", "003-022", "003-029")
def test_vector_store_batch(registry: Registry) -> None:
    answer = registry["vector.store"]({}, TEXTS, metadata=[{"n": 0}, None, {"n": 2}])
    assert (answer["stored"], answer["collection"]) == (3, "default")
    assert len({UUID(i) for i in answer["ids"]}) == 3
    found = registry["vector.query"]({}, "tide", k=9)["results"]
    assert {f["id"]: f["metadata"] for f in found} == dict(
        zip(answer["ids"], [{"n": 0}, {}, {"n": 2}], strict=True)
    )


@pytest.mark.req("003-022", "003-033", "003-037")
def test_vector_store_auto_embed(registry: Registry) -> None:
    """Vectors made by the store are those that embedding.create makes; vectors that are given are taken as they are."""
    registry["vector.store"]({}, TEXTS[:1], ids=["own"])
    (found,) = registry["vector.query"]({}, TEXTS[0], include_embeddings=True)["results"]
    assert found["embedding"] == registry["embedding.create"]({}, TEXTS[0])["embedding"]
    registry["vector.store"](
        {}, ["x", "y"], embeddings=[[1.0, 0.0], [0.0, 1.0]], ids=["x", "y"], collection="given"
    )
    registry["vector.store"]({}, "z", embeddings=[-1.0, 0.0], ids="z", collection="given")
    answer = registry["vector.query"](
        {}, "", embedding=[1.0, 0.0], collection="given", include_embeddings=True
    )
    assert [(f["id"], f["score"]) for f in answer["results"]] == [("x", 1.0), ("y", 0.0), ("z", -1.0)]
    assert answer["results"][1]["embedding"] == [0.0, 1.0]


@pytest.mark.req("003-033")
def test_vector_store_handles_duplicate_ids(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS[:2], ids=["a", "b"])
    answer = registry["vector.store"]({}, [TEXTS[2], "first", "last"], ids=["a", "c", "c"])
    assert answer == {"stored": 2, "collection": "default", "ids": ["a", "c", "c"]}
    found = registry["vector.query"]({}, "x", k=9)["results"]
    assert {f["id"]: f["text"] for f in found} == {"a": TEXTS[2], "b": TEXTS[1], "c": "last"}


@pytest.mark.req("003-026", "003-030")
def test_vector_store_rejects_mismatched_dimensions(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS)
    message = refused(registry["vector.store"]({}, "short", embeddings=[1.0, 2.0]))
    assert "has 2 dimensions, the collection 'default' has 64" in message
    message = refused(registry["vector.store"]({}, "short", dimensions=32))
    assert "has 32 dimensions" in message
    assert "has 32 dimensions" in refused(registry["vector.query"]({}, "tide", dimensions=32))
    assert len(registry["vector.query"]({}, "tide", k=9)["results"]) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": ["a", "b"]},
        {"ids": "a"},
        {"metadata": [{}]},
        {"metadata": [1, 2, 3]},
        {"metadata": [{"x": object()}, {}, {}]},
        {"embeddings": [[1.0]]},
        {"embeddings": [[1.0], [float("nan")], [1.0]]},
        {"embeddings": [[1.0], ["x"], [1.0]]},
        {"embeddings": [[1.0], [], [1.0]]},
        {"embeddings": [[1.0], [float("inf")], [1.0]]},
        {"embeddings": [[1.0], [1e39], [1.0]]},
        {"embeddings": [[1.0], [1.0, 2.0], [1.0]]},
        {"ids": ["a", "", "c"]},
        {"ids": ["a", 7, "c"]},
        {"ids": ["a", "x" * 201, "c"]},
        {"collection": ""},
        {"collection": 7},
    ],
)
@pytest.mark.req("003-025")
def test_vector_store_refuses_what_does_not_fit_and_stores_nothing(
    registry: Registry, wrong: dict[str, Any]
) -> None:
    refused(registry["vector.store"]({}, TEXTS, **wrong))
    assert registry["vector.query"]({}, "tide")["results"] == []


def test_lists_of_known_lengths_are_compared_before_anything_is_stored(registry: Registry) -> None:
    texts = [f"text {n}" for n in range(2 * SLICE)]
    message = refused(registry["vector.store"]({}, texts, ids=[f"id {n}" for n in range(2 * SLICE - 1)]))
    assert message == f"the numbers differ: {2 * SLICE} texts, {2 * SLICE - 1} ids (give one entry per text)"


@pytest.mark.req("003-006", "003-027")
def test_vector_store_takes_long_streams_in_slices(registry: Registry) -> None:
    drawn: list[int] = []
    store = registry["vector.store"].__self__._resources.store()  # type: ignore[attr-defined]
    sizes: list[int] = []
    add = store.add

    def watched(collection: str, entries: list[Any], *, model: str) -> None:
        sizes.append(len(entries))
        assert drawn[-1] < sum(sizes), "texts were drawn ahead"
        add(collection, entries, model=model)

    store.add = watched

    def texts() -> Iterator[str]:
        for n in range(2 * SLICE + 5):
            drawn.append(n)
            yield f"text {n}"

    answer = registry["vector.store"]({}, texts(), ids=(f"id {n}" for n in range(2 * SLICE + 5)))
    assert sizes == [SLICE, SLICE, 5]
    assert (answer["stored"], answer["ids"][-1]) == (2 * SLICE + 5, f"id {2 * SLICE + 4}")


@pytest.mark.req("003-025", "003-027")
@pytest.mark.parametrize("ids", [SLICE + 1, SLICE + 3])
def test_a_stream_that_fails_late_says_what_is_in(registry: Registry, ids: int) -> None:
    answer = registry["vector.store"](
        {}, (f"text {n}" for n in range(SLICE + 2)), ids=(f"id {n}" for n in range(ids))
    )
    assert "the numbers of texts, ids, metadata and embeddings differ" in answer["error"]
    assert (answer["success"], answer["stored"], answer["collection"]) == (False, SLICE, "default")
    assert answer["ids"] == [f"id {n}" for n in range(SLICE)]
    assert len(registry["vector.query"]({}, "text", k=1000)["results"]) == SLICE


def test_one_mapping_of_metadata_serves_all_texts(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS, metadata={"type": "rule"})
    found = registry["vector.query"]({}, "tide", filter={"type": "rule"})["results"]
    assert len(found) == 3


@pytest.mark.req("003-003", "003-023", "003-028")
def test_vector_query_basic(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS, ids=["a", "b", "c"])
    answer = registry["vector.query"]({}, "when does the pilot wait for the tide")
    assert set(answer) == {"results", "query", "collection", "k"}
    assert (answer["query"], answer["collection"], answer["k"]) == (
        "when does the pilot wait for the tide", "default", 5,
    )  # fmt: skip
    assert all(set(found) == {"id", "text", "score", "metadata"} for found in answer["results"])
    assert answer["results"][0]["id"] == "a"
    scores = [found["score"] for found in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.req("003-023", "003-029")
def test_vector_query_top_k(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS)
    assert [len(registry["vector.query"]({}, "tide", k=k)["results"]) for k in (1, 2, 9, "2")] == [1, 2, 3, 2]
    for k in (0, -1, 2.5, True, None, "many"):
        assert "give a whole number of at least 1" in refused(registry["vector.query"]({}, "tide", k=k))


@pytest.mark.req("003-003", "003-024", "003-029")
def test_vector_query_with_filter(registry: Registry) -> None:
    metadata = [{"type": "article", "date": f"202{n}-05-01"} for n in (3, 4)] + [
        {"type": "note", "date": "2024-06-01"}
    ]
    registry["vector.store"]({}, TEXTS, ids=["a", "b", "c"], metadata=metadata)
    wanted = {"type": "article", "date_gte": "2024-01-01"}
    assert [f["id"] for f in registry["vector.query"]({}, "tide", filter=wanted)["results"]] == ["b"]


@pytest.mark.req("003-030")
def test_vector_query_handles_empty_store(registry: Registry) -> None:
    assert registry["vector.query"]({}, "tide") == {
        "results": [],
        "query": "tide",
        "collection": "default",
        "k": 5,
    }


@pytest.mark.req("003-029")
def test_collection_isolation(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS[:2], ids=["a", "b"], collection="left")
    registry["vector.store"]({}, TEXTS[1:], ids=["a", "c"], collection="right")

    def ids(collection: str) -> list[str]:
        return sorted(f["id"] for f in registry["vector.query"]({}, "tide", collection=collection)["results"])

    assert (ids("left"), ids("right"), ids("default")) == (["a", "b"], ["a", "c"], [])


@pytest.mark.parametrize("query", ["", "  ", None, 7, ["tide"]])
def test_vector_query_refuses_what_is_no_question(registry: Registry, query: Any) -> None:
    refused(registry["vector.query"]({}, query))


@pytest.mark.req("003-025")
def test_wrong_arguments_are_answers(registry: Registry) -> None:
    assert "missing a required argument: 'text'" in refused(registry["embedding.create"]({}))
    assert "multiple values" in refused(registry["vector.query"]({}, "x", query="y"))


@pytest.mark.req("003-038")
def test_a_filter_is_data_and_nothing_else(registry: Registry) -> None:
    registry["vector.store"]({}, TEXTS, metadata={"type": "rule"})
    for wanted in ({"type": "__import__('os').abort()"}, {"__class__": "dict"}, {"type or 1": 1}):
        assert registry["vector.query"]({}, "tide", filter=wanted)["results"] == []


def test_vectors_that_are_missing_are_made_and_given_ones_are_kept(registry: Registry) -> None:
    given = [1.0] + [0.0] * 63
    registry["vector.store"]({}, ["a pilot", "a tide"], embeddings=[given, None], ids=["pilot", "tide"])
    found = registry["vector.query"]({}, "a tide", include_embeddings=True)["results"]
    assert [one["id"] for one in found] == ["tide", "pilot"]
    assert found[0]["score"] == pytest.approx(1.0, abs=1e-6)
    assert found[1]["embedding"] == given
