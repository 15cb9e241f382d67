"""While a version of another security level is on its way, the text that is found has the rights of both."""

from __future__ import annotations

import pytest

from pipeline.ledger import admission
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, cache
from pipeline.search.records import Filter
from tests.pipeline.workshop import Workshop, document


def found(shop: Workshop, *levels: str) -> list[str]:
    cache.read_snapshot(shop.database, shop.tenant)  # whatever was seen a moment ago
    retriever = Retriever(shop.database, shop.tenant, lambda _index: shop.embedder, RetrievalOptions())
    allowed = Filter(security_levels=levels)
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
