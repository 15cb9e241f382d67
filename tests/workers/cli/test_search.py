"""larder search and explain: filters in a person's words, JSON as promised, a screen of 80 columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import typer
from typer.testing import CliRunner, Result

from pipeline.database import Database
from pipeline.documents import Kind, SourceType
from pipeline.errors import ConfigurationError
from pipeline.tenancy import tenant_id
from tests.conftest import Addresses
from tests.pipeline.stores.depot import Depot
from workers import embedded, runtime, searching
from workers.cli import search
from workers.cli.scores import bar

app = typer.Typer()
app.command()(search.search)
app.command()(search.explain)

CONFIG = """\
rag:
  tenant: acme
  timezone: Europe/Berlin
  embedding: {provider: hashing, dimensions: 32}
  retrieval: {minSimilarity: 0}
"""
Run = Callable[..., Result]


@pytest.fixture
def depot(database: Database) -> Depot:
    """Three documents of the tenant `acme`."""
    made = Depot(database, tenant_id("acme"))
    made.put(
        "The kestrel hovers over fields. " * 30 + "It nests in church towers and old barns.",
        "Kestrels eat voles.",
        title="Birds [red]of prey[/red]: the kestrel",
        context="Birds of prey",
        source="wiki",
        kind=Kind.DECISION,
        source_type=SourceType.CONFLUENCE,
        url="https://wiki.example/x?id=1",
        tags=("birds", "adr"),
        metadata={
            "team": "red",
            "points": 3,
            "source_path": "docs/birds/kestrel.md",
            "title": "not this one",
        },
        created_at=datetime(2025, 1, 1, tzinfo=UTC),
        updated_at=datetime(2025, 6, 1, 12, tzinfo=UTC),
    )
    made.put(
        "Otters swim. A kestrel does not.",
        title="Otters",
        source="tracker",
        kind=Kind.WORK,
        source_type=SourceType.PBI,
        updated_at=datetime(2024, 3, 1, tzinfo=UTC),
        metadata={"team": "blue", "source_path": "items/otters.md"},
    )
    made.put(
        "Kilns fire clay, and no kestrel.",
        title="Ovens and kilns",
        source="wiki",
        metadata={"source_path": "docs/ovens.md"},
    )
    made.sql("update document set chunk_count = (select count(*) from chunk where document_id = document.id)")
    made.count()
    return made


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: Addresses, servers: embedded.Servers
) -> Run:
    """`run("search", "words", ...)`: the command on this test's database, on a screen of 80 columns."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    usual = {
        "LARDER_DATABASE_URL": addresses.app,
        "LARDER_CONTROL_DATABASE_URL": addresses.control,
        "LARDER_ADMIN_DATABASE_URL": addresses.admin,
        "LARDER_BROKER_URL": servers.broker_url,
        "LARDER_CONFIG": "larder.yaml",
        "COLUMNS": "80",
    }

    def invoke(*args: str, **env: str) -> Result:
        result = CliRunner().invoke(app, list(args), env={**usual, **env})
        for parts in runtime._current:
            parts.database.close()
        runtime._current.clear()
        return result

    return invoke


def found(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def titles(result: Result) -> list[str]:
    return [r["metadata"]["title"] for r in found(result)["results"]]


# --- search ---


@pytest.mark.req("001-033")
def test_results_are_json_as_promised(depot: Depot, run: Run) -> None:
    answer = found(run("search", "kestrel towers barns", "--json"))
    assert set(answer) == {"results", "degradation_level"}
    assert answer["degradation_level"] == 0
    first = answer["results"][0]
    assert set(first) == {"id", "document_id", "content", "score", "metadata"}
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
            "project_id": str(depot.project),
            "security_level": "internal",
            "team": "red",
            "points": 3,
        }
        == metadata
    )


