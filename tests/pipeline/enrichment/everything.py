"""An answer with every field of the contract filled, as a person may read it."""

from __future__ import annotations

from typing import Any

from pipeline.documents import Json
from pipeline.enrichment.context import (
    Citation,
    Duplicate,
    EnrichedContext,
    PastDecision,
    RiskHint,
    SimilarEffort,
    SimilarWork,
    Suggestion,
    TechnicalDoc,
)

PBI: Json = {
    "id": "PBI-99",
    "title": "Export invoices as CSV for the tax office",
    "description": "As a billing clerk I want a CSV export of invoices, so that the tax office can read them.",
    "acceptance_criteria": ["The file opens in a spreadsheet", {"given": "500 invoices", "then": "500 rows"}],
}


def _document(ref: str, title: str, source_type: str = "pbi", link: str | None = None) -> dict[str, Any]:
    return {
        "ref": ref,
        "title": title,
        "link": link or f"https://board.example/{ref}",
        "document_id": f"id-{ref}",
        "source_type": source_type,
    }


_EXPORT = _document("PBI-7", "Export invoices as CSV")
_IMPORT = _document("PBI-8", "Import invoices of the old system")
_STREAM = _document(
    "adr/0003.md", "ADR 3: Exports are streamed", "documentation", "https://docs.example/adr/3"
)
_GUIDE = _document("guides/export.md", "Exports", "documentation", "https://docs.example/export")


def _dated(document: dict[str, Any], day: str, age: int) -> dict[str, Any]:
    return {**document, "source": "backlog", "updated_at": day, "age_days": age}


def _cited(n: int, document: dict[str, Any], quoted: str) -> Citation:
    return Citation(**document, n=n, chunk=f"{document['document_id']}:0", quoted=quoted)


STREAMING = "Streaming the rows kept the memory flat."
NO_LOCK = "The export runs on a replica and no longer locks the invoice table."
NUMBERS = "Given up: the old export has no tax numbers."
STREAMED = "Every export of invoices is streamed row by row as CSV."
UMLAUTS = "Umlauts survive the trip through the spreadsheet"
MARK = "Encoding: A CSV of invoices is written as UTF-8 with a byte order mark."

WHOLE = EnrichedContext(
    similar_work=[
        SimilarWork(
            **_dated(_EXPORT, "2026-05-01", 31),
            citations=(1, 2),
            similarity=84,
            similarity_by="meaning",
            learnings=(STREAMING, NO_LOCK),
            status="Closed",
            outcome="Duplicate",
            duplicate_of="PBI-3",
            effort="took 21 points, estimated 13; 12 days",
            why="export, invoices, CSV",
        ),
        SimilarWork(
            **_dated(_IMPORT, "2025-03-04", 454),
            citations=(3,),
            similarity=52,
            similarity_by="meaning",
            learnings=(NUMBERS,),
            status="Removed",
            outcome="Won't fix",
            abandoned=True,
        ),
    ],
    past_decisions=[
        PastDecision(
            **_dated(_STREAM, "2025-04-02", 425),
            citations=(4,),
            similarity=71,
            why="names the export of invoices",
            decision=STREAMED,
            rationale="Exports of invoices filled the memory.",
            constraints=("No export is built in memory.", "Progress cannot be shown in percent."),
            assigned_architect="Ada Lovelace, Bert Sutherland",
            date="2025-04-02",
            status="superseded",
            superseded_by="ADR 9",
        )
    ],
    technical_docs=[
        TechnicalDoc(
            **_dated(_GUIDE, "2026-01-15", 137),
            citations=(6,),
            similarity=64,
            why="CSV, spreadsheet, tax office",
            relevant_sections=(MARK,),
        )
    ],
    suggestions=[
        Suggestion(
            text="Check whether “Export invoices as CSV” (PBI-7) already covers this: 84 % alike.",
            kind="duplicate",
            ref="PBI-7",
            citations=(1,),
        ),
        Suggestion(
            text=f"“Export invoices as CSV” (PBI-7) also asked for: “{UMLAUTS}”",
            kind="acceptance_criterion",
            ref="PBI-7",
            citations=(5,),
        ),
    ],
    risk_hints=[
        RiskHint(
            type="overran",
            severity="MEDIUM",
            message="PBI-7 took 21 points and was estimated at 13.",
            citation=2,
        )
    ],
    likely_duplicates=[
        Duplicate(
            ref="PBI-7",
            title="Export invoices as CSV",
            similarity=84,
            link="https://board.example/PBI-7",
            document_id="id-PBI-7",
            status="Closed",
            duplicate_of="PBI-3",
        )
    ],
    effort_of_similar=SimilarEffort(
        text="five like it: median 9 days (n = 5)", n=5, median_days=9.0, median_points=8.0
    ),
    citations=[
        _cited(1, _EXPORT, STREAMING),
        _cited(2, _EXPORT, NO_LOCK),
        _cited(3, _IMPORT, NUMBERS),
        _cited(4, _STREAM, STREAMED),
        _cited(5, _EXPORT, UMLAUTS),
        _cited(6, _GUIDE, MARK.removeprefix("Encoding: ")),
    ],
    degradation_level=1,
    project="billing",
)
EVERYTHING: Json = WHOLE.to_json()
ITEM: Json = {"pbi": PBI, "scores": {"overall": 7}, "context": EVERYTHING}
