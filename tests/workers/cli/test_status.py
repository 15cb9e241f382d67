"""larder status: fits a small terminal, says what to do next, works when servers are away."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from workers import runtime
from workers.app.health.judgement import judge
from workers.cli import status
from workers.cli.tables import duration_text

app = typer.Typer()
app.command()(status.status)
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Callable[..., Result]:
    """`run("--json", LARDER_BROKER_URL=...)`: the command on this test's database."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "larder.yaml").write_text("rag: {tenant: acme}\n", encoding="utf-8")
    usual = {**environment, "LARDER_CONFIG": "larder.yaml"}

    def invoke(*args: str, **env: str) -> Result:
        result = CliRunner().invoke(app, list(args), env={**usual, **env})
        runtime.current().database.close()
        return result

    return invoke


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The address of no database: its port is taken by one who does not listen, so that nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://larder_app:x@127.0.0.1:{taken.getsockname()[1]}/none"


def test_without_anything_the_next_step_is_named(run: Callable[..., Result]) -> None:
    shown = run()
    assert shown.exit_code == 0, shown.output
    assert "larder config init" in shown.stdout.rstrip().splitlines()[-1]
    found = json.loads(run("--json").stdout)
    assert (found["sources"], found["database"], found["broker"]) == ([], "ok", "ok")
    assert (found["degradation_level"], found["enrichment"]["waiting"]) == (0, 0)
    labels = [line.split("  ")[0].strip() for line in shown.stdout.splitlines()]
    assert {"backlog", "step 4"} <= {label[:7].strip() for label in labels}, "a label was cut"


def test_without_a_broker_the_screen_is_there(run: Callable[..., Result]) -> None:
    shown = run(LARDER_BROKER_URL=AWAY)
    assert shown.exit_code == 0, shown.output
    assert "broker away" in shown.stdout
    assert "unknown: the broker cannot be reached" in shown.stdout
    found = json.loads(run("--json", LARDER_BROKER_URL=AWAY).stdout)
    assert found["backlog"]["queues"] is None


def test_a_silent_broker_is_asked_for_its_lengths_and_why_and_no_more(run: Callable[..., Result]) -> None:
    """Each question to it takes three seconds, of the health page too."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        found = json.loads(
            run("--json", LARDER_BROKER_URL=f"redis://127.0.0.1:{silent.getsockname()[1]}/0").stdout
        )
        asked = 0
        silent.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert (found["broker"], found["backlog"]["set_aside"], asked) == ("error", None, 2)


def test_without_a_database_there_is_a_sentence(run: Callable[..., Result], nowhere: str) -> None:
    away = {"LARDER_DATABASE_URL": nowhere, "LARDER_CONTROL_DATABASE_URL": nowhere}
    shown = run(**away)
    assert shown.exit_code == 1
    assert "database away" in shown.stdout
    assert shown.stderr.startswith("E001: the database does not answer")
    assert "Traceback" not in shown.output
    answered = run("--json", **away)
    assert answered.exit_code == 1
    assert json.loads(answered.stdout)["database"] == "error"


def test_watching_gives_no_document(run: Callable[..., Result]) -> None:
    result = CliRunner().invoke(app, ["--watch", "--json"])
    assert result.exit_code == 2
    assert "--watch and --json" in result.stderr


# The screen ---------------------------------------------------------------------------------------


def source(name: str, **changes: Any) -> dict[str, Any]:
    """A source as in `status --json`."""
    return {
        "name": name,
        "tenant": "acme",
        "type": "markdown",
        "documents": 12345,
        "chunks": 123456,
        "pending": 1234,
        "dead": 0,
        "hidden": 0,
        "freshness_seconds": 75.0,
        "last_error": None,
        "next_sync": None,
        "paused": False,
        "held": 0,
        "left_out": {},
        "noted": 0,
        "removed": False,
        "dead_letters": [],
        "problems": [],
        "last_run": None,
        **changes,
    }


JOBS = {"waiting": 0, "running": 0, "failed": 0, "oldest_seconds": None}
OTHER_INDEX = {"model": "m", "status": "building", "documents": 1, "total": 2, "stale": 0, "dead": 0}


def picture(sources: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A status document."""
    backlog = {
        "pending": 123,
        "by_stage": {"fetched": 100, "chunked": 0, "embedded": 23},
        "oldest_due_seconds": 61.0,
    }
    queues = {"control": 1, "ingest": 22, "embed": 333}
    index = {"model": "all-MiniLM-L6-v2", "dimensions": 384, "status": "active", "chunks": 123456}
    return {
        "sources": sources,
        "backlog": {**backlog, "in_flight": 32, "dead": 0, "queues": queues, "set_aside": 0},
        "enrichment": JOBS,
        "workers": [{"name": f"worker-{q}@host", "queues": [q], "age_seconds": 3.0} for q in queues],
        "canaries": dict.fromkeys(queues, 42.0),
        "unserved": {},
        "vector_stores": {"provider": "pgvector", "answers": "pgvector", "stores": []},
        "index": {**index, "vector_index": "hnsw", "keyword_index": "gin"},
        "partial": None,
        "embedding": {
            "state": "ok",
            "until": None,
            "error": None,
            "documents": 0,
            "today": [],
            "last_load": {"texts": 0, "cut": 0},
        },
        "other_indexes": [],
        "index_mismatch": "",
        "alerts": [],
        "degradation_level": 0,
        "database": "ok",
        "database_seconds": 0.0,
        "disk_free": 10**10,
        "broker": "ok",
        "broker_error": "",
        "broker_shared_with": "",
        "configuration_changes": [],
        "unwatched": [],
        "missing_folders": {},
        "unconfigured": [],
        "next": [],
        **changes,
    }


