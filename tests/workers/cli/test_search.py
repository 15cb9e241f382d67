"""larder search: filters in a person's words, JSON as promised, a screen of 80 columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Kind
from pipeline.embedding.known_models import model_of
from pipeline.ledger import project_id
from pipeline.search.records import MEASURED_WEAK
from tests.pipeline.stores.corpus import MODEL, Corpus
from tests.workers.cli.asking import CONFIG, Run, found, titles


@pytest.mark.req("001-070")
def test_results_are_json_as_promised(corpus: Corpus, run: Run) -> None:
    answer = found(run("search", "the kestrel nests in church towers and old barns", "--json"))
    assert set(answer) == {"results", "degradation_level", "weak"}
    assert answer["degradation_level"] == 0
    first = answer["results"][0]
    assert set(first) == {"id", "document_id", "content", "score", "weak", "metadata"}
    assert first["id"] == f"{first['document_id']}:0"
    assert first["content"].endswith("old barns.")
    assert 0 < first["score"] <= 1
    metadata = first["metadata"]
    assert (
        metadata
        | {
            "source": "wiki",
            "source_type": "confluence",
            "kind": "decision",
            "title": "Birds [red]of prey[/red]: the kestrel",
            "url": "https://wiki.example/x?id=1",
            "tags": ["birds", "adr"],
            "created_at": "2025-01-01T00:00:00+00:00",
            "updated_at": "2025-06-01T12:00:00+00:00",
            "chunk_index": 0,
            "chunk_total": 2,
            "source_path": "docs/birds/kestrel.md",
            "project_id": str(corpus.project),
            "security_level": "internal",
            "team": "red",
            "points": 3,
        }
        == metadata
    )


@pytest.mark.req("001-033")
def test_explanations_come_on_request(run_shared: Run) -> None:
    for result in found(run_shared("search", "kestrel", "--json", "--explain"))["results"]:
        e = result["explanation"]
        parts = e["vector_part"] + e["keyword_part"] + e["title_part"] + e["covered_part"]
        assert result["score"] == pytest.approx(parts, abs=1e-5)
        assert e["semantic_score"] is not None
        assert e["keyword_score"] is not None


def test_what_hardly_answers_is_called_weak(run_shared: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURED_WEAK, model_of(MODEL), (0.9, 0.9))
    nothing = found(run_shared("search", "zzzqqqxxx", "--json"))
    assert nothing["weak"]
    assert {result["weak"] for result in nothing["results"]} == {True}
    shown = run_shared("search", "zzzqqqxxx").stdout.splitlines()
    assert shown[0] == "nothing close; nearest:"
    assert "  weak  " in shown[1]
    some = found(run_shared("search", "kestrel church towers", "--json"))
    assert not some["results"][0]["weak"], "it has all words"
    assert not some["weak"]
    by_words = found(run_shared("search", "kestrel of the moon and stars", "--mode", "keyword", "--json"))
    assert not by_words["weak"], "words alone cannot tell"


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("vector", {"vector_part"}),
        ("keyword", {"keyword_part", "title_part", "covered_part"}),
        ("hybrid", {"vector_part", "keyword_part", "title_part", "covered_part"}),
        ("HYBRID", {"vector_part", "keyword_part", "title_part", "covered_part"}),
    ],
)
@pytest.mark.req("001-140")
def test_modes(run_shared: Run, mode: str, parts: set[str]) -> None:
    results = found(run_shared("search", "the birds towers", "--mode", mode, "--explain", "--json"))[
        "results"
    ]
    assert {
        name for r in results for name, part in r["explanation"].items() if "part" in name and part
    } == parts


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-k", "1", "--mode", "keyword"], {"Birds"}),
        (["--source-type", "pbi"], {"Otters"}),
        (["--source-type", "pbi", "--source-type", "confluence"], {"Otters", "Birds"}),
        (["--source-type", "markdown"], set()),
        (["--kind", "decision"], {"Birds"}),
        (["--kind", "work", "--kind", "Reference"], {"Otters", "Ovens"}),
        (["--tag", "adr"], {"Birds"}),
        (["--tag", "adr", "--tag", "absent"], set()),
        (["--source", "wiki"], {"Birds", "Ovens"}),
        (["--source", "wiki", "--source", "tracker"], {"Birds", "Ovens", "Otters"}),
        (["--since", "2025-06-01"], {"Birds"}),
        (["--since", "2025-06-02"], set()),
        (["--since", "2025-06-01T12:00:00Z"], {"Birds"}),
        (["--since", "2025-06-01T14:00:01+02:00"], set()),
        (["--until", "2025-06-01"], {"Birds", "Otters"}),
        (["--until", "2025-05-31"], {"Otters"}),
        (["--until", "2025-06-01T12:00:00Z"], {"Otters"}),
        (["--since", "9999d", "--until", "1d"], {"Birds", "Otters"}),
        (["--metadata", "team=red"], {"Birds"}),
        (["--metadata", "points=3"], {"Birds"}),
        (["--metadata", "team=red", "--metadata", "points=4"], set()),
        (["--metadata", "team="], set()),
        (["--project", "default"], set()),
        (["--security-level", "internal"], {"Birds", "Otters", "Ovens"}),
        (["--security-level", "public", "--security-level", "secret"], set()),
    ],
)
def test_filters(run_shared: Run, options: list[str], expected: set[str]) -> None:
    shown = titles(run_shared("search", "kestrel", "--json", *options))
    assert {title.split()[0] for title in shown} == expected


def test_a_search_in_projects_says_which_of_them_hold_nothing(run: Run, corpus: Corpus) -> None:
    corpus.put("A kestrel elsewhere", title="Elsewhere", project_id=project_id(corpus.tenant, "other"))
    corpus.documents.set({"title": "Elsewhere"}, chunk_count=1)
    corpus.count()
    here = str(corpus.project)
    assert len(titles(run("search", "kestrel", "--json"))) == 4
    for options in (["--project", here, "--project", "other"], ["--project", f"{here},other"]):
        assert len(titles(run("search", "kestrel", "--json", *options))) == 4
    asked = run("search", "kestrel", "--json", "--project", here)
    assert {title.split()[0] for title in titles(asked)} == {"Birds", "Otters", "Ovens"}
    assert asked.stderr == ""
    nothing = run("search", "kestrel", "--json", "--project", "otherr")
    assert titles(nothing) == []
    assert nothing.stderr.startswith(f"project 'otherr' holds no documents; there are {here}")
    why = run("explain", "Elsewhere", "--query", "kestrel", "--project", here, "--json")
    assert found(why)["query"]["detail"] == "kept out by the filter: projects"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--source-type", "wikipedia"], "unknown source type 'wikipedia'; known are pbi"),
        (["--kind", "idea"], "unknown kind 'idea'; known are work, decision, reference"),
        (["--mode", "magic"], "use one of hybrid, vector, keyword"),
        (["--since", "yesterday"], "--since: 'yesterday' is no date"),
        (["--until", "2025-02-30"], "--until: '2025-02-30' is no date"),
        (["--since", "999999d"], "is no date"),
        (["--metadata", "team"], "'team' is not of the form KEY=VALUE"),
        (["--metadata", "=red"], "is not of the form KEY=VALUE"),
        (["--source", "wikki"], "there is no source 'wikki'"),
        (["--exclude", "Birds"], "--exclude: 'Birds' is no id of a document"),
    ],
)
def test_words_that_mean_nothing_are_named(run_shared: Run, options: list[str], said: str) -> None:
    plain = run_shared("search", "kestrel", *options)
    assert plain.exit_code == 2
    assert said in " ".join(plain.stderr.split())
    assert "Traceback" not in plain.output
    as_json = run_shared("search", "kestrel", "--json", *options)
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["success"] is False


def test_no_number_below_one_is_taken(run_shared: Run) -> None:
    assert run_shared("search", "kestrel", "-k", "0").exit_code == 2


def test_the_screen_is_readable_at_eighty_columns(run_shared: Run) -> None:
    shown = run_shared("search", "where is it nesting, in which towers?", "--mode", "keyword")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("  1. ")
    assert lines[0].endswith("Birds [red]of prey[/red]: the kestrel"), "markup in a title is text"
    assert re.fullmatch(
        r"     wiki/decision  2025-06-01 \(\d+ years? old\)  https://wiki.example/x\?id=1", lines[1]
    )
    body = lines[2 : lines.index("")]
    assert 1 <= len(body) <= 3
    assert "church towers" in " ".join(line.strip() for line in body), "the passage is the part that answers"
    assert all(len(line) <= 80 for line in lines)
    other = run_shared("search", "otters", "--mode", "keyword").stdout.splitlines()
    assert other[1].startswith("     tracker/work  2024-03-01 (")
    assert other[1].endswith("years old)  items/otters.md")


def test_the_screen_explains_on_request(run_shared: Run) -> None:
    shown = run_shared("search", "kestrel", "--explain").stdout
    lines = shown.splitlines()
    head = next(n for n, line in enumerate(lines) if line.split()[:2] == ["#", "score"])
    assert lines[head].split()[2:4] == ["meaning", "words"]
    assert re.fullmatch(r" *1\. (0\.\d{3} *)+", lines[head + 1])
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.req("001-032")
def test_documents_are_left_out_by_the_id_of_a_hit(corpus: Corpus, run: Run) -> None:
    first, second, *_ = found(run("search", "kestrel", "--json"))["results"]
    rest = found(
        run("search", "kestrel", "--json", "--exclude", first["id"], "--exclude", second["document_id"])
    )
    assert len(rest["results"]) == 1
    assert rest["results"][0]["id"] not in {first["id"], second["id"]}


def test_what_no_longer_holds_says_so(corpus: Corpus, run: Run) -> None:
    facts = {"decision_status": "superseded", "superseded_by": "ADR-[7] " + "x" * 90}
    corpus.put("zebra crossing", title="Old zebras", kind=Kind.DECISION, metadata=facts)
    corpus.put("a zebra", title="Zebras")
    results = {r["metadata"]["title"]: r for r in found(run("search", "zebra", "--json"))["results"]}
    assert results["Old zebras"]["metadata"]["standing"].startswith("superseded by ADR-[7]")
    assert "standing" not in results["Zebras"]["metadata"]
    shown = run("search", "zebra", "--explain").stdout.splitlines()
    assert any(line.startswith("     superseded by ADR-[7] x") and len(line) <= 80 for line in shown)
    assert any("outdated" in line and line.split()[:2] == ["#", "score"] for line in shown)
    corpus.documents.set({"title": "Old zebras"}, chunk_count=1)
    why = run("explain", "Old zebras", "--query", "zebra").stdout
    assert "(lowered: superseded by ADR-[7]" in " ".join(why.split())
    assert "  outdated  -0." in why


def test_a_duplicate_names_its_master_and_is_not_lowered(corpus: Corpus, run: Run) -> None:
    corpus.put(
        "a zebra", title="Copy", kind=Kind.WORK, metadata={"resolution": "Duplicate", "duplicate_of": "PBI-7"}
    )
    corpus.put("a zebra crossing for everyone", title="Other")
    results = {
        r["metadata"]["title"]: r for r in found(run("search", "zebra", "--explain", "--json"))["results"]
    }
    assert results["Copy"]["metadata"]["standing"] == "closed as duplicate of PBI-7"
    assert results["Copy"]["explanation"]["standing_part"] == 0
    assert "     closed as duplicate of PBI-7" in run("search", "zebra").stdout.splitlines()
    corpus.documents.set({"title": "Copy"}, chunk_count=1)
    why = " ".join(run("explain", "Copy", "--query", "zebra").stdout.split())
    assert "(closed as duplicate of PBI-7)" in why
    assert "lowered" not in why


def test_age_stands_in_the_answer(run_shared: Run) -> None:
    ages = [r["metadata"]["age_days"] for r in found(run_shared("search", "kestrel", "--json"))["results"]]
    assert sorted(age is None for age in ages) == [False, False, True]
    assert all(age is None or age > 300 for age in ages)


@pytest.mark.req("001-140")
def test_the_same_command_is_answered_from_memory_until_something_changes(corpus: Corpus, run: Run) -> None:
    first = found(run("search", "kestrel", "--json"))
    assert found(run("search", "kestrel", "--json")) == first
    corpus.put("kestrel kestrel", title="New")
    assert "New" in titles(run("search", "kestrel", "--json"))


def test_long_titles_are_cut_and_links_are_not(corpus: Corpus, run: Run) -> None:
    link = "https://wiki.example/" + "a" * 90
    corpus.put("zebra", title="Z" * 300, url=link)
    lines = run("search", "zebra", "--mode", "keyword").stdout.splitlines()
    assert len(lines[0]) == 80
    assert lines[0].endswith("…")
    assert any(link in line for line in lines)


def test_nothing_found_and_nothing_indexed_are_told_apart(database: Database, tenant: UUID, run: Run) -> None:
    assert run("search", "kestrel").stdout.strip().startswith("nothing is indexed yet")
    corpus = Corpus(database, tenant)
    assert run("search", "kestrel").stdout.startswith("no document of tenant acme is indexed")
    corpus.put("Otters swim.", title="Otters")
    assert run("search", "kestrel", "--mode", "keyword").stdout.strip() == "nothing found"
    assert run("search", "otters", LARDER_TENANT="acmee").stdout.startswith("no document of tenant acmee")
    missing = found(run("search", "kestrel", "--mode", "keyword", "--json"))
    assert missing == {"results": [], "degradation_level": 0, "weak": False}


def test_a_switched_off_installation_says_so(corpus: Corpus, run: Run) -> None:
    Path("larder.yaml").write_text(CONFIG + "  enabled: false\n", encoding="utf-8")
    assert found(run("search", "kestrel", "--json")) == {"results": [], "degradation_level": 5, "weak": False}
    assert "switched off" in run("search", "kestrel").stdout


@pytest.mark.req("001-140")
def test_a_database_that_is_away_is_e001(run: Run) -> None:
    away = "postgresql://larder_app:x@127.0.0.1:1/none"
    shown = run("search", "kestrel", "--json", LARDER_DATABASE_URL=away)
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["error"]["code"] == "E001"