@pytest.mark.req("001-033")
def test_explanations_come_on_request(depot: Depot, run: Run) -> None:
    for result in found(run("search", "kestrel", "--json", "--explain"))["results"]:
        e = result["explanation"]
        parts = e["vector_part"] + e["keyword_part"] + e["title_part"] + e["rare_part"]
        assert result["score"] == pytest.approx(parts, abs=1e-5)
        assert e["semantic_score"] is not None
        assert e["keyword_score"] is not None


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("vector", {"vector_part"}),
        ("keyword", {"keyword_part"}),
        ("hybrid", {"vector_part", "keyword_part", "title_part"}),
        ("HYBRID", {"vector_part", "keyword_part", "title_part"}),
    ],
)
def test_modes(depot: Depot, run: Run, mode: str, parts: set[str]) -> None:
    results = found(run("search", "the birds towers", "--mode", mode, "--explain", "--json"))["results"]
    assert {
        name for r in results for name, part in r["explanation"].items() if "part" in name and part
    } == parts


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-k", "1"], {"Birds"}),
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
        (["--security-level", "internal"], {"Birds", "Otters", "Ovens"}),
        (["--security-level", "public", "--security-level", "secret"], set()),
    ],
)
def test_filters(depot: Depot, run: Run, options: list[str], expected: set[str]) -> None:
    shown = titles(run("search", "kestrel", "--json", *options))
    assert {title.split()[0] for title in shown} == expected


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
def test_words_that_mean_nothing_are_named(depot: Depot, run: Run, options: list[str], said: str) -> None:
    plain = run("search", "kestrel", *options)
    assert plain.exit_code == 2
    assert said in " ".join(plain.stderr.split())
    assert "Traceback" not in plain.output
    as_json = run("search", "kestrel", "--json", *options)
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["success"] is False


def test_no_number_below_one_is_taken(depot: Depot, run: Run) -> None:
    assert run("search", "kestrel", "-k", "0").exit_code == 2


def test_the_screen_is_readable_at_eighty_columns(depot: Depot, run: Run) -> None:
    shown = run("search", "where is it nesting, in which towers?", "--mode", "keyword")
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
    other = run("search", "otters", "--mode", "keyword").stdout.splitlines()
    assert other[1].startswith("     tracker/work  2024-03-01 (")
    assert other[1].endswith("years old)  items/otters.md")


def test_the_screen_explains_on_request(depot: Depot, run: Run) -> None:
    shown = run("search", "kestrel", "--explain").stdout
    lines = shown.splitlines()
    head = next(n for n, line in enumerate(lines) if line.split()[:2] == ["#", "score"])
    assert lines[head].split()[2:4] == ["meaning", "words"]
    assert lines[head + 1].split()[0] == "1."
    assert "█" in lines[head + 1]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.req("001-032")
def test_documents_are_left_out_by_the_id_of_a_hit(depot: Depot, run: Run) -> None:
    first, second, *_ = found(run("search", "kestrel", "--json"))["results"]
    rest = found(
        run("search", "kestrel", "--json", "--exclude", first["id"], "--exclude", second["document_id"])
    )
    assert len(rest["results"]) == 1
    assert rest["results"][0]["id"] not in {first["id"], second["id"]}


def test_what_no_longer_holds_says_so(depot: Depot, run: Run) -> None:
    facts = {"decision_status": "superseded", "superseded_by": "ADR-[7] " + "x" * 90}
    depot.put("zebra crossing", title="Old zebras", kind=Kind.DECISION, metadata=facts)
    depot.put("a zebra", title="Zebras")
    results = {r["metadata"]["title"]: r for r in found(run("search", "zebra", "--json"))["results"]}
    assert results["Old zebras"]["metadata"]["standing"].startswith("superseded by ADR-[7]")
    assert "standing" not in results["Zebras"]["metadata"]
    shown = run("search", "zebra", "--explain").stdout.splitlines()
    assert any(line.startswith("     superseded by ADR-[7] x") and len(line) <= 80 for line in shown)
    assert any("outdated" in line and line.split()[:2] == ["#", "score"] for line in shown)
    depot.sql("update document set chunk_count = 1 where title = 'Old zebras'")
    why = run("explain", "Old zebras", "--query", "zebra").stdout
    assert "(lowered: superseded by ADR-[7]" in " ".join(why.split())
    assert "  outdated  -0." in why


def test_age_stands_in_the_answer(depot: Depot, run: Run) -> None:
    ages = [r["metadata"]["age_days"] for r in found(run("search", "kestrel", "--json"))["results"]]
    assert sorted(age is None for age in ages) == [False, False, True]
    assert all(age is None or age > 300 for age in ages)


def test_the_same_command_is_answered_from_memory_until_something_changes(depot: Depot, run: Run) -> None:
    first = found(run("search", "kestrel", "--json"))
    assert found(run("search", "kestrel", "--json")) == first
    depot.put("kestrel kestrel", title="New")
    assert "New" in titles(run("search", "kestrel", "--json"))


def test_bars_are_drawn_in_eighths_and_in_plain_signs() -> None:
    assert [bar(share, 2) for share in (0, 1 / 16, 0.5, 1, 7, -1)] == ["  ", "▏ ", "█ ", "██", "██", "  "]
    assert bar(0.5, 4, plain=True) == "##  "


