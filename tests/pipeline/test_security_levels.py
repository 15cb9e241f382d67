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
from tests.pipeline.workshop import Workshop, document


def found(shop: Workshop, *levels: str, readers: tuple[str, ...] | All = ALL) -> list[str]:
    cache.read_snapshot(shop.database, shop.tenant)  # whatever was seen a moment ago
    retriever = Retriever(shop.database, shop.tenant, lambda _index: shop.embedder, RetrievalOptions())
    allowed = Filter(security_levels=levels or ALL, readers=readers)
    answer = retriever.search(SearchRequest(text="kestrel", mode="keyword", filter=allowed))
    return [hit.chunk.content for hit in answer.hits]


@pytest.mark.parametrize(("before", "after"), [("restricted", "public"), ("public", "restricted")])
def test_old_text_is_shown_to_nobody_who_may_not_see_both(shop: Workshop, before: str, after: str) -> None:
    shop.admit(document("a", "The kestrel's old secret.", security_level=before))
    shop.index()
    assert found(shop, before) == ["The kestrel's old secret."]
    shop.admit(document("a", "The kestrel is done.", security_level=after))
    assert found(shop, after) == []
    assert found(shop, before) == []
    assert found(shop, before, after) == ["The kestrel's old secret."]
    shop.index()
    assert found(shop, after) == ["The kestrel is done."]
    assert found(shop, before) == []


def test_what_changed_twice_keeps_the_level_of_the_text_that_is_found(shop: Workshop) -> None:
    for level in ("restricted", "internal", "public"):
        shop.admit(document("a", f"The kestrel, {level}.", security_level=level))
        if level == "restricted":
            shop.index()
    assert found(shop, "internal", "public") == []
    assert found(shop, "restricted", "public") == ["The kestrel, restricted."]


def test_a_document_that_came_back_has_its_new_level_alone(shop: Workshop) -> None:
    shop.admit(document("a", "The kestrel.", security_level="restricted"))
    shop.index()
    with shop.database.tenant(shop.tenant) as connection:
        admission.remove(connection, [shop.id("a")])
    shop.admit(document("a", "The kestrel.", security_level="public"))
    shop.index()
    assert found(shop, "public") == ["The kestrel."]


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
    shop: Workshop, acl: Any, readers: tuple[str, ...], seen: bool
) -> None:
    shop.admit(document("a", "The kestrel.", metadata={"acl": acl}))
    shop.index()
    assert found(shop, readers=readers) == ["The kestrel."] * seen
    assert found(shop) == ["The kestrel."], "whoever operates sees all"


@pytest.mark.parametrize(("before", "after"), [([[ANN]], [[BOB]]), ([[ANN]], []), ([], [[ANN]])])
def test_old_text_is_shown_to_nobody_who_may_not_read_both(shop: Workshop, before: Any, after: Any) -> None:
    def seen() -> list[str]:
        return [name for name in (ANN, BOB) if found(shop, readers=(name,))]

    def admit(text: str, acl: Any) -> None:
        shop.admit(document("a", text, metadata={"acl": acl} if acl else {}))

    def may(*acls: Any) -> list[str]:
        return [name for name in (ANN, BOB) if all(name in layer for acl in acls for layer in acl)]

    admit("The kestrel's old secret.", before)
    shop.index()
    assert seen() == may(before)
    admit("The kestrel, between.", [["user:cora"]])  # never found, so its readers never count
    admit("The kestrel is done.", after)
    assert seen() == may(before, after)
    shop.index()
    assert seen() == may(after)
    with shop.database.tenant(shop.tenant) as connection:
        admission.remove(connection, [shop.id("a")])
    admit("The kestrel came back.", [])
    shop.index()
    assert seen() == [ANN, BOB]


def test_what_has_rights_that_nobody_could_read_is_for_admins_alone(shop: Workshop) -> None:
    shop.admit(document("a", "The kestrel of the board.", metadata={"acl": [[ADMINS_ALONE]]}))
    shop.index()
    callers = {
        permission: Caller(
            tenant=shop.tenant, tenant_name="t", subject="ann", permissions=frozenset({permission})
        )
        for permission in PERMISSIONS
    }
    seen = {name for name, c in callers.items() if found(shop, *c.levels, readers=c.readers)}
    assert seen == {"admin"}
    assert found(shop, readers=UNNAMED.readers) == []


def bounded(bound: str, value: tuple[str, ...] | All) -> Filter:
    changed: dict[str, Any] = {bound: value}
    return Filter(**changed)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize("bound", sorted(Filter.BOUNDS))
def test_an_empty_bound_lets_nothing_through_and_all_lets_everything(
    shop: Workshop, bound: str, mode: Mode
) -> None:
    shop.admit(document("a", "The kestrel lands."))
    shop.index()
    cache.read_snapshot(shop.database, shop.tenant)
    retriever = Retriever(shop.database, shop.tenant, lambda _index: shop.embedder, RetrievalOptions())

    def hits(value: tuple[str, ...] | All) -> int:
        allowed = bounded(bound, value)
        return len(retriever.search(SearchRequest(text="kestrel", mode=mode, filter=allowed)).hits)

    assert (hits(ALL), hits(())) == (1, 0)
    texts = DocumentTexts(shop.database, shop.tenant)
    if bound in ("security_levels", "readers"):
        assert texts.read([shop.id("a")], bounded(bound, ())) == {}
    assert read_document(shop.database, shop.tenant, bounded(bound, ())) is None
    assert read_document(shop.database, shop.tenant, bounded(bound, ALL)) is not None


def test_rights_keep_their_meaning_on_the_way_to_a_worker() -> None:
    for bound in ("security_levels", "readers"):
        for value in (ALL, (), ("public",)):
            asked = EnrichmentRequest(pbi={"title": "x"}, filter=bounded(bound, value))
            assert getattr(EnrichmentRequest.from_json(asked.to_json()).filter, bound) == value
