"""Who may see a document; while a version with other rights is on its way, the text that is found has those of both."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.access import PERMISSIONS, UNNAMED, Caller
from pipeline.documents import ADMINS_ALONE
from pipeline.enrichment.references import DocumentTexts
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.ledger import ALL, All, admission
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, cache
from pipeline.search.records import Filter, Mode
from pipeline.search.retriever import read_document
from tests.pipeline.source_ledger import SourceLedger, document


def found(notes: SourceLedger, *levels: str, readers: tuple[str, ...] | All = ALL) -> list[str]:
    cache.read_snapshot(notes.database, notes.tenant)  # whatever was seen a moment ago
    retriever = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder, RetrievalOptions())
    allowed = Filter(security_levels=levels or ALL, readers=readers)
    answer = retriever.search(SearchRequest(text="kestrel", mode="keyword", filter=allowed))
    return [hit.chunk.content for hit in answer.hits]


@pytest.mark.parametrize(("before", "after"), [("restricted", "public"), ("public", "restricted")])
def test_old_text_is_shown_to_nobody_who_may_not_see_both(
    notes: SourceLedger, before: str, after: str
) -> None:
    notes.admit(document("a", "The kestrel's old secret.", security_level=before))
    notes.index()
    assert found(notes, before) == ["The kestrel's old secret."]
    notes.admit(document("a", "The kestrel is done.", security_level=after))
    assert found(notes, after) == []
    assert found(notes, before) == []
    assert found(notes, before, after) == ["The kestrel's old secret."]
    notes.index()
    assert found(notes, after) == ["The kestrel is done."]
    assert found(notes, before) == []


def test_what_changed_twice_keeps_the_level_of_the_text_that_is_found(notes: SourceLedger) -> None:
    for level in ("restricted", "internal", "public"):
        notes.admit(document("a", f"The kestrel, {level}.", security_level=level))
        if level == "restricted":
            notes.index()
    assert found(notes, "internal", "public") == []
    assert found(notes, "restricted", "public") == ["The kestrel, restricted."]


def test_a_document_that_came_back_has_its_new_level_alone(notes: SourceLedger) -> None:
    notes.admit(document("a", "The kestrel.", security_level="restricted"))
    notes.index()
    with notes.database.tenant(notes.tenant) as connection:
        admission.remove(connection, [notes.id("a")])
    notes.admit(document("a", "The kestrel.", security_level="public"))
    notes.index()
    assert found(notes, "public") == ["The kestrel."]


ANN, BOB, BOARD = "user:ann", "user:bob", "group:board"


@pytest.mark.req("001-115")
@pytest.mark.parametrize(
    ("acl", "readers", "seen"),
    [
        ([], (BOB,), True),
        ([[ANN]], (ANN,), True),
        ([[ANN]], (BOB,), False),
        ([[ANN, BOARD]], (BOB, BOARD), True),
        ([[ANN, BOB], [BOARD]], (ANN, "group:staff"), False),
        ([[ANN, BOB], [BOARD]], (ANN, BOARD), True),
        ([[BOARD], []], (ANN, BOARD), False),
        ([ANN], (ANN,), False),
        (ANN, (ANN,), False),
        ({ANN: [ANN]}, (ANN,), False),
        (None, (ANN,), False),
        ([[[ANN]]], (ANN,), False),
    ],
)
def test_of_each_layer_a_reader_has_a_name(
    notes: SourceLedger, acl: Any, readers: tuple[str, ...], seen: bool
) -> None:
    notes.admit(document("a", "The kestrel.", metadata={"acl": acl}))
    notes.index()
    assert found(notes, readers=readers) == ["The kestrel."] * seen
    assert found(notes) == ["The kestrel."], "whoever operates sees all"


@pytest.mark.parametrize(("before", "after"), [([[ANN]], [[BOB]]), ([[ANN]], []), ([], [[ANN]])])
def test_old_text_is_shown_to_nobody_who_may_not_read_both(
    notes: SourceLedger, before: Any, after: Any
) -> None:
    def seen() -> list[str]:
        return [name for name in (ANN, BOB) if found(notes, readers=(name,))]

    def admit(text: str, acl: Any) -> None:
        notes.admit(document("a", text, metadata={"acl": acl} if acl else {}))

    def may(*acls: Any) -> list[str]:
        return [name for name in (ANN, BOB) if all(name in layer for acl in acls for layer in acl)]

    admit("The kestrel's old secret.", before)
    notes.index()
    assert seen() == may(before)
    admit("The kestrel, between.", [["user:cora"]])  # never found, so its readers never count
    admit("The kestrel is done.", after)
    assert seen() == may(before, after)
    notes.index()
    assert seen() == may(after)
    with notes.database.tenant(notes.tenant) as connection:
        admission.remove(connection, [notes.id("a")])
    admit("The kestrel came back.", [])
    notes.index()
    assert seen() == [ANN, BOB]


def test_what_has_rights_that_nobody_could_read_is_for_admins_alone(notes: SourceLedger) -> None:
    notes.admit(document("a", "The kestrel of the board.", metadata={"acl": [[ADMINS_ALONE]]}))
    notes.index()
    callers = {
        permission: Caller(
            tenant=notes.tenant, tenant_name="t", subject="ann", permissions=frozenset({permission})
        )
        for permission in PERMISSIONS
    }
    seen = {name for name, c in callers.items() if found(notes, *c.levels, readers=c.readers)}
    assert seen == {"admin"}
    assert found(notes, readers=UNNAMED.readers) == []


def bounded(bound: str, value: tuple[str, ...] | All) -> Filter:
    changed: dict[str, Any] = {bound: value}
    return Filter(**changed)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize("bound", sorted(Filter.BOUNDS))
def test_an_empty_bound_lets_nothing_through_and_all_lets_everything(
    notes: SourceLedger, bound: str, mode: Mode
) -> None:
    notes.admit(document("a", "The kestrel lands."))
    notes.index()
    cache.read_snapshot(notes.database, notes.tenant)
    retriever = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder, RetrievalOptions())

    def hits(value: tuple[str, ...] | All) -> int:
        allowed = bounded(bound, value)
        return len(retriever.search(SearchRequest(text="kestrel", mode=mode, filter=allowed)).hits)

    assert (hits(ALL), hits(())) == (1, 0)
    texts = DocumentTexts(notes.database, notes.tenant)
    if bound in ("security_levels", "readers"):
        assert texts.read([notes.id("a")], bounded(bound, ())) == {}
    assert read_document(notes.database, notes.tenant, bounded(bound, ())) is None
    assert read_document(notes.database, notes.tenant, bounded(bound, ALL)) is not None


def test_rights_keep_their_meaning_on_the_way_to_a_worker() -> None:
    for bound in ("security_levels", "readers"):
        for value in (ALL, (), ("public",)):
            asked = EnrichmentRequest(pbi={"title": "x"}, filter=bounded(bound, value))
            assert getattr(EnrichmentRequest.from_json(asked.to_json()).filter, bound) == value
