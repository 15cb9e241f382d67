"""The commands for user stories: seed a file, find, count and remove what it held."""

from __future__ import annotations

import csv
import io

import pytest

from pipeline.stories import store_generated_stories
from tests.conftest import Site
from tests.pipeline.stories.storyteller import remembering, story
from tests.workers.cli.asking import Run, found
from workers.app.enrichment.stories import memory_of
from workers.runtime import Addresses, Runtime
from workers.settings import load

ROWS = [
    ("US-1", "Reset", "As a user, I want to reset my password by mail", "auth", "M"),
    ("US-2", "Bad", "As a user, I want my account locked", "auth", "medium"),
    ("US-3", "Invoice", "As a clerk, I want to print an invoice", "billing", "S"),
]


def table() -> str:
    text = io.StringIO()
    heads = ("User Story ID", "Title", "User Story", "Tags/Labels", "T-Shirt Size")
    csv.writer(text).writerows([heads, *ROWS])
    return text.getvalue()


@pytest.mark.req("000-047", "000-025")
def test_an_export_is_seeded_and_its_bad_row_is_named(site: Site) -> None:
    site.prepare()
    site.write("larder.yaml", "rag:\n  embedding: {provider: hashing}\n")
    site.write("export.csv", table())
    seeded = site.larder("stories", "seed", "export.csv", "--json")
    assert seeded.code == 3, seeded.err
    refused = [{"row": 3, "reason": "tshirt_size: String should have at most 5 characters"}]
    assert seeded.data == {"success": False, "stored": 2, "skipped": 0, "refused": refused}
    assert "row 3: tshirt_size" in seeded.err
    assert site.larder("stories", "stats", "--json").data["by_source_agent"] == {"seed": 2}


def test_what_no_file_of_stories_is_needs_no_server(run: Run) -> None:
    refused = run("stories", "seed", "export.txt", LARDER_DATABASE_URL="postgresql://x:y@127.0.0.1:1/none")
    assert refused.exit_code == 2
    assert "export.txt is no .json, .csv or .xlsx" in refused.stderr


@pytest.mark.req("000-055", "000-046", "000-042", "001-118")
def test_stories_are_found_counted_and_removed_and_those_of_other_tenants_are_not(
    run: Run, environment: dict[str, str]
) -> None:
    settings = load(None, environment)
    runtime = Runtime(settings, Addresses(database=environment["LARDER_DATABASE_URL"]))
    ours, theirs = memory_of(runtime, settings.tenant_id, "acme"), remembering(runtime.database)
    for memory in (ours, theirs):
        made = [
            story(f"reset a password of {memory.tenant}", source_doc_id="run-1", title="[red]Reset[/red]")
        ]
        assert store_generated_stories(made, memory=memory) == 1
    runtime.database.close()
    shown = found(run("stories", "search", "reset a password", "--threshold", "0.1", "--json"))["stories"]
    assert [one["user_story_text"] for one in shown] == [f"reset a password of {ours.tenant}"]
    screen = run("stories", "search", "reset a password", "--threshold", "0.1")
    assert "[red]Reset[/red]" in screen.stdout
    assert "no story is similar enough" in run("stories", "search", "zebra", "--threshold", "0.99").stdout
    prompt = run("stories", "search", "reset", "--prompt", "--threshold", "0.1", RAG_MIN_STORIES="1")
    assert "--- Reference Example 1 (relevance: " in prompt.stdout
    assert f'"user_story": "reset a password of {ours.tenant}"' in prompt.stdout
    few = run("stories", "search", "reset", "--prompt", RAG_MIN_STORIES="2").stdout
    assert "no story is an example before there are 2 (stories.minStories): 1 so far" in few
    other = run("stories", "search", "reset", RAG_EMBEDDING_MODEL="all-MiniLM-L6-v2").stdout
    assert "no story is embedded by all-MiniLM-L6-v2: `larder stories seed` embeds all 1 anew" in other
    assert "while rag.enabled is false" in run("stories", "search", "reset", RAG_ENABLED="false").stdout
    assert found(run("stories", "stats", "--json")) == {
        "total_stories": 1,
        "by_source_agent": {"unknown": 1},
        "average_confidence_score": 0.9,
        "edited": 0,
        "by_model": {ours.model: 1},
    }
    assert run("stories", "delete", "run-1").exit_code == 2
    assert found(run("stories", "delete", "run-1", "--yes", "--json"))["deleted"] == 1
    assert found(run("stories", "stats", "--json"))["total_stories"] == 0
    assert "no story came from run-1" in run("stories", "delete", "run-1", "--yes").stdout
    assert "there is no story yet" in run("stories", "search", "reset").stdout