def drawn(found: dict[str, Any], width: int = 80) -> tuple[list[str], str]:
    """(lines as text, the same with colours)."""
    plain, coloured = (
        Console(
            width=width,
            force_terminal=colour,
            color_system="standard" if colour else None,
            no_color=not colour,
        )
        for colour in (False, True)
    )
    with plain.capture() as first:
        plain.print(status.screen(found))
    with coloured.capture() as second:
        coloured.print(status.screen(found))
    return first.get().rstrip("\n").split("\n"), second.get()


def test_a_worker_that_was_stopped_is_not_simply_gone() -> None:
    """Within the grace there is nothing to do, and something to see."""
    lines, _ = drawn(picture([source("docs")], unserved={"enrich": 12.0, "embed": None}))
    assert f"none serves enrich since {duration_text(12.0)}" in " ".join(" ".join(lines).split())


RED, YELLOW = "\x1b[31m", "\x1b[33m"


@pytest.mark.req("001-081")
def test_five_sources_in_trouble_fit_the_smallest_terminal() -> None:
    problems = [
        {"item": f"docs/a/rather/long/path/{n}.md", "reason": "it is binary " * 9, "outcome": "failed"}
        for n in range(9)
    ]
    troubled = [
        source(
            f"a-source-with-a-long-name-{n}",
            dead=3,
            last_error="the source answers with 503 and a very long explanation that goes on and on and on",
            problems=problems,
        )
        for n in range(5)
    ]
    letters = {
        "check": "dead letters",
        "status": "warning",
        "detail": "15 dead letters",
        "fix": "larder dead list",
    }
    lines, _ = drawn(picture(troubled, next=[letters] * 9))
    assert len(lines) <= 24
    assert max(len(line.rstrip()) for line in lines) <= 80
    text = "\n".join(lines)
    assert all(
        word in text for word in ("docs", "chunks", "pending", "dead", "hidden", "fresh", "next", "state")
    )
    assert "12345" in text
    assert "123456" in text
    assert [line.strip() for line in lines[-3:]] == [
        "next  15 dead letters: larder dead list",
        "15 dead letters: larder dead list",
        "... and 7 more; see larder status --json",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_are_whole_on_every_screen(width: int) -> None:
    long = "runbooks-for-operators-and-their-friends"
    error = "the source answers with 503 and an explanation"
    sources = [source("docs", documents=1_234_567, last_error=error), source(long, dead=7)]
    lines, _ = drawn(picture(sources), width)
    assert max(len(line) for line in lines) <= width
    assert "…" not in "".join(lines)
    run_on = "".join("".join(line.split()) for line in lines)
    assert "1234567" in run_on
    if width == 120:  # else the numbers stand between the halves of a name
        assert long in run_on
    assert all(f"{q}{n}" in run_on for q, n in (("control", 1), ("ingest", 22), ("embed", 333)))
    assert error.replace(" ", "") in run_on


def test_what_is_right_has_no_colour() -> None:
    lines, coloured = drawn(picture([source("docs")]))
    assert RED not in coloured
    assert YELLOW not in coloured
    assert lines[-1].strip() == "nothing to do"
    text = "\n".join(lines)
    for words in (
        "123 pending (100 fetched, 23 embedded), 32 in flight; oldest due 1m",
        "(seen within 42s)",
    ):
        assert words in text
    assert "worker-control, worker-ingest, worker-embed" in text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (picture([source("docs", dead=1)]), "1"),
        (picture([source("docs", last_error="no")]), "failing"),
        (picture([source("docs", held=40)]), "40 to approve"),
        (picture([source("docs", paused=True)]), "paused"),
        (picture([source("docs")], broker="error"), "broker"),
        (picture([source("docs")], database_seconds=2.24), "database slow (2.2 s)"),
        (picture([source("docs")], enrichment=JOBS | {"failed": 2}), "2 failed"),
        (picture([source("docs")], other_indexes=[OTHER_INDEX | {"dead": 3}]), "3 dead"),
        (
            picture(
                [source("docs")], workers=[{"name": "worker-embed@h", "queues": [], "age_seconds": 90.0}]
            ),
            "silent 1m",
        ),
        (
            picture(
                [source("docs")],
                alerts=[
                    {
                        "name": "held_deletions",
                        "subject": "acme/[docs]",
                        "since": "2026-01-01T00:00:00+00:00",
                    },
                    *({"name": "oldest_due", "subject": "", "since": "2026-01-01T00:00:00+00:00"},) * 4,
                ],
            ),
            "held_deletions acme/[docs] for ",
        ),
    ],
)
def test_what_is_wrong_has_a_colour(wrong: dict[str, Any], words: str) -> None:
    _, coloured = drawn(wrong)
    assert words in coloured
    assert RED in coloured or YELLOW in coloured or "\x1b[1;31m" in coloured


