"""What metadata say against a document."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from pipeline.documents import Kind, SourceType
from pipeline.search.records import StoredDocument, age_days, duplicate_of, outdated, validity_note


def document(kind: Kind, **changes: Any) -> StoredDocument:
    plain = {"id": uuid4(), "version": 1, "title": "t", "source_type": SourceType.TEXT, "kind": kind}
    return StoredDocument(**{**plain, **changes})


@pytest.mark.parametrize(
    ("kind", "metadata", "why"),
    [
        (Kind.DECISION, {"decision_status": "superseded", "superseded_by": "ADR-12"}, "superseded by ADR-12"),
        (Kind.DECISION, {"decision_status": "superseded"}, "superseded"),
        (Kind.DECISION, {"decision_status": "rejected"}, "rejected"),
        (Kind.DECISION, {"decision_status": "accepted"}, None),
        (Kind.DECISION, {"decision_status": "implementing"}, None),
        (Kind.REFERENCE, {"status": "Withdrawn"}, "rejected"),
        (Kind.DECISION, {"status": "duplicate"}, None),
        (Kind.WORK, {"state": "Closed", "reason": "Duplicate"}, None),
        (Kind.WORK, {"resolution": "Won't fix", "status": "Duplicate"}, "closed without being done"),
        (Kind.WORK, {"resolution": "Duplicate of PBI-3", "status": "Removed"}, None),
        (Kind.WORK, {"state": "Removed", "duplicate_of": "3"}, None),
        (Kind.WORK, {"resolution": "Won't Fix"}, "closed without being done"),
        (Kind.WORK, {"status": "wont_fix"}, "closed without being done"),
        (Kind.WORK, {"status": "Closed (won’t do)"}, "closed without being done"),
        (Kind.WORK, {"status": "Closed as a duplicate"}, None),
        (Kind.WORK, {"status": "RESOLVED DUPLICATE"}, None),
        (Kind.WORK, {"status": "Closed", "outcome": "Wontfix"}, "closed without being done"),
        (Kind.WORK, {"status": "Closed"}, None),
        (Kind.WORK, {"status": "Undone: invalid"}, None),
        (Kind.WORK, {"state": "Removed", "reason": "Removed from the backlog"}, "removed from the backlog"),
        (Kind.WORK, {"state": "Resolved", "reason": "As Designed"}, "closed as designed"),
        (Kind.WORK, {"state": "Closed", "resolution": "Fixed"}, None),
        (Kind.WORK, {"state": ["odd"], "reason": None, "status": 3}, None),
        (Kind.WORK, {"superseded_by": "X"}, None),
        (Kind.REFERENCE, {"status": "Deprecated"}, "deprecated"),
        (Kind.REFERENCE, {"status": "duplicate"}, None),
        (Kind.REFERENCE, {}, None),
    ],
)
def test_what_no_longer_holds(kind: Kind, metadata: dict[str, Any], why: str | None) -> None:
    assert outdated(document(kind, metadata=metadata)) == (why or "")


@pytest.mark.parametrize(
    ("kind", "metadata", "master", "said"),
    [
        (Kind.WORK, {"state": "Closed", "reason": "Duplicate"}, None, "closed as a duplicate"),
        (
            Kind.WORK,
            {"resolution": "Duplicate", "duplicate_of": "PBI-3"},
            "PBI-3",
            "closed as duplicate of PBI-3",
        ),
        (Kind.WORK, {"state": "Removed", "duplicate_of": "3"}, "3", "closed as duplicate of 3"),
        (Kind.WORK, {"status": "Done", "duplicate_of": 3}, "3", "closed as duplicate of 3"),
        (Kind.WORK, {"status": "open", "duplicate_of": " PBI-3 "}, "PBI-3", "duplicate of PBI-3"),
        (Kind.WORK, {"resolution": "Won't fix"}, None, "closed without being done"),
        (Kind.WORK, {"duplicate_of": ["PBI-3"]}, None, None),
        (Kind.WORK, {"duplicate_of": " "}, None, None),
        (Kind.DECISION, {"superseded_by": "ADR-2", "duplicate_of": "x"}, None, "superseded by ADR-2"),
        (Kind.WORK, {}, None, None),
    ],
)
def test_a_duplicate_names_its_master(
    kind: Kind, metadata: dict[str, Any], master: str | None, said: str | None
) -> None:
    found = document(kind, metadata=metadata)

    assert duplicate_of(found) == master
    assert validity_note(found) == said


def test_age_is_that_of_the_last_change() -> None:
    now = datetime(2025, 6, 1, tzinfo=UTC)
    made, changed = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 5, 30, 1, tzinfo=UTC)
    assert age_days(document(Kind.WORK, created_at=made, updated_at=changed), now) == 1
    assert age_days(document(Kind.WORK, created_at=made), now) == 151
    assert age_days(document(Kind.WORK), now) is None
    assert age_days(document(Kind.WORK, updated_at=datetime(2026, 1, 1, tzinfo=UTC)), now) == 0
