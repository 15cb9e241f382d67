"""From a PBI to its context, on a real database; every quotation of every answer is looked up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import Connection

from connectors import open_source
from connectors.documents.options import DecisionRules, SourceContext
from connectors.files.options import MarkdownOptions
from pipeline.documents import Json, Kind
from pipeline.embedding import Vectors
from pipeline.embedding.calls import embed_query_checked
from pipeline.enrichment.prompt import prompt_block
from pipeline.enrichment.references import DocumentText, DocumentTexts, FoundDocument, LikelyDocument
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import StoreUnavailable
from pipeline.search import Hit
from pipeline.search.chunk_store import SearchIndex, open_index
from pipeline.search.records import Filter
from tests.pipeline.enrichment.library import (
    LIBRARY,
    PBI,
    answer,
    by_ref,
    checked,
    enricher,
    manual,
    refs,
    stocked,
    work,
)
from tests.pipeline.enrichment.stock import Stock, hit
from tests.pipeline.source_ledger import DIMENSIONS, SourceLedger

Texts = Mapping[UUID, DocumentText]


@pytest.fixture
def library(notes: SourceLedger) -> SourceLedger:
    return stocked(notes)


@pytest.mark.req("001-085", "001-086", "001-087", "001-088", "001-089", "001-090")
def test_each_section_is_filled_from_its_own_kind_of_document(library: SourceLedger) -> None:
    found = answer(library)
    assert refs(found, "similar_work")[0] == "PBI-7"
    assert refs(found, "past_decisions") == ["adr/0001.md", "adr/0003.md"]
    assert refs(found, "technical_docs") == ["guides/export.md"]
    assert found["risk_flags"] == []
    assert found["degradation_level"] == 0
    best = found["similar_work"][0]
    assert best["title"] == "Export invoices as CSV"
    assert best["link"] == "https://board.example/PBI-7"
    assert isinstance(best["similarity"], int)
    assert 50 < best["similarity"] <= 100
    assert found["technical_docs"][0]["link"] == "#"


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://board.example/1", "https://board.example/1"),
        ("file:///srv/docs/a.md", "#"),
        ("javascript:alert(1)", "#"),
        ("\x01JaVa\tScript:alert(1)//https://board.example", "#"),
        ("data:text/html,<script>alert(1)</script>", "#"),
        ("vbscript:x", "#"),
        ("//board.example/1", "#"),
        ("", "#"),
    ],
)
def test_a_link_leads_to_a_page_and_runs_nothing(url: str, link: str) -> None:
    one = hit()
    found = FoundDocument(
        LikelyDocument(
            hit=replace(one, document=replace(one.document, url=url)), probability=1.0, by="words"
        ),
        None,
        frozenset(),
    )
    assert found.link == link


def test_similar_work_tells_what_was_learned_how_it_ended_and_how_old_it_is(notes: SourceLedger) -> None:
    found = answer(stocked(notes))
    best = by_ref(found, "similar_work", "PBI-7")
    assert best["learnings"] == [
        "Streaming the rows kept the memory flat.",
        "Building the file in memory crashed twice.",
    ]
    assert (best["status"], best["outcome"], best["abandoned"]) == ("Done", "Fixed", False)
    assert (best["updated_at"], best["age_days"]) == ("2026-05-01", 31)


def test_work_that_was_given_up_says_so_with_the_last_comment(notes: SourceLedger) -> None:
    found = answer(stocked(notes), {"title": "Import invoices of the old system, tax numbers too"})
    item = by_ref(found, "similar_work", "PBI-8")
    assert item["abandoned"]
    assert item["learnings"] == ["Given up: the old export has no tax numbers."]


def test_decisions_come_with_status_and_day(notes: SourceLedger) -> None:
    second, first = answer(stocked(notes))["past_decisions"]
    assert (first["status"], first["decided_at"], first["superseded_by"]) == ("accepted", "2025-04-02", None)
    assert (first["date"], first["assigned_architect"]) == ("2025-04-02", "Ann, Bob")
    assert first["decision"] == (
        "Every export of invoices as CSV is streamed row by row. No export is built in memory."
    )
    assert first["rationale"] == "Exports of invoices for the tax office filled the memory."
    assert (second["status"], second["superseded_by"]) == ("superseded", "ADR 3")


def test_a_document_shows_the_passage_that_fits_and_not_its_beginning(notes: SourceLedger) -> None:
    (guide,) = answer(stocked(notes))["technical_docs"]
    assert guide["relevant_sections"] == [
        (
            "Encoding: A CSV of invoices is written as UTF-8 with a byte order mark, so that the spreadsheet of the tax"
            " office opens it."
        )
    ]


def test_a_passage_is_at_most_200_characters_even_of_one_endless_sentence() -> None:
    endless = "some filler words and " * 8 + "the tax office reads CSV of invoices and " + "other words " * 13
    text = f"# CSV for the tax office\n\n{endless}"
    found = Stock([hit(1, text, title="CSV for the tax office", kind=Kind.REFERENCE)]).answer(PBI)
    (section, *_) = found["technical_docs"][0]["relevant_sections"]
    assert 100 < len(section) <= 200
    assert "the tax office reads CSV of invoices" in section
    assert section.startswith("… "), "the title is not repeated as a heading"
    assert section.endswith(" …")


def test_of_a_document_of_code_alone_nothing_is_quoted(notes: SourceLedger) -> None:
    code = manual("guides/code.md", "Export invoices", "```\nexport_invoices(csv=True)  # tax office\n```")
    found = answer(stocked(notes, code))
    assert "guides/code.md" not in refs(found, "technical_docs"), "nothing of it could be shown"


def test_a_number_as_id_leaves_out_no_decision_or_manual_of_that_name(notes: SourceLedger) -> None:
    pbi = {**PBI, "id": "guides/export.md"}
    assert refs(answer(stocked(notes), pbi), "technical_docs") == ["guides/export.md"]


def test_the_items_own_documents_are_found_by_id_in_every_source_and_among_work_items_alone(
    notes: SourceLedger,
) -> None:
    stocked(notes)
    texts = DocumentTexts(notes.database, notes.tenant)
    assert list(texts.ids(("PBI-7", "nobody"))) == [notes.id("PBI-7")]
    assert list(texts.ids(("adr/0003.md", "guides/export.md"))) == []
    assert list(texts.ids(())) == []
    other = SourceLedger(notes.database, notes.tenant, notes.project, name="other notes")
    other.admit(work("PBI-7", "Of another source", "Text."))
    assert {*texts.ids(("PBI-7",))} == {notes.id("PBI-7"), other.id("PBI-7")}
    assert list(texts.ids(("PBI-7",), (UUID(int=2),))) == []
    assert len(texts.ids(("PBI-7",), (UUID(int=2), notes.project))) == 2
    assert list(DocumentTexts(notes.database, UUID(int=1)).ids(("PBI-7",))) == []


def test_an_item_of_another_run_with_its_id_is_similar_work_and_the_item_itself_is_not(
    notes: SourceLedger,
) -> None:
    """Each run numbers from PBI-001; ids that a tracker gave are of one item, whatever it is called by now."""
    stocked(notes)
    metadata = notes.row("PBI-7")["metadata"]
    notes.set("PBI-7", metadata={**metadata, "pbi_id": "PBI-7"})
    (found,) = (one for one in answer(notes)["similar_work"] if one["ref"] == "PBI-7")
    same = {**PBI, "id": "PBI-7", "title": found["title"].upper()}
    assert "PBI-7" not in refs(answer(notes, same), "similar_work")
    other_run = {**PBI, "id": "PBI-7", "title": "Send invoices to the tax office as a file of values"}
    assert "PBI-7" in refs(answer(notes, other_run), "similar_work")
    assert "PBI-7" not in refs(answer(notes, other_run, exclude=["PBI-7"]), "similar_work")
    untitled = {"id": "PBI-7", "description": PBI["description"]}
    assert EnrichmentRequest.from_json({"pbi": untitled}).is_itself("PBI-7", found["title"])
    notes.set("PBI-7", external_id="SHOP-7", metadata={**metadata, "pbi_id": "SHOP-7"})
    assert "SHOP-7" not in refs(answer(notes, {**other_run, "id": "SHOP-7"}), "similar_work")


def test_excluded_documents_stay_out(notes: SourceLedger) -> None:
    stocked(notes)
    assert "PBI-7" not in refs(answer(notes, exclude=["PBI-7"]), "similar_work")


def test_the_numbers_of_a_request_hold_for_each_section_and_none_asks_for_nothing(
    notes: SourceLedger,
) -> None:
    found = answer(stocked(notes), numbers={"similar_work": 1, "technical_docs": 0})
    assert len(found["similar_work"]) == 1
    assert found["technical_docs"] == []
    assert len(found["past_decisions"]) == 2


def test_source_types_narrow_all_sections(notes: SourceLedger) -> None:
    found = answer(stocked(notes), filters={"sourceType": ["pbi"]})
    assert found["similar_work"]
    assert found["past_decisions"] == found["technical_docs"] == []


@pytest.mark.req("002-009")
def test_an_empty_store_gives_an_empty_answer(notes: SourceLedger) -> None:
    found = answer(notes)
    assert not any(found[part] for part in found)
    assert prompt_block(found).startswith("Nothing in the knowledge base fits")


def test_documents_are_read_with_one_statement_and_only_those_of_the_tenant(notes: SourceLedger) -> None:
    stocked(notes)
    texts = DocumentTexts(notes.database, notes.tenant).read(
        [notes.id("PBI-7"), notes.id("adr/0003.md")], Filter()
    )
    assert {t.external_id for t in texts.values()} == {"PBI-7", "adr/0003.md"}
    assert [c.content for c in texts[notes.id("PBI-7")].chunks] == notes.contents("PBI-7")
    assert texts[notes.id("PBI-7")].similarities == {}
    stranger = DocumentTexts(notes.database, UUID(int=1))
    assert stranger.read([notes.id("PBI-7")], Filter()) == {}
    notes.set("PBI-7", hidden=True)
    assert list(DocumentTexts(notes.database, notes.tenant).read([notes.id("PBI-7")], Filter())) == []


def test_the_chunks_of_a_document_are_compared_with_the_question(notes: SourceLedger) -> None:
    stocked(notes)
    texts, asked = DocumentTexts(notes.database, notes.tenant), [notes.id("guides/export.md")]
    (guide,) = texts.read(asked, Filter()).values()
    for chunk in guide.chunks:
        vector = embed_query_checked(notes.embedder, chunk.embedding_text)
        (compared,) = texts.read(asked, Filter(), vector).values()
        assert compared.similarities[chunk.ord] == pytest.approx(1, abs=0.01)
        assert min(compared.similarities.values()) < 0.9
    of_another_model = np.ones(DIMENSIONS + 1, dtype=np.float32)
    (alone,) = texts.read(asked, Filter(), of_another_model).values()
    assert alone.similarities == {}


def test_an_answer_shows_the_passages_nearest_to_the_question(library: SourceLedger) -> None:
    vectors: list[Vectors] = []

    class Watched(DocumentTexts):
        def read(self, ids: Collection[UUID], seen: Filter, vector: Vectors | None = None) -> Texts:
            vectors.extend(() if vector is None else (vector,))
            return super().read(ids, seen, vector)

    request = EnrichmentRequest.from_json({"pbi": PBI})
    enricher(library, texts=Watched(library.database, library.tenant)).enrich(request)
    assert [*map(list, vectors)] == [list(embed_query_checked(library.embedder, request.question))]


def test_only_the_index_that_serves_is_read_while_another_is_filled(notes: SourceLedger) -> None:
    stocked(notes)
    before = DocumentTexts(notes.database, notes.tenant).read([notes.id("PBI-7")], Filter())

    def beside(connection: Connection) -> SearchIndex:
        return open_index(
            connection,
            provider="hashing",
            model="other",
            dimensions=DIMENSIONS,
            chunker="structure",
            pipeline="q",
        )

    notes.admit(*LIBRARY, force=True)
    notes.index(index=beside, model="other")
    assert len(set(notes.chunks.values("index_id", document_id=notes.id("PBI-7")))) == 2
    assert DocumentTexts(notes.database, notes.tenant).read([notes.id("PBI-7")], Filter()) == before


def test_when_the_whole_texts_cannot_be_read_the_chunks_found_have_to_do(notes: SourceLedger) -> None:
    stocked(notes)

    class Away:
        def read(self, document_ids: Collection[UUID], *_: object) -> Texts:
            raise StoreUnavailable(f"no answer for {len(document_ids)} documents")

        def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Sequence[UUID]:
            raise StoreUnavailable(f"no answer for {len(refs)} ids of {len(projects)} projects")

        def kinship(self, likest: Sequence[Hit], hits: Iterable[Hit]) -> Mapping[UUID, float]:
            raise StoreUnavailable(f"no answer for {len(likest)} of {len([*hits])} hits")

    found = checked(notes, enricher(notes, texts=Away()).enrich(EnrichmentRequest.from_json(PBI)))
    assert found["degradation_level"] == 2
    assert refs(found, "similar_work")[0] == "PBI-7"
    assert found["citations"]


TOOK: Json = {
    "actual_points": 21,
    "estimated_points": 13,
    "started_at": "2026-01-01T08:00:00+00:00",
    "resolved_at": "2026-01-13T17:00:00+00:00",
}


@pytest.mark.parametrize(
    ("facts", "effort"),
    [
        ({"status": "Done"}, "took 21 points, estimated 13; 12 days"),
        ({"status": "In progress"}, None),
        ({"status": "Reopened"}, None),
        ({"status": "Closed", "resolution": "Won't fix"}, None),
        ({"status": "Closed", "resolution": "Duplicate"}, None),
        ({"status": "Closed", "duplicate_of": "PBI-1"}, None),
        ({}, None),
    ],
)
def test_what_an_item_took_is_told_of_finished_work_alone(facts: Json, effort: str | None) -> None:
    found = Stock([hit(1, **TOOK, **facts)]).answer({"title": "Export invoices"})
    assert found["similar_work"][0]["effort"] == effort


def test_three_finished_items_tell_what_such_work_takes_beyond_those_shown() -> None:
    def told(*states: str) -> Json | None:
        hits = [
            hit(
                n,
                status=state,
                story_points=n,
                started_at="2026-01-01T08:00:00Z",
                closed_at=f"2026-01-1{n}T08:00:00Z",
            )
            for n, state in enumerate(states, 1)
        ]
        effort: Json | None = Stock(hits).answer({"title": "Export"}, topK=1)["effort_of_similar"]
        return effort

    assert told("Done", "Done", "Open") is None
    assert told("Done", "Done", "Closed") == {
        "text": "three like it: median 11 days (n = 3)",
        "n": 3,
        "median_days": 11,
        "median_points": 2,
    }


def test_the_library_of_these_tests_is_complete(notes: SourceLedger) -> None:
    stocked(notes)
    assert {d.external_id for d in LIBRARY} == {r["external_id"] for r in notes.documents()}


def test_a_record_that_its_tool_marked_as_superceded_names_the_one_in_force(
    notes: SourceLedger, tmp_path: Path
) -> None:
    record = "# {}\n\nDate: 2025-01-02\n\n## Status\n\n{}\n\n## Context\n\nInvoices.\n\n## Decision\n\n{}\n"
    old = record.format(
        "4. Export invoices as CSV by mail",
        "Superceded by [5. Stream the export of invoices](0005-stream.md)",
        "Invoices are exported as CSV and mailed by a clerk every night.",
    )
    new = record.format(
        "5. Stream the export of invoices",
        "Accepted\n\nSupercedes [4. Export invoices as CSV by mail](0004-mail.md)",
        "Every export is streamed row by row.",
    )
    for name, text in (("0004-mail.md", old), ("0005-stream.md", new)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    options = MarkdownOptions(name="adr", type="markdown", paths=("*.md",), root=tmp_path)
    rules = DecisionRules(paths=("*.md",))
    source = open_source(options.with_context(SourceContext(decisions=rules)))
    notes.admit(*(document for page in source.pages(None) for document in page.documents))
    notes.index()
    pbi = {"title": "Export of invoices as CSV by mail", "description": "Export invoices as CSV by mail."}

    second, first = answer(notes, pbi)["past_decisions"]

    assert (first["ref"], first["status"]) == ("0005-stream.md", "accepted")
    assert (second["ref"], second["status"]) == ("0004-mail.md", "superseded")
    assert second["superseded_by"] == "5. Stream the export of invoices"


def test_a_task_in_markdown_is_similar_work_by_its_id_with_what_it_taught(
    notes: SourceLedger, tmp_path: Path
) -> None:
    head = "---\nid: {}\ntitle: {}\nstatus: Done\nassignee: @wren\ncreated_date: '2025-03-04'\nlabels: [mooring]\n{}---\n"
    text = (
        "## Description\n\nWarn the mooring crew when the swell at the outer berth rises.\n\n"
        "## Implementation Notes\n\nThe sensor of the outer berth turned out to report the rising swell ten minutes late, so we poll it twice.\n"
    )
    tasks = {
        "TASK-12": "Warn the mooring crew of swell",
        "TASK-30": "Warn the mooring crew of the swell again",
    }
    for item_id, title in tasks.items():
        more = "duplicate_of: TASK-12\n" if item_id == "TASK-30" else ""
        (tmp_path / f"{item_id.lower()}.md").write_text(
            head.format(item_id, title, more) + text, encoding="utf-8"
        )
    source = open_source(MarkdownOptions(name="tasks", type="markdown", paths=("*.md",), root=tmp_path))
    notes.admit(*(document for page in source.pages(None) for document in page.documents))
    notes.index()
    pbi = {
        "title": "Warn the mooring crew of swell",
        "description": "Warn when the swell at the berth rises.",
    }

    made = answer(notes, pbi)

    similar = {one["ref"]: one for one in made["similar_work"]}
    assert {"TASK-12", "TASK-30"} <= set(similar)
    assert any("ten minutes late" in text for text in similar["TASK-12"]["learnings"])
    assert similar["TASK-12"]["status"] == "Done"
    assert similar["TASK-30"]["duplicate_of"] == "TASK-12"
    assert "TASK-12" in [one["ref"] for one in made["likely_duplicates"]]
    assert answer(notes, {**pbi, "id": "TASK-12"})["similar_work"][0]["ref"] != "TASK-12"
