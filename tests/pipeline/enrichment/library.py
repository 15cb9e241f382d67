"""A small backlog with decisions and documents, indexed as the product does it, and a look at its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Document, Json, Kind, SourceType
from pipeline.enrichment.context import IN_FORCE, EnrichedContext
from pipeline.enrichment.enricher import Enricher
from pipeline.enrichment.references import DocumentTexts
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.search import RetrievalOptions, Retriever
from tests.pipeline.source_ledger import SourceLedger, document
from tests.step4_contract import complaints

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def work(external_id: str, title: str, text: str, **metadata: Any) -> Document:
    return document(
        external_id,
        f"# {title}\n\n{text}",
        title=title,
        source_type=SourceType.PBI,
        kind=Kind.WORK,
        url=f"https://board.example/{external_id}",
        metadata={"pbi_id": external_id, **metadata},
        updated_at=datetime(2026, 5, 1, tzinfo=UTC),
    )


def decision(external_id: str, title: str, text: str, **metadata: Any) -> Document:
    return document(
        external_id,
        f"# {title}\n\n{text}",
        title=title,
        source_type=SourceType.DOCUMENTATION,
        kind=Kind.DECISION,
        metadata=metadata,
    )


def manual(external_id: str, title: str, text: str) -> Document:
    return document(external_id, f"# {title}\n\n{text}", title=title, source_type=SourceType.DOCUMENTATION)


LIBRARY = [
    work(
        "PBI-7",
        "Export invoices as CSV",
        "## Description\n\nAs a billing clerk I want to export invoices as CSV, so that the tax office can read them.\n\n"
        "## Acceptance criteria\n\n- The export finishes within two minutes for 50,000 invoices\n"
        "- Umlauts survive the trip through the spreadsheet\n- Cancelled invoices are marked\n\n"
        "## Resolution\n\nThe export runs on a replica now. It no longer locks the invoice table.\n\n"
        "## Lessons learned\n\nStreaming the rows kept the memory flat. Building the file in memory crashed twice.",
        status="Done",
        resolution="Fixed",
    ),
    work(
        "PBI-8",
        "Import invoices of the old system",
        "## Description\n\nInvoices of the old system shall be imported once.\n\n"
        "## Comments\n\n### Ada, 2025-02-01\n\nWe tried a nightly import.\n\n"
        "### Bert, 2025-03-04\n\nGiven up: the old export has no tax numbers.",
        state="Removed",
        reason="Won't fix",
    ),
    work(
        "PBI-9",
        "Show the load of the build machine",
        "## Description\n\nDevelopers shall see why a build waits.",
        status="New",
    ),
    decision(
        "adr/0003.md",
        "ADR 3: Exports of invoices as CSV are streamed",
        "## Status\n\nAccepted\n\n## Context\n\nExports of invoices for the tax office filled the memory.\n\n"
        "## Decision\n\nEvery export of invoices as CSV is streamed row by row. No export is built in memory.\n\n"
        "## Consequences\n\nProgress cannot be shown in percent.",
        decision_status="accepted",
        deciders="Ann, Bob",
        decided_at="2025-04-02",
    ),
    decision(
        "adr/0001.md",
        "ADR 1: Export of invoices as CSV for the tax office by mail",
        "## Status\n\nSuperseded by ADR 3\n\n## Decision\n\nInvoices are exported as CSV at night and mailed by a clerk"
        " to the tax office.",
        decision_status="superseded",
        superseded_by="ADR 3",
    ),
    manual(
        "guides/export.md",
        "Exports",
        "General remarks about files and folders come first, and they are of little use to anyone who reads this.\n\n"
        + "Long words about nothing in particular follow here, sentence after sentence. " * 8
        + "\n\n## Encoding\n\nA CSV of invoices is written as UTF-8 with a byte order mark, so that the spreadsheet of the"
        " tax office opens it.\n\n## Colours\n\nButtons are green.",
    ),
]

PBI: Json = {
    "id": "PBI-99",
    "title": "Export invoices as CSV for the tax office",
    "description": "As a billing clerk I want a CSV export of invoices for the tax office.",
    "acceptance_criteria": ["The file opens in a spreadsheet"],
}


def stocked(notes: SourceLedger, *more: Document) -> SourceLedger:
    """The library, indexed with the product's own chunks."""
    notes.chunker = open_chunker(ChunkingOptions(min_size=0, max_size=400, overlap=80))
    notes.admit(*LIBRARY, *more)
    notes.index()
    return notes


def enricher(notes: SourceLedger, **changes: Any) -> Enricher:
    retriever = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder, RetrievalOptions())
    plain: dict[str, Any] = {
        "search": retriever.search,
        "texts": DocumentTexts(notes.database, notes.tenant),
        "now": lambda: NOW,
    }
    return Enricher(**{**plain, **changes})


