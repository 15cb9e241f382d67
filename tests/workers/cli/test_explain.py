"""larder explain: a document by any name, where it stands, and why a question finds it or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.database.engine import Database
from tests.ledger import ago
from tests.pipeline.stores.corpus import Corpus
from tests.workers.cli.asking import CONFIG, Run, found, id_of, titles

OTTERS = {"title": "Otters"}


def test_a_document_may_be_named_in_many_ways(corpus: Corpus, run: Run) -> None:
    one = id_of(corpus, "Birds")
    names = (one, one.upper(), f"{one}:1", "docs/birds/kestrel.md", "birds/kestrel.md", "./kestrel.md")
    for name in (*names, "https://wiki.example/x?id=1", "of PREY"):
        assert found(run("explain", name, "--json"))["document"]["id"] == one, name


def test_a_part_of_a_file_name_is_no_path(corpus: Corpus, run: Run) -> None:
    assert run("explain", "estrel.md").exit_code == 1
    assert run("explain", "100%").exit_code == 1
    assert run("explain", "").exit_code == 1


def test_a_name_that_fits_several_lists_them(corpus: Corpus, run: Run) -> None:
    shown = run("explain", "s")
    assert shown.exit_code == 1
    assert "fits 3 documents" in shown.stdout
    assert id_of(corpus, "Otters") in shown.stdout
    answer = json.loads(run("explain", "ov", "--json").stdout)["document"]
    assert answer["title"] == "Ovens and kilns"
    several = run("explain", "s", "--json")
    assert several.exit_code == 1
    data = json.loads(several.stdout)
    assert data["success"] is False
    assert [c["title"] for c in data["candidates"]] != []
    assert set(data["candidates"][0]) == {"id", "source", "external_id", "title"}


def test_items_that_share_an_id_are_listed(corpus: Corpus, run: Run) -> None:
    corpus.put("Warn.", title="Warn of shallow water", metadata={"pbi_id": "PBI-001"})
    corpus.documents.set({"title": "Warn of%"}, external_id="PBI-001")
    assert found(run("explain", "PBI-001", "--json"))["document"]["title"] == "Warn of shallow water"
    corpus.put("Moor.", title="Moor at night", metadata={"pbi_id": "PBI-001"})
    corpus.documents.set({"title": "Moor at%"}, external_id="PBI-001~1a2b3c4d")
    several = run("explain", "PBI-001", "--json")
    assert several.exit_code == 1
    told = json.loads(several.stdout)["candidates"]
    assert {c["external_id"] for c in told} == {"PBI-001", "PBI-001~1a2b3c4d"}
    one = found(run("explain", "PBI-001~1a2b3c4d", "--json"))["document"]
    assert one["title"] == "Moor at night"


def test_where_a_document_stands(corpus: Corpus, run: Run) -> None:
    d = found(run("explain", "Otters", "--json"))["document"]
    assert d["source"] == "tracker"
    assert (d["state"], d["stage"], d["chunk_count"], d["searchable"]) == ("done", "done", 1, True)
    assert (d["desired_version"], d["indexed_version"]) == (1, 1)
    assert d["dead_letter"] is None
    assert d["next_try"] is None
    text = run("explain", "Otters").stdout
    assert "searchable  yes" in text
    assert "version     1 wanted, 1 indexed" in text


def test_chunks_whose_ends_the_model_does_not_read_are_counted(
    corpus: Corpus, run: Run, tmp_path: Path
) -> None:
    full = "cache " * 249
    corpus.put(
        full, full + "and more words here", "short", title="Caches", context="Caches > Sizes", source="wiki"
    )
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] == 0
    minilm = CONFIG.replace("{provider: hashing, dimensions: 32}", "{provider: minilm}")
    (tmp_path / "larder.yaml").write_text(minilm, encoding="utf-8")
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] == 1
    assert ", 1 longer than the model reads: their ends are found by their words only" in " ".join(
        run("explain", "Caches").stdout.split()
    )
    asked = ("search", "cache words", "--explain", "--mode", "keyword", "--source", "wiki")
    assert [one["explanation"]["cut"] for one in json.loads(run(*asked, "--json").stdout)["results"]] == [
        True
    ]
    assert (
        "longer than the model reads: their ends are found by their words only: 1.\nwhat helps, and what it costs: docs/search.md#how-long-chunks-are"
        in (run(*asked).stdout)
    )
    (tmp_path / "larder.yaml").write_text(
        minilm.replace("minilm}", "minilm, modelPath: ./none}"), encoding="utf-8"
    )
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] is None


def test_failures_are_told(corpus: Corpus, run: Run) -> None:
    failed = {"stage": "chunked", "attempts": 3, "last_error": "it is [bold]broken[/]"}
    corpus.documents.set(OTTERS, state="dead", desired_version=2, pipeline_version="new", **failed)
    name = corpus.documents.one(**OTTERS)["external_id"]
    corpus.add_letter(name, version=2, code="E002", reason="it is broken", attempts=3)
    d = found(run("explain", "Otters", "--json"))["document"]
    assert d["dead_letter"]["reason"] == "it is broken"
    assert d["attempts"] == 3
    text = run("explain", "Otters").stdout
    assert "version     2 wanted, 1 indexed" in text
    assert "last error  it is [bold]broken[/]" in text
    assert "dead letter E002 at stage chunked after 3 attempts: it is broken" in text


def test_a_file_that_was_left_out_tells_why(corpus: Corpus, run: Run) -> None:
    corpus.add_run(
        "wiki",
        state="processing",
        enqueued_at=ago(),
        problems=[
            {"item": "docs/scan.pdf", "reason": "docs/scan.pdf holds no text", "outcome": "skipped"},
            {"item": "docs/old.docx", "reason": "it is [b]damaged[/]", "outcome": "failed"},
        ],
    )
    for name in ("docs/scan.pdf", "scan.pdf", "./docs/scan.pdf"):
        result = run("explain", name)
        assert result.exit_code == 1
        assert "E003: not indexed: docs/scan.pdf holds no text\n  correct it and run" in result.stderr, name
    assert "not indexed: docs/old.docx: it is [b]damaged[/]" in run("explain", "old.docx").stderr
    assert "no document is called 'can.pdf'" in run("explain", "can.pdf").stderr


def test_a_waiting_document_tells_its_next_try(corpus: Corpus, run: Run) -> None:
    corpus.documents.set(OTTERS, state="pending", due_at="2031-01-01T00:00:00Z")
    assert found(run("explain", "Otters", "--json"))["document"]["next_try"].startswith("2031-01-01")


@pytest.mark.parametrize(
    ("options", "change", "reason", "said"),
    [
        (["--query", "otters swim"], {}, "found", "found: rank 1, score"),
        (["--query", "kestrel", "-k", "1"], {}, "beyond", "beyond the 1 result shown; score"),
        (["--query", "kestrel", "--kind", "decision"], {}, "filtered", "kept out by the filter: kinds"),
        (["--query", "otters", "--since", "1d", "--tag", "x"], {}, "filtered", "tags and since"),
        (["--query", "clay", "--mode", "keyword"], {}, "no_match", "none of the query's words"),
        (["--query", " "], {}, "empty", "the question is empty"),
        (["--query", "otters"], {"hidden": True}, "hidden", "the last complete walk"),
        (["--query", "otters"], {"deleted": True}, "deleted", "its source no longer has it"),
        (
            ["--query", "otters"],
            {"indexed_version": None, "state": "pending", "stage": "fetched", "chunk_count": 0},
            "not_indexed",
            "stage fetched",
        ),
        (["--query", "otters"], {"indexed_version": None, "stage": "chunked"}, "found", "found: rank 1"),
        (["--query", "otters"], {"chunk_count": 0}, "no_text", "no text"),
    ],
)
def test_why_a_question_finds_it_or_not(
    corpus: Corpus, run: Run, options: list[str], change: dict[str, Any], reason: str, said: str
) -> None:
    if change:
        corpus.documents.set(OTTERS, **change)
    answer = found(run("explain", "Otters", *options, "--json"))["query"]
    assert answer["reason"] == reason
    assert said in answer["detail"]
    assert answer["found"] is (reason == "found")
    assert said in run("explain", "Otters", *options).stdout


def test_below_the_threshold_is_told_with_both_figures(corpus: Corpus, run: Run) -> None:
    Path("larder.yaml").write_text(
        CONFIG.replace("minSimilarity: 0", "minSimilarity: 0.99"), encoding="utf-8"
    )
    answer = found(run("explain", "Otters", "--query", "clay", "--json"))["query"]
    assert answer["reason"] == "below"
    assert "0.990 is asked for" in answer["detail"]
    assert answer["explanation"]["semantic_score"] < 0.99


def test_outside_the_candidates_is_told_with_its_scores(corpus: Corpus, run: Run) -> None:
    Path("larder.yaml").write_text(
        CONFIG.replace("minSimilarity: 0", "minSimilarity: 0, candidates: 1"), encoding="utf-8"
    )
    answer = found(run("explain", "Otters", "--query", "kestrel towers barns fields", "--json"))["query"]
    assert answer["reason"] == "candidates"
    assert "not among the 1 best of either search" in answer["detail"]
    assert "similarity" in answer["detail"]
    assert "BM25" in answer["detail"]


def test_other_tenants_documents_are_not_there(corpus: Corpus, database: Database, run: Run) -> None:
    other = Corpus(database)
    theirs = other.put("kestrel secret", title="Secret plan")
    assert run("explain", str(theirs)).exit_code == 1
    assert run("explain", "Secret plan").exit_code == 1
    assert "Secret plan" not in titles(run("search", "kestrel secret", "--json"))


def test_why_a_user_finds_a_document_or_not(corpus: Corpus, run: Run) -> None:
    said = corpus.documents.one(**OTTERS)["metadata"]
    acl = {**said, "acl": [["user:ann", "group:board"], ["group:board"]]}
    corpus.documents.set(OTTERS, security_level="confidential", served_acl=[["user:cora"]], metadata=acl)
    rights = ("--level", "confidential", "--group", "board")
    told = found(run("why-visible", "ann", "Otters", *rights, "--json"))
    assert (told["visible"], told["document"]) == (False, id_of(corpus, "Otters"))
    passes = [(one["rule"], one["passes"]) for one in told["rules"]]
    layers = [("acl", True), ("acl", True), ("acl", False)]
    assert passes == [
        ("tenant", True), ("searchable", True), ("project", True), ("security level", True), *layers
    ]  # fmt: skip
    shown = " ".join(run("why-visible", "cora", "Otters", *rights).stdout.split())
    assert "cora finds 'Otters'" in shown
    assert "open to user:ann, group:board; they are group:board" in shown

    plain = run("why-visible", "bob", "Otters", "--project", "berth")
    assert plain.exit_code == 0
    shown = " ".join(plain.stdout.split())
    assert "bob does not find 'Otters'" in shown
    assert "NO its text is confidential; they see up to internal" in shown
    assert "NO open to user:ann, group:board; they are none of these" in shown
    assert run("why-visible", "bob", "no such").exit_code == 1
    assert "must be one of public, internal" in run("why-visible", "bob", "Otters", "--level", "top").stderr
    corpus.documents.set(OTTERS, hidden=True, metadata={**said, "acl": 3})
    shown = " ".join(run("why-visible", "bob", "Otters").stdout.split())
    assert "NO it is hidden" in shown
    assert "NO open to nobody; they are none of these" in shown