def test_long_titles_are_cut_and_links_are_not(depot: Depot, run: Run) -> None:
    link = "https://wiki.example/" + "a" * 90
    depot.put("zebra", title="Z" * 300, url=link)
    lines = run("search", "zebra", "--mode", "keyword").stdout.splitlines()
    assert len(lines[0]) == 80
    assert lines[0].endswith("…")
    assert any(link in line for line in lines)


def test_nothing_found_and_nothing_indexed_are_told_apart(database: Database, tenant: UUID, run: Run) -> None:
    assert run("search", "kestrel").stdout.strip().startswith("nothing is indexed yet")
    Depot(database, tenant)
    assert run("search", "kestrel").stdout.strip() == "nothing found"
    assert found(run("search", "kestrel", "--json")) == {"results": [], "degradation_level": 0}


def test_a_switched_off_installation_says_so(depot: Depot, run: Run) -> None:
    Path("larder.yaml").write_text(CONFIG + "  enabled: false\n", encoding="utf-8")
    assert found(run("search", "kestrel", "--json")) == {"results": [], "degradation_level": 5}
    assert "switched off" in run("search", "kestrel").stdout


def test_a_database_that_is_away_is_e001(run: Run) -> None:
    away = "postgresql://larder_app:x@127.0.0.1:1/none"
    shown = run("search", "kestrel", "--json", LARDER_DATABASE_URL=away)
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["error"]["code"] == "E001"


# --- dates ---

NOW = datetime(2025, 7, 10, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("word", "end", "expected"),
    [
        ("2025-07-01", False, datetime(2025, 6, 30, 22, tzinfo=UTC)),
        ("2025-07-01", True, datetime(2025, 7, 1, 22, tzinfo=UTC)),
        ("2025-07-01T00:00:00Z", True, datetime(2025, 7, 1, tzinfo=UTC)),
        ("2025-07-01T02:00:00+02:00", False, datetime(2025, 7, 1, tzinfo=UTC)),
        ("2025-01-01T00:00:00", False, datetime(2024, 12, 31, 23, tzinfo=UTC)),
        ("7d", False, NOW - timedelta(days=7)),
        ("7d", True, NOW - timedelta(days=7)),
        (" 12H ", False, NOW - timedelta(hours=12)),
        ("2w", False, NOW - timedelta(weeks=2)),
        ("90m", False, NOW - timedelta(minutes=90)),
    ],
)
def test_moments(word: str, end: bool, expected: datetime) -> None:
    assert searching.moment("--since", word, NOW, BERLIN, end=end) == expected


@pytest.mark.parametrize("word", ["", "d", "-7d", "7 days", "2025-13-01", "1.1.2025", "99999999d", "now"])
def test_other_words_are_no_moments(word: str) -> None:
    with pytest.raises(ConfigurationError, match="is no date"):
        searching.moment("--since", word, NOW, BERLIN)


# --- explain ---


def id_of(depot: Depot, title: str) -> str:
    return str(depot.sql("select id from document where title like :t", t=f"{title}%")[0].id)


def test_a_document_may_be_named_in_many_ways(depot: Depot, run: Run) -> None:
    one = id_of(depot, "Birds")
    names = (one, one.upper(), f"{one}:1", "docs/birds/kestrel.md", "birds/kestrel.md", "./kestrel.md")
    for name in (*names, "https://wiki.example/x?id=1", "of PREY"):
        assert found(run("explain", name, "--json"))["document"]["id"] == one, name


def test_a_part_of_a_file_name_is_no_path(depot: Depot, run: Run) -> None:
    assert run("explain", "estrel.md").exit_code == 1
    assert run("explain", "100%").exit_code == 1
    assert run("explain", "").exit_code == 1


def test_a_name_that_fits_several_lists_them(depot: Depot, run: Run) -> None:
    shown = run("explain", "s")
    assert shown.exit_code == 1
    assert "fits 3 documents" in shown.stdout
    assert id_of(depot, "Otters") in shown.stdout
    answer = json.loads(run("explain", "ov", "--json").stdout)["document"]
    assert answer["title"] == "Ovens and kilns"
    several = run("explain", "s", "--json")
    assert several.exit_code == 1
    data = json.loads(several.stdout)
    assert data["success"] is False
    assert [c["title"] for c in data["candidates"]] != []
    assert set(data["candidates"][0]) == {"id", "source", "external_id", "title"}