def answer(notes: SourceLedger, pbi: Mapping[str, Any] | None = None, **wanted: Any) -> Json:
    """The context of a PBI as JSON, every quotation in it looked up."""
    request = EnrichmentRequest.from_json({"pbi": PBI if pbi is None else pbi, **wanted})
    return checked(notes, enricher(notes).enrich(request))


def checked(notes: SourceLedger, context: EnrichedContext) -> Json:
    """The answer, once it was seen to be what every answer is, over the chunks of the store."""
    return sound(context, lambda chunk: chunk_text(notes, chunk))


def sound(context: EnrichedContext, text_of: Callable[[str], str]) -> Json:
    """The answer, once it was seen to be what every answer is: complete, in order, few, and verbatim.

    Args:
        context: the answer.
        text_of: the text of a chunk (`document_id:ord`) on one line.
    """
    data = context.to_json()
    assert complaints(data) == []
    quoted = {c["n"]: c["quoted"] for c in data["citations"]}
    assert sorted(quoted) == list(range(1, len(quoted) + 1))
    for citation in data["citations"]:
        assert len(citation["quoted"]) <= 200
        if citation["quoted"] != citation["title"]:
            assert bare(citation["quoted"]) in text_of(citation["chunk"])
    _verbatim(data, quoted)
    _in_order(data)
    _few_and_bound(data)
    hinted = {hint["citation"] for hint in data["risk_hints"]}
    used = {
        n
        for part in ("similar_work", "past_decisions", "technical_docs", "suggestion_details")
        for i in data[part]
        for n in i["citations"]
    }
    assert used | hinted == set(quoted)
    return data


def _verbatim(data: Json, quoted: Mapping[int, str]) -> None:
    for item in data["similar_work"]:
        assert [quoted[n] for n in item["citations"]] == [*item["learnings"], *item["relevant_sections"]]
    for item in data["past_decisions"]:
        assert " ".join(quoted[n] for n in item["citations"]) == item["decision"]
    for item in data["technical_docs"]:
        assert len(item["citations"]) == len(item["relevant_sections"])
        for n, section in zip(item["citations"], item["relevant_sections"], strict=True):
            assert section.endswith(quoted[n])
            assert len(section) <= 200
    shown = " ".join(" ".join([*quoted.values(), *_sections(data)]).split())
    for suggestion in data["suggestion_details"]:
        for lifted in re.findall(r": “(.*)”$", suggestion["text"]):
            assert bare(lifted) in shown


def _sections(data: Json) -> list[str]:
    return [section for item in data["technical_docs"] for section in item["relevant_sections"]]


def _in_order(data: Json) -> None:
    """Percentages fall with rank, whatever the status."""
    for section in ("similar_work", "past_decisions", "technical_docs", "likely_duplicates"):
        similarities = [item["similarity"] for item in data[section]]
        assert similarities == sorted(similarities, reverse=True)


def _few_and_bound(data: Json) -> None:
    """Suggestions are few, each of a source that is no other's for the same thing, and bind only to what binds."""
    details = data["suggestion_details"]
    assert data["risk_flags"] == []
    assert len(details) <= 5
    assert data["suggestions"] == [s["text"] for s in details]
    assert all(s["citations"] and s["ref"] for s in details)
    assert len({(s["kind"], s["ref"]) for s in details}) == len(details)
    refs_of = {n["n"]: n["ref"] for n in data["citations"]}
    assert all(refs_of[n] == s["ref"] for s in details for n in s["citations"])
    status_of = {item["ref"]: item["status"] for item in data["past_decisions"]}
    for suggestion in details:
        if suggestion["text"].startswith("Respect the decision"):
            assert status_of[suggestion["ref"]] in IN_FORCE
        if suggestion["text"].startswith("Do not build on"):
            assert status_of[suggestion["ref"]] in ("superseded", "deprecated")
        if suggestion["text"].startswith("Rejected before"):
            assert status_of[suggestion["ref"]] == "rejected"


def bare(quotation: str) -> str:
    """Without the marks of a cut."""
    return " ".join(quotation.removeprefix("… ").removesuffix(" …").split())


def chunk_text(notes: SourceLedger, chunk: str) -> str:
    """The text of a chunk on one line."""
    document_id, _, place = chunk.rpartition(":")
    text = notes.chunks.one(document_id=UUID(document_id), ord=int(place))["content"]
    return " ".join(text.split())


def refs(found: Json, section: str) -> list[str]:
    return [item["ref"] for item in found[section]]


def by_ref(found: Json, section: str, ref: str) -> Json:
    (item,) = [item for item in found[section] if item["ref"] == ref]
    return dict(item)