def test_messages_that_no_worker_could_take_are_told() -> None:
    found = picture([source("docs")])
    found["backlog"]["set_aside"] = 2
    assert "2 messages quarantined" in "\n".join(drawn(found, width=120)[0])


def test_names_with_brackets_are_no_markup() -> None:
    problem = {"item": "[red]a.md", "reason": "has [/b] in it", "outcome": "failed"}
    lines, _ = drawn(picture([source("docs", problems=[problem], last_error="[/] is wrong")]))
    text = "\n".join(lines)
    assert "[red]a.md: has [/b] in it" in text
    assert "[/] is wrong" in text


def test_two_tenants_are_told_apart() -> None:
    lines, _ = drawn(picture([source("docs"), source("docs", tenant="other")]))
    assert "acme/docs" in "\n".join(lines)
    assert "other/docs" in "\n".join(lines)


def test_a_run_under_way_is_shown() -> None:
    lines, _ = drawn(picture([source("docs", last_run={"finished_at": None})]))
    assert "syncing" in "\n".join(lines)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "never"), (-0.5, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (200_000, "2d")],
)
def test_times_as_people_say_them(seconds: float | None, words: str) -> None:
    assert duration_text(seconds) == words


def test_a_source_with_failed_files_is_not_well_and_one_without_documents_is_not_fresh() -> None:
    problem = {"item": "a.md", "reason": "a.md is not UTF-8", "outcome": "failed"}
    found = picture([source("docs", problems=[problem], documents=0)])
    lines, _ = drawn(found)
    (line,) = (text for text in lines if text.rstrip().endswith("1 failed"))
    assert "1m" not in line
    assert " 1m " in next(text for text in drawn(picture([source("docs")]))[0] if text.startswith("docs"))
    assert "\n".join(lines).count("a.md") == 1, "it is named once"
    assert [one.detail for one in judge(found)] == ["1 of docs could not be taken in"]


def test_a_load_that_goes_on_is_not_late() -> None:
    found = picture([source("docs")])
    found["backlog"]["oldest_due_seconds"] = 1900.0
    assert judge(found) == []
    found["canaries"]["embed"] = 1500.0
    assert "larder doctor" in {one.fix for one in judge(found)}


@pytest.mark.parametrize(
    ("cut", "said"),
    [(5807, "39% of 14,890 texts are longer than the model reads: docs/search.md"), (100, ""), (0, "")],
)
def test_texts_that_the_model_cuts_are_told_if_they_are_many(cut: int, said: str) -> None:
    found = picture([])
    found["embedding"]["last_load"] = {"texts": 14_890, "cut": cut}
    lines, _ = drawn(found)
    told = [line for line in lines if line.startswith("cut")]
    assert [line.split(None, 1)[1].strip() for line in told] == ([said] if said else [])


def test_what_a_removed_source_left_out_is_nobodys_task() -> None:
    problem = {"item": "docs/a.md", "outcome": "skipped", "reason": "there is no folder docs"}
    gone = source("docs", problems=[problem], left_out={"absent": 2}, removed=True)
    lines, _ = drawn(picture([gone]))
    assert "no folder" not in "\n".join(lines)
    assert "excluded" not in "\n".join(lines)