def test_where_a_document_stands(depot: Depot, run: Run) -> None:
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
    depot: Depot, run: Run, tmp_path: Path
) -> None:
    full = "cache " * 249
    depot.put(
        full, full + "and more words here", "short", title="Caches", context="Caches > Sizes", source="wiki"
    )
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] == 0
    minilm = CONFIG.replace("{provider: hashing, dimensions: 32}", "{provider: minilm}")
    (tmp_path / "larder.yaml").write_text(minilm, encoding="utf-8")
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] == 1
    assert ", 1 longer than the model reads: their ends are found by their words only" in " ".join(
        run("explain", "Caches").stdout.split()
    )
    (tmp_path / "larder.yaml").write_text(
        minilm.replace("minilm}", "minilm, modelPath: ./none}"), encoding="utf-8"
    )
    assert found(run("explain", "Caches", "--json"))["document"]["chunks_cut"] is None


def test_failures_are_told(depot: Depot, run: Run) -> None:
    depot.sql("""
        update document set state = 'dead', stage = 'chunked', attempts = 3, last_error = 'it is [bold]broken[/]',
               desired_version = 2, pipeline_version = 'new' where title = 'Otters'""")
    depot.sql("""
        insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts, crash_count)
        select tenant_id, source_id, id, 2, stage, 'E002', 'it is broken', 3, 0 from document where title = 'Otters'""")
    d = found(run("explain", "Otters", "--json"))["document"]
    assert d["dead_letter"]["reason"] == "it is broken"
    assert d["attempts"] == 3
    text = run("explain", "Otters").stdout
    assert "version     2 wanted, 1 indexed" in text
    assert "last error  it is [bold]broken[/]" in text
    assert "dead letter E002 at stage chunked after 3 attempts: it is broken" in text


def test_a_waiting_document_tells_its_next_try(depot: Depot, run: Run) -> None:
    depot.sql("update document set state = 'pending', due_at = '2031-01-01T00:00:00Z' where title = 'Otters'")
    assert found(run("explain", "Otters", "--json"))["document"]["next_try"].startswith("2031-01-01")


@pytest.mark.parametrize(
    ("options", "change", "reason", "said"),
    [
        (["--query", "otters swim"], "", "found", "found: rank 1, score"),
        (["--query", "kestrel", "-k", "1"], "", "beyond", "beyond the 1 results shown; score"),
        (["--query", "kestrel", "--kind", "decision"], "", "filtered", "kept out by the filter: kinds"),
        (["--query", "otters", "--since", "1d", "--tag", "x"], "", "filtered", "tags and since"),
        (["--query", "clay", "--mode", "keyword"], "", "no_match", "none of the question's words"),
        (["--query", " "], "", "empty", "the question is empty"),
        (["--query", "otters"], "hidden = true", "hidden", "the last complete walk"),
        (["--query", "otters"], "deleted = true", "deleted", "its source no longer has it"),
        (["--query", "otters"], "indexed_version = null, stage = 'chunked'", "not_indexed", "stage chunked"),
        (["--query", "otters"], "chunk_count = 0", "no_text", "no text"),
    ],
)
def test_why_a_question_finds_it_or_not(
    depot: Depot, run: Run, options: list[str], change: str, reason: str, said: str
) -> None:
    if change:
        depot.sql(f"update document set {change} where title = 'Otters'")
    answer = found(run("explain", "Otters", *options, "--json"))["query"]
    assert answer["reason"] == reason
    assert said in answer["detail"]
    assert answer["found"] is (reason == "found")
    assert said in run("explain", "Otters", *options).stdout


def test_below_the_threshold_is_told_with_both_figures(depot: Depot, run: Run) -> None:
    Path("larder.yaml").write_text(
        CONFIG.replace("minSimilarity: 0", "minSimilarity: 0.99"), encoding="utf-8"
    )
    answer = found(run("explain", "Otters", "--query", "clay", "--json"))["query"]
    assert answer["reason"] == "below"
    assert "0.990 is asked for" in answer["detail"]
    assert answer["explanation"]["semantic_score"] < 0.99


def test_outside_the_candidates_is_told_with_its_scores(depot: Depot, run: Run) -> None:
    Path("larder.yaml").write_text(
        CONFIG.replace("minSimilarity: 0", "minSimilarity: 0, candidates: 1"), encoding="utf-8"
    )
    answer = found(run("explain", "Otters", "--query", "kestrel towers barns fields", "--json"))["query"]
    assert answer["reason"] == "candidates"
    assert "not among the 1 best of either search" in answer["detail"]
    assert "similarity" in answer["detail"]
    assert "BM25" in answer["detail"]


def test_other_tenants_documents_are_not_there(depot: Depot, database: Database, run: Run) -> None:
    other = Depot(database)
    theirs = other.put("kestrel secret", title="Secret plan")
    assert run("explain", str(theirs)).exit_code == 1
    assert run("explain", "Secret plan").exit_code == 1
    assert "Secret plan" not in titles(run("search", "kestrel secret", "--json"))
