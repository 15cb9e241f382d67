"""larder feedback: who is meant, what is said and taken back, how it looks in 80 columns, and a set for larder eval."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.documents import Kind
from pipeline.errors import LarderError, RequestRejected
from pipeline.ledger import jobs, project_id
from pipeline.search.question import key_of
from pipeline.search.records import Explanation
from tests.conftest import Addresses
from tests.pipeline.stores.corpus import Corpus
from tests.workers.cli.asking import Run, found, id_of
from workers.app.evaluation.dataset import read
from workers.cli.search import scores
from workers.client import Client

OTTERS = "Otters"


@pytest.fixture(autouse=True)
def named(corpus: Corpus) -> Corpus:
    """The documents have the external ids that sources give them."""
    for one in corpus.documents():
        name = "PBI-12" if one["title"] == OTTERS else one["metadata"].get("source_path", "x")
        corpus.documents.set({"id": one["id"]}, external_id=name)
        body = {"version": one["desired_version"], "body": f"Body of {one['title']}"}
        corpus.bodies.add(document_id=one["id"], tenant_id=one["tenant_id"], **body)
    return corpus


def submitted(corpus: Corpus, pbi: dict[str, Any], project: str = "default") -> None:
    with corpus.database.tenant(corpus.tenant) as connection:
        request = {"pbi": pbi, "scores": {}, "project": project}
        jobs.submit(connection, corpus.tenant, project_id(corpus.tenant, project), request)


def key_in(corpus: Corpus, item: str, project: str = "default") -> str:
    return key_of("", item, project_id(corpus.tenant, project))


def of(run: Run, words: str, title: str) -> Any:
    results = found(run("search", words, "--explain", "--json"))["results"]
    (one,) = [r for r in results if r["metadata"]["title"].startswith(title)]
    return one["explanation"]


def test_it_is_said_shown_and_taken_back(run: Run, corpus: Corpus) -> None:
    words = "kestrel towers barns"
    said = found(run("feedback", words, "docs/birds/kestrel.md", "useful", "--json"))
    assert said == {
        "success": True,
        "item": words,
        "item_title": "",
        "project": None,
        "ref": "docs/birds/kestrel.md",
        "title": "Birds [red]of prey[/red]: the kestrel",
        "source": "wiki",
        "document_id": id_of(corpus, "Birds"),
        "verdict": "useful",
        "before": None,
    }
    told = of(run, "Kestrel  towers barns", "Birds")
    assert (told["feedback"], told["feedback_why"]) == (1.0, "marked useful for this question, +1.0")
    assert told["feedback_part"] > 0
    again = run("feedback", words, id_of(corpus, "Birds"), "noise")
    assert again.stdout == f"docs/birds/kestrel.md is noise for {words}, no longer useful\n"
    assert of(run, words, "Birds")["feedback"] == -3.0
    (row,) = found(run("feedback", "--list", words.upper(), "--json"))["feedback"]
    assert (row["verdict"], row["ref"], row["kind"]) == ("noise", "docs/birds/kestrel.md", "decision")
    assert row["by"].startswith("cli:")
    assert found(run("feedback", "--list", "PBI-12", "--json"))["feedback"] == []
    for undo in (["undo"], ["--undo"]):
        done = run("feedback", words, "docs/birds/kestrel.md", *undo)
        assert done.stdout == f"docs/birds/kestrel.md is no longer noise for {words}\n"
        run("feedback", words, "docs/birds/kestrel.md", "noise")
    run("feedback", words, "docs/birds/kestrel.md", "undo")
    assert of(run, words, "Birds")["feedback"] == 0
    twice = run("feedback", words, "docs/birds/kestrel.md", "undo")
    assert twice.exit_code == 2
    assert "is not marked for" in twice.stderr


def test_what_was_said_is_audited_without_the_questions_text(run: Run, corpus: Corpus) -> None:
    run("feedback", "a secret question", "PBI-12", "useful")
    run("feedback", "a secret question", "PBI-12", "undo")
    rows = corpus.audit()
    assert [(row["action"], row["subject"]) for row in rows] == [
        ("feedback.useful", "PBI-12"),
        ("feedback.undo", "PBI-12"),
    ]
    assert rows[0]["detail"] == {"question": key_of("a secret question")}
    assert rows[0]["actor"].startswith("cli:")


def test_an_item_is_one_that_step_4_was_asked_about_newest_first(run: Run, corpus: Corpus) -> None:
    for title in ("Old title", "New title"):
        submitted(
            corpus,
            {
                "pbi_id": "PBI-99",
                "title": title,
                "description": "As a warden",
                "acceptance_criteria": ["It flies"],
            },
        )
    submitted(corpus, {"id": "PBI-100", "title": "PBI-99"})
    said = found(run("feedback", "PBI-99", "PBI-12", "useful", "--json"))
    assert (said["item"], said["item_title"]) == ("PBI-99", "New title")
    corpus.jobs.clear()
    said = found(run("feedback", "PBI-99", "docs/ovens.md", "noise", "--json"))
    assert said["item_title"] == "New title", "known from what was said before"
    (_, row) = corpus.feedback()
    assert row["query_hash"] == key_in(corpus, "PBI-99")
    assert row["question"] == {
        "title": "New title",
        "description": "As a warden",
        "acceptance_criteria": ["It flies"],
    }


def test_an_item_is_an_indexed_document_and_quotes_make_it_text(run: Run, corpus: Corpus) -> None:
    said = found(run("feedback", "PBI-12", "docs/ovens.md", "useful", "--json"))
    assert (said["item"], said["item_title"]) == ("PBI-12", OTTERS)
    said = found(run("feedback", '"PBI-12"', "docs/ovens.md", "useful", "--json"))
    assert (said["item"], said["item_title"]) == ("PBI-12", "")
    assert set(corpus.feedback.values("query_hash")) == {
        key_of("", "PBI-12", corpus.project),
        key_of("PBI-12"),
    }


def test_items_of_the_same_id_in_two_projects_are_two_questions(
    run: Run, corpus: Corpus, tmp_path: Path
) -> None:
    for project in ("shop", "bills"):
        submitted(corpus, {"id": "PBI-9", "title": f"Of {project}"}, project)
    unclear = run("feedback", "PBI-9", "PBI-12", "useful")
    assert unclear.exit_code == 2
    assert "'PBI-9' is an item of several projects: bills, shop say which with --project" in " ".join(
        unclear.stderr.split()
    )
    nobody = run("feedback", "PBI-9", "PBI-12", "useful", "--project", "other")
    assert "no PBI of project 'other'" in " ".join(nobody.stderr.split())
    said = found(run("feedback", "PBI-9", "PBI-12", "useful", "--project", "shop", "--json"))
    assert (said["project"], said["item_title"]) == ("shop", "Of shop")
    for job in corpus.jobs():
        if job["request"]["project"] == "bills":
            corpus.jobs.clear(job["id"])
    told = run("feedback", "PBI-9", "PBI-12", "noise", "--project", "shop").stdout
    assert told == "PBI-12 is noise for PBI-9 (shop), no longer useful\n"
    submitted(corpus, {"id": "PBI-9", "title": "Of bills"}, "bills")
    run("feedback", "PBI-9", "PBI-12", "useful", "--project", "bills")
    assert set(corpus.feedback.values("query_hash", "verdict")) == {
        (key_in(corpus, "PBI-9", "shop"), "noise"),
        (key_in(corpus, "PBI-9", "bills"), "useful"),
    }
    listed = found(run("feedback", "--list", "PBI-9", "--json"))["feedback"]
    assert [(row["project"], row["verdict"]) for row in listed] == [("bills", "useful"), ("shop", "noise")]
    assert "PBI-9 (bills)" in run("feedback", "--list").stdout
    corpus.jobs.clear()
    assert run("feedback", "PBI-9", "PBI-12", "undo").exit_code == 2, "several, known from what was said"
    run("feedback", "--export", "set")
    queries = [json.loads(line) for line in (tmp_path / "set/queries.jsonl").read_text().splitlines()]
    assert [(row["_id"], row["project"], row["title"]) for row in queries] == [
        ("bills:PBI-9", "bills", "Of bills"),
        ("shop:PBI-9", "shop", "Of shop"),
    ]
    assert read(tmp_path / "set").relevant == {"bills:PBI-9": {"PBI-12": 2.0}}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["PBI-77", "PBI-12", "useful"], "'PBI-77' is no PBI that Step 4 was asked about"),
        (["", "PBI-12", "useful"], "there is no question"),
        (["a question", "ovens", "useful"], "like it are docs/ovens.md"),
        (["a question", "PBI-12", "good"], "'good' is no verdict"),
        (["a question", "PBI-12", "useful", "--source", "wiki"], "no document of source 'wiki'"),
        (["a question", "PBI-12"], "--list, or --export DIR"),
        (["a question", "PBI-12", "useful", "--undo"], "--list, or --export DIR"),
        (["--list", "--export", "x"], "--list, or --export DIR"),
        ([], "--list, or --export DIR"),
        (["--export", "new"], "nobody has marked"),
        (["--export", "."], "not empty"),
    ],
)
def test_what_is_wrong_is_told_with_what_there_is(run: Run, args: list[str], said: str) -> None:
    result = run("feedback", *args)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_a_document_of_several_sources_is_named_with_its_source(run: Run, corpus: Corpus) -> None:
    corpus.put("Another tracker's otters", title="Second", source="board")
    corpus.documents.set({"title": "Second"}, external_id="PBI-12")
    wrong = run("feedback", "a question", "PBI-12", "useful")
    assert wrong.exit_code == 2
    assert "'PBI-12' is in several sources: board, tracker" in wrong.stderr
    said = found(run("feedback", "a question", "PBI-12", "useful", "--source", "board", "--json"))
    assert (said["title"], said["source"]) == ("Second", "board")


def test_what_a_source_has_removed_is_not_marked_and_can_be_unmarked(run: Run, corpus: Corpus) -> None:
    run("feedback", "a question", "PBI-12", "useful")
    corpus.documents.set("PBI-12", deleted=True, hidden=True)
    refused = run("feedback", "a question", "PBI-12", "noise")
    assert refused.exit_code == 2
    assert "its source tracker has removed it" in refused.stderr
    assert "Otters (removed)" in run("feedback", "--list").stdout
    assert "nobody has marked" in run("feedback", "--export", "new").stderr
    assert run("feedback", "a question", "PBI-12", "undo").exit_code == 0
    assert run("feedback", "--list").stdout == "nothing is marked\n"


def test_a_screen_of_80_columns(run: Run) -> None:
    run("feedback", "kestrel towers barns", "docs/birds/kestrel.md", "noise")
    run("feedback", "another kestrel question", "PBI-12", "useful")
    shown = run("search", "kestrel towers barns", "--explain").stdout
    assert "     marked noise for this question, -3.0\n" in shown
    assert "     marked useful for others (net +1), +0.15\n" in shown
    assert " feedback" in shown
    told = run("explain", "PBI-12", "--query", "another kestrel question").stdout
    assert "(marked useful for this question, +1.0)" in told
    assert "  feedback" in told
    listed = run("feedback", "--list").stdout
    assert "another kestrel question" in listed
    assert "PBI-12  Otters" in listed
    assert max(len(line) for line in (shown + listed).splitlines()) <= 80


def test_it_exports_a_set_that_can_be_measured(run: Run, corpus: Corpus, tmp_path: Path) -> None:
    submitted(corpus, {"id": "PBI-99", "title": "Count birds", "acceptance_criteria": ["All of them"]})
    run("feedback", "PBI-99", "PBI-12", "useful")
    run("feedback", "PBI-99", "docs/birds/kestrel.md", "noise")
    run("feedback", "where do ovens stand", "docs/ovens.md", "useful")
    told = found(run("feedback", "--export", "set", "--json"))
    assert told == {"success": True, "folder": "set", "documents": 3, "queries": 2, "useful": 2, "noise": 1}
    folder = tmp_path / "set"
    assert folder.stat().st_mode & 0o777 == 0o700
    judged = read(folder)
    asked = f"q-{key_of('where do ovens stand')[:12]}"
    assert judged.queries == {asked: "where do ovens stand", "PBI-99": "Count birds\nAll of them"}
    assert {query: set(docs) for query, docs in judged.relevant.items()} == {
        asked: {"docs/ovens.md"},
        "PBI-99": {"PBI-12"},
    }
    assert {d.external_id for d in judged.documents} == {"PBI-12", "docs/ovens.md", "docs/birds/kestrel.md"}
    with (folder / "context_judgements.tsv").open(encoding="utf-8") as handle:
        rows = list(csv.reader(handle, delimiter="\t"))
    assert rows[0] == ["item", "section", "ref", "grade"]
    assert sorted(rows[1:]) == [
        ["PBI-99", "past_decisions", "docs/birds/kestrel.md", "0"],
        ["PBI-99", "similar_work", "PBI-12", "2"],
        [asked, "technical_docs", "docs/ovens.md", "2"],
    ]
    built = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    (otters,) = [row for row in built if row["_id"] == "PBI-12"]
    assert (otters["kind"], otters["source_type"], otters["text"]) == (Kind.WORK, "pbi", "Body of Otters")
    assert otters["metadata"]["team"] == "blue"


def test_the_client_says_the_same(addresses: Addresses, corpus: Corpus) -> None:
    with Client(addresses.app, tenant="acme") as client:
        said = client.feedback("where do ovens stand", id_of(corpus, "Ovens"), "useful", by="a\0da")
        assert (said["ref"], said["verdict"], said["before"]) == ("docs/ovens.md", "useful", None)
        assert corpus.feedback.values("given_by", "verdict") == [("ada", "useful")]
        assert client.feedback("where do ovens stand", "docs/ovens.md", "undo")["before"] == "useful"
    assert corpus.audit()[0]["actor"] == "ada"


def test_all_parts_of_a_score_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    told = Explanation(
        similarity=0.8,
        bm25=12.125,
        overlap=0.5,
        title=0.25,
        covered=0.5,
        centroid=0.7,
        vector_part=0.2,
        keyword_part=0.2,
        title_part=0.1,
        covered_part=0.1,
        min_similarity=0.3,
        rerank=3.125,
        rerank_part=0.1,
        outdated_part=-0.1,
        feedback=-3.0,
        feedback_part=-0.1,
    )
    Console(width=80).print(scores([{"score": 0.625, "explanation": told.to_json()}] * 10))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "10. 0.625" in shown
    assert "-3.000" in shown


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"item": None}, "item is null, not a text"),
        ({"ref": ["a"]}, "ref is a list, not a text"),
        ({"verdict": 1}, "verdict is a number, not a text"),
        ({"by": None}, "by is null"),
        ({"source": 5}, "source is a number"),
        ({"project": {}}, "project is an object"),
    ],
)
def test_the_client_refuses_what_is_no_text(
    addresses: Addresses, corpus: Corpus, changed: dict[str, Any], said: str
) -> None:
    with Client(addresses.app, tenant="acme") as client, pytest.raises(RequestRejected, match=said):
        client.feedback(**{"item": "a question", "ref": "PBI-12", "verdict": "useful", **changed})


@pytest.mark.parametrize("name", ["item", "ref", "verdict", "source", "project"])
def test_what_is_said_is_not_told_again_at_length(addresses: Addresses, corpus: Corpus, name: str) -> None:
    given = {"item": "PBI-12", "ref": "PBI-12", "verdict": "useful", name: "x" * 100_000}
    with Client(addresses.app, tenant="acme") as client, pytest.raises(LarderError, match="xxx") as caught:
        client.feedback(**given)
    assert len(str(caught.value)) < 700
