"""Metadata that are stored encrypted: what is kept, who opens it, and how other keys take over."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from cryptography.fernet import Fernet

from pipeline.database import encryption
from pipeline.database.encryption import OTHERWISE, UNKNOWN, Keyring
from pipeline.documents import Document, Page
from pipeline.errors import ConfigurationError
from pipeline.ledger import admission, runs
from pipeline.search import RetrievalOptions, Retriever, SearchRequest
from pipeline.search.records import Filter
from tests.pipeline.source_ledger import SourceLedger, document

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
FACTS = {"author": "Ann Archer", "deciders": ["Ben", "Cem"], "rev": 3}
START = UUID(int=0)


def ring(*keys: str, fields: tuple[str, ...] = ("author", "deciders")) -> Keyring:
    return Keyring(keys=", ".join(keys), fields=fields)


def admit(notes: SourceLedger, keyring: Keyring, *documents: Document) -> runs.Counts:
    run = notes.open_run()
    where = admission.Admission(**{**vars(notes.where(run)), "keyring": keyring})
    with notes.database.tenant(notes.tenant) as connection:
        return admission.admit(connection, where, Page(cursor={}, documents=documents))


def stored(notes: SourceLedger, name: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = notes.row(name)["metadata"]
    return found


def through(notes: SourceLedger, keyring: Keyring, *, rotate: bool = False) -> Mapping[str, int]:
    found: dict[str, int] = {}
    after: UUID | None = START
    while after:
        with notes.database.tenant(notes.tenant) as connection:
            after, some = encryption.count_by_key(connection, keyring, after, rotate=rotate)
        found = {name: found.get(name, 0) + some[name] for name in {**found, **some}}
    return {name: count for name, count in found.items() if count}


@pytest.mark.req("001-114")
def test_configured_metadata_are_one_token_that_only_the_keys_open(notes: SourceLedger) -> None:
    admit(
        notes, ring(OLD), document("a", metadata=FACTS), document("b", metadata={"rev": 1, "encrypted": "x"})
    )
    assert stored(notes).keys() == {"rev", "encrypted"}
    assert "Ann" not in str(notes.row("a"))
    assert json.loads(Fernet(OLD).decrypt(stored(notes)["encrypted"])) == {
        "author": "Ann Archer",
        "deciders": ["Ben", "Cem"],
    }
    assert ring(NEW, OLD).opened(stored(notes)) == (next(iter(ring(OLD).named)), FACTS)
    name, shown = ring(NEW).opened(stored(notes))
    assert (name, shown["rev"]) == (UNKNOWN, 3)
    assert shown["encrypted"] == "no key of LARDER_ENCRYPTION_KEYS decrypts it"
    assert stored(notes, "b") == {"rev": 1}


@pytest.mark.req("001-114")
def test_the_same_document_stays_unchanged_although_no_two_tokens_are_alike(notes: SourceLedger) -> None:
    admit(notes, ring(OLD), document("a", metadata=FACTS))
    before = stored(notes)
    notes.index()
    assert admit(notes, ring(OLD), document("a", metadata=FACTS)).unchanged == 1
    assert stored(notes) == before
    assert admit(notes, ring(OLD), document("a", metadata={**FACTS, "author": "Dora"})).queued == 1
    assert stored(notes) != before


def test_without_a_key_nothing_is_stored_that_should_be_encrypted(notes: SourceLedger) -> None:
    with pytest.raises(ConfigurationError, match=r"author, deciders.*no key.*larder keys new"):
        admit(notes, ring(), document("a", metadata=FACTS))
    with pytest.raises(ConfigurationError, match="an entry that is no key"):
        admit(notes, ring("secret"), document("a", metadata=FACTS))
    assert notes.documents() == []


@pytest.mark.req("001-114")
def test_no_search_finds_or_shows_what_is_encrypted(notes: SourceLedger) -> None:
    admit(notes, ring(OLD), document("a", "The kestrel.", metadata=FACTS))
    notes.index()
    retriever = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder, RetrievalOptions())

    def found(**asked: Any) -> list[Mapping[str, Any]]:
        request = SearchRequest(text="kestrel", mode="keyword", filter=Filter(**asked))
        return [hit.document.metadata for hit in retriever.search(request).hits]

    assert found() == [{"rev": 3}]
    assert found(metadata=(("rev", "3"),)) == [{"rev": 3}]
    assert found(metadata=(("author", "Ann Archer"),)) == []


@pytest.mark.req("001-114")
def test_rotation_goes_on_where_it_was_interrupted(
    notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "BATCH", 2)
    admit(notes, ring(OLD), *(document(name, metadata=FACTS) for name in "abcde"))
    admit(notes, ring(fields=()), document("plain", metadata=FACTS), document("none"))
    foreign = ring(Fernet.generate_key().decode())
    admit(notes, foreign, document("foreign", metadata=FACTS))
    old, new = ring(NEW, OLD).named.keys() ^ ring(NEW).named.keys(), next(iter(ring(NEW).named))
    assert through(notes, ring(NEW, OLD)) == {old.pop(): 5, OTHERWISE: 1, UNKNOWN: 1}
    with notes.database.tenant(notes.tenant) as connection:
        after, _ = encryption.count_by_key(connection, ring(NEW, OLD), START, rotate=True)
    assert after is not None
    begun = through(notes, ring(NEW, OLD))[new]
    assert 1 <= begun <= 2
    assert through(notes, ring(NEW, OLD), rotate=True)["rotated"] == 6 - begun
    assert through(notes, ring(NEW)) == {new: 6, UNKNOWN: 1}
    assert all(ring(NEW).opened(stored(notes, name))[1] == FACTS for name in (*"abcde", "plain"))
    assert through(notes, ring(NEW), rotate=True) == {new: 6, UNKNOWN: 1}
    assert through(notes, ring(NEW, fields=("author",)), rotate=True)["rotated"] == 6
    assert stored(notes)["deciders"] == ["Ben", "Cem"]


@pytest.mark.req("001-114")
def test_what_a_sync_writes_during_a_rotation_is_not_overwritten(alone: SourceLedger) -> None:
    admit(alone, ring(OLD), document("a", metadata=FACTS), document("b", metadata=FACTS))
    newer = {**FACTS, "author": "Dora", "rev": 4}
    found: list[Mapping[str, int]] = []
    rotating = threading.Thread(target=lambda: found.append(through(alone, ring(NEW, OLD), rotate=True)))
    with alone.database.tenant(alone.tenant) as connection:
        run = runs.open_run(connection, alone.tenant, alone.source, trigger="manual")
        if run is None:
            run = alone.runs.one(finished_at=None)["id"]
        where = admission.Admission(**{**vars(alone.where(run)), "keyring": ring(NEW, OLD)})
        admission.admit(connection, where, Page(cursor={}, documents=(document("a", metadata=newer),)))
        rotating.start()
        rotating.join(0.5)
        assert rotating.is_alive(), "it waits for the row"
    rotating.join(30)
    assert found[0]["rotated"] == 1
    assert ring(NEW).opened(stored(alone))[1] == newer
    assert ring(NEW).opened(stored(alone, "b"))[1] == FACTS
