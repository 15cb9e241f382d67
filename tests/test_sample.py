"""The sample product: counts, well-formed files, links that lead somewhere, questions with an answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import frontmatter
import pytest

from connectors import FileOptions
from workers.settings.loading import load

SAMPLE = Path(__file__).resolve().parents[1] / "deploy/sample"
PAGES = sorted(p for p in (SAMPLE / "docs").rglob("*.md") if p.name != "CHANGELOG.md")
DECISIONS = [p for p in PAGES if p.parent.name == "adr"]
NOTES = sorted((SAMPLE / "notes").glob("*.txt"))
OUTPUTS = sorted((SAMPLE / "output").rglob("*.json"))
CAST = {"Odalys", "Tobin", "Kesia", "Merrit"}
PBI_KEYS = {
    "id",
    "type",
    "title",
    "description",
    "acceptance_criteria",
    "priority",
    "labels",
    "created_at",
    "confidence_score",
    "dependencies",
}
REAL_NAMES = (
    "google|amazon|microsoft|apple|oracle|ibm|meta|facebook|openai|anthropic|github|gitlab|atlassian|salesforce|sap|"
    "slack|stripe|cloudflare|docker|maersk|msc|hapag|cosco|evergreen|wärtsilä|kongsberg|navis|marinetraffic|"
    "rotterdam|hamburg|antwerp|singapore|felixstowe|gothenburg|oslo|bergen"
)

identity = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(SAMPLE).as_posix())


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def pbis_of(path: Path) -> list[dict[str, Any]]:
    content = json.loads(text_of(path))
    if "scored_pbis" in content:
        assert all(set(item) == {"pbi", "scores"} for item in content["scored_pbis"])
        return [item["pbi"] for item in content["scored_pbis"]]
    items: list[dict[str, Any]] = content["pbis"]
    return items


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n+(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading}"
    return found[1].strip()


def test_there_is_enough_of_everything() -> None:
    assert len(PAGES) - len(DECISIONS) >= 34
    assert len(DECISIONS) >= 8
    assert len(NOTES) >= 5
    finals = [p for p in OUTPUTS if p.name == "final-output.json"]
    assert {p.parent.name for p in finals} == {"run-2026-09-14", "run-2026-10-19"}
    assert all(8 <= len(pbis_of(p)) <= 12 for p in finals)
    assert [p.name for p in OUTPUTS if p not in finals] == ["step-3-score-confidence.json"]


@pytest.mark.req("001-082")
def test_the_configuration_is_accepted_and_every_source_finds_files() -> None:
    settings = load(SAMPLE / "larder.yaml", {}).rag
    assert (settings.embedding.provider, settings.embedding.model) == ("minilm", "all-MiniLM-L6-v2")
    sources = {source.name: source for source in settings.sources if isinstance(source, FileOptions)}
    assert {name: source.type for name, source in sources.items()} == {
        "product_docs": "markdown",
        "pipeline_outputs": "pbi_json",
        "notes": "text",
    }
    assert sources["product_docs"].watch
    assert sources["product_docs"].exclude == ("**/CHANGELOG.md",)
    for source in sources.values():
        assert all(list(SAMPLE.glob(path.removeprefix("./"))) for path in source.paths), source.name


@identity
def test_a_page_has_front_matter_and_a_body_of_fitting_size(page: Path) -> None:
    post = frontmatter.loads(text_of(page))
    assert set(post.metadata) == {"title", "tags", "category", "author", "date"}
    assert isinstance(post["tags"], list)
    assert post["tags"]
    assert isinstance(post["date"], date)
    assert post["author"] in CAST
    assert 300 <= len(post.content) <= 3000
    assert re.findall(r"^# (.+)$", post.content, re.MULTILINE)[0] == post["title"]


def test_titles_differ() -> None:
    titles = Counter(frontmatter.loads(text_of(page))["title"] for page in PAGES)
    assert [title for title, count in titles.items() if count > 1] == []


def test_code_tables_and_headings_are_common() -> None:
    texts = [text_of(page) for page in PAGES]
    assert sum("\n```" in text for text in texts) >= 15
    assert sum("\n|---" in text for text in texts) >= 15
    assert sum(text.count("\n## ") >= 1 for text in texts) >= len(PAGES) - 5
    assert all(text.count("\n```") % 2 == 0 for text in texts)


@identity
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        assert "://" not in target, target
        assert (page.parent / target.split("#")[0]).resolve() in PAGES, target


def test_pages_are_linked_to_each_other() -> None:
    linked = [page for page in PAGES if re.search(r"\]\(\S+\.md\)", text_of(page))]
    assert len(linked) >= len(PAGES) * 0.8


@pytest.mark.parametrize("page", DECISIONS, ids=lambda p: p.stem)
def test_a_decision_record_has_its_four_sections(page: Path) -> None:
    body = frontmatter.loads(text_of(page)).content
    assert re.match(r"Accepted|Superseded by", section(body, "Status"))
    assert all(len(section(body, name)) > 80 for name in ("Context", "Decision", "Consequences"))
    assert page.name[:4] in body.splitlines()[0]


def test_one_decision_is_superseded_and_its_successor_says_so() -> None:
    status = {page.name: section(text_of(page), "Status") for page in DECISIONS}
    superseded = {name: text for name, text in status.items() if text.startswith("Superseded")}
    assert len(superseded) == 1
    [(old, text)] = superseded.items()
    successor = re.search(r"\((\S+\.md)\)", text)
    assert successor
    assert f"Supersedes [ADR {old[:4]}]({old})" in status[successor[1]]


def test_backlog_items_are_complete_and_depend_on_known_ones() -> None:
    everything = list(chain.from_iterable(pbis_of(path) for path in OUTPUTS))
    known = {pbi["id"] for pbi in everything}
    for pbi in everything:
        assert set(pbi) == PBI_KEYS
        assert re.fullmatch(r"PBI-\d{3}", pbi["id"])
        assert pbi["acceptance_criteria"]
        assert len(pbi["description"]) > 40
        assert 0 < pbi["confidence_score"] <= 1
        assert datetime.fromisoformat(pbi["created_at"]).tzinfo is not None
        assert set(pbi["dependencies"]) <= known - {pbi["id"]}


def test_some_items_come_in_both_runs_and_changed() -> None:
    first, second = (
        {p["id"]: p for p in pbis_of(SAMPLE / f"output/{run}/final-output.json")}
        for run in ("run-2026-09-14", "run-2026-10-19")
    )
    shared = first.keys() & second.keys()
    assert len(shared) >= 2
    for number in shared:
        assert first[number]["title"] == second[number]["title"]
        assert first[number]["description"] != second[number]["description"]
        assert first[number]["created_at"] < second[number]["created_at"]


def test_no_item_stands_twice_in_one_run() -> None:
    runs: dict[str, list[str]] = {}
    for path in OUTPUTS:
        runs.setdefault(path.parent.name, []).extend(pbi["id"] for pbi in pbis_of(path))
    assert all(len(ids) == len(set(ids)) for ids in runs.values())


class TestQuestions:
    questions: list[dict[str, str]] = json.loads(text_of(SAMPLE / "questions.json"))

    def answer(self, expected: str) -> str:
        if expected.startswith("PBI-"):
            found = [p for path in OUTPUTS for p in pbis_of(path) if p["id"] == expected]
            return " ".join(f"{p['title']} {p['description']}" for p in found)
        return text_of(SAMPLE / expected)

    def test_three_questions_of_three_kinds(self) -> None:
        assert all(set(q) == {"question", "expect", "why"} for q in self.questions)
        kinds = ["adr" if "/adr/" in q["expect"] else q["expect"].split("-")[0] for q in self.questions]
        assert kinds == ["adr", "PBI", "notes/postmortem"]

    def test_every_expected_document_exists(self) -> None:
        assert all(self.answer(q["expect"]) for q in self.questions)

    def test_no_question_repeats_its_page(self) -> None:
        for q in self.questions:
            asked = {w for w in re.findall(r"[a-z]+", q["question"].lower()) if len(w) > 4}
            said = set(re.findall(r"[a-z]+", self.answer(q["expect"]).lower()))
            assert len(asked & said) <= len(asked) / 2, asked & said


def test_nobody_real_is_named() -> None:
    files = [*PAGES, *NOTES, *OUTPUTS, *SAMPLE.glob("*.*")]
    for path in files:
        found = re.findall(rf"\b(?:{REAL_NAMES})\b", text_of(path), re.IGNORECASE)
        assert found == [], f"{path.name}: {found}"
        assert not re.search(r"https?://|[\w.]+@[\w.]+\.\w+", text_of(path)), path.name
