"""Embedding for money on a real database: no text is paid twice, no document dies of a provider's trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.budget import Budget, Cost, Grant
from pipeline.embedding.calls import ATTEMPTS
from pipeline.errors import (
    BudgetSpent,
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    LarderError,
    ModelMissing,
    TextRejected,
)
from pipeline.ingest.text_embedding import EmbeddingTerms
from pipeline.ledger import Limits, due_work, embedding_use, overview
from pipeline.ledger.embedding_use import Meter, Used
from tests.ledger import ago
from tests.pipeline.picky import Picky
from tests.pipeline.source_ledger import MODEL, SourceLedger, document, paragraphs

PROBE = 300.0


@dataclass
class CallBudget:
    """A budget of so many calls, that remembers how each grant ended."""

    calls: int = 1_000
    retry_after: float = 7.0
    texts: int | None = None
    tokens: int | None = None
    ends: list[str] = field(default_factory=list)

    def take(self, cost: Cost) -> Grant:
        if not self.calls:
            raise BudgetSpent("nothing left", retry_after=self.retry_after)
        self.calls -= 1
        return Grant(cost=cost)

    def spent(self, grant: Grant, tokens: int | None) -> None:
        self.ends.append(f"spent {tokens or grant.cost.texts}")

    def failed(self, grant: Grant, error: EmbedderUnavailable) -> None:
        self.ends.append(f"failed {grant.cost.texts}: {error.message}")

    def refused(self, grant: Grant) -> None:
        self.ends.append(f"refused {grant.cost.texts}")


def terms(call_budget: Budget | None = None, name: str = "here", **changes: Any) -> EmbeddingTerms:
    budget: Callable[[UUID], Budget] = lambda _tenant: call_budget or CallBudget()  # noqa: E731
    return EmbeddingTerms(
        **{"provider": "paid", "budget": budget, "fingerprint": name, "probe_seconds": PROBE, **changes}
    )


def chunked(notes: SourceLedger, **documents: str) -> None:
    """Documents that wait to be embedded."""
    notes.admit(*(document(name, body, title="Same") for name, body in documents.items()))
    notes.indexer().chunk(notes.tenant, notes.items())


def stages(notes: SourceLedger) -> dict[str, tuple[str, int, int]]:
    """Stage, waits and tries of each document."""
    rows = notes.documents.values("external_id", "stage", "waits", "attempts")
    return {name: (stage, waits, tries) for name, stage, waits, tries in rows}


def wake(notes: SourceLedger) -> None:
    notes.documents.set(due_at=ago())


def standing(notes: SourceLedger, name: str) -> embedding_use.Hold | None:
    with notes.database.control() as connection:
        return embedding_use.hold_on(connection, name, probe_seconds=PROBE)


class TestSharedTexts:
    def test_a_text_that_another_worker_embeds_right_now_is_left_to_it(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(3), b=paragraphs(3))
        other = Picky()

        def second_worker() -> None:
            notes.embedder = other
            notes.indexer(terms=terms()).embed(notes.tenant, notes.items("b"))

        mine = Picky(meanwhile=second_worker)
        notes.embedder = mine
        step = notes.indexer(terms=terms()).embed(notes.tenant, notes.items("a"))
        assert (len(mine.seen), other.seen) == (3, [])
        assert [i.document_id for i in step.ready] == [notes.id("a")]
        assert stages(notes) == {"a": ("embedded", 0, 0), "b": ("chunked", 1, 0)}
        wake(notes)
        notes.indexer(terms=terms()).embed(notes.tenant, notes.items("b"))
        assert (other.seen, stages(notes)["b"][0]) == ([], "embedded")

    def test_what_the_other_one_finished_in_the_meantime_is_not_embedded_again(
        self, notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between looking for vectors and claiming texts there is time enough for a whole step of another worker."""
        from pipeline.ledger import embedding_use

        chunked(notes, a=paragraphs(3), b=paragraphs(3))
        notes.embedder = paid = Picky()
        claim = embedding_use.claim_texts

        def late(*args: Any, **options: Any) -> set[bytes]:
            monkeypatch.setattr(embedding_use, "claim_texts", claim)
            notes.indexer(terms=terms()).embed(notes.tenant, notes.items("b"))
            return claim(*args, **options)

        monkeypatch.setattr(embedding_use, "claim_texts", late)
        notes.indexer(terms=terms()).embed(notes.tenant, notes.items("a"))
        assert len(paid.seen) == 3
        assert {stage for stage, _, _ in stages(notes).values()} == {"embedded"}

    def test_many_workers_with_the_same_texts_pay_once(self, alone: SourceLedger) -> None:
        notes = alone
        names = [f"d{n}" for n in range(12)]
        chunked(notes, **dict.fromkeys(names, paragraphs(9)))
        notes.embedder = paid = Picky()

        def worker(mine: list[str]) -> None:
            notes.indexer(terms=terms()).embed(notes.tenant, notes.items(*mine))

        threads = [threading.Thread(target=worker, args=(names[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wake(notes)
        worker(names)
        assert (len(paid.seen), len(set(paid.seen))) == (9, 9)
        assert {stage for stage, _, _ in stages(notes).values()} == {"embedded"}
        assert notes.claimed_texts() == []

    def test_the_texts_of_a_worker_that_died_are_free_when_its_documents_are(
        self, notes: SourceLedger
    ) -> None:
        chunked(notes, a=paragraphs(6))

        def die() -> None:
            raise KeyboardInterrupt

        notes.embedder = dead = Picky(meanwhile=lambda: die() if dead.calls == 2 else None)
        with pytest.raises(KeyboardInterrupt):
            notes.indexer(terms=terms()).embed(notes.tenant, notes.items())
        assert len(notes.claimed_texts()) == 6
        notes.documents.set(lease_until=ago(seconds=1))
        notes.claimed_texts.set(until=ago(seconds=1))
        notes.embedder = second = Picky()
        notes.indexer(terms=terms()).embed(notes.tenant, notes.items())
        assert (len(dead.seen), len(second.seen), stages(notes)["a"][0]) == (4, 2, "embedded")

    def test_texts_are_kept_as_long_as_the_documents(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(9))
        left: list[bool] = []

        def look() -> None:
            same = "select bool_and(c.until >= w.lease_until) as same from embedding_claim c, index_work w"
            left.append(bool(notes.sql(same)[0]["same"]))

        notes.embedder = Picky(meanwhile=look)
        notes.indexer(terms=terms(), lease=0.001).embed(notes.tenant, notes.items())
        assert left == [True, True, True]

    def test_a_free_model_claims_nothing(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(3))
        seen: list[int] = []
        notes.embedder = Picky(meanwhile=lambda: seen.append(len(notes.claimed_texts())))
        notes.indexer(terms=terms(budget=None)).embed(notes.tenant, notes.items())
        assert seen == [0]


class TestWaits:
    def test_what_is_paid_is_kept_when_the_budget_ends(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(4, "a"), b=paragraphs(4, "b"), c=paragraphs(4, "c"))
        notes.embedder = paid = Picky()
        call_budget = CallBudget(calls=2)
        notes.indexer(terms=terms(call_budget)).embed(notes.tenant, notes.items())
        assert (len(paid.seen), call_budget.ends) == (8, ["spent 4", "spent 4"])
        late = [r for r in stages(notes).values() if r[0] == "chunked"]
        assert late
        assert set(late) == {("chunked", 1, 0)}
        wake(notes)
        notes.indexer(terms=terms(CallBudget())).embed(notes.tenant, notes.items())
        assert len(paid.seen) == len(set(paid.seen)) == 12

    def test_waiting_documents_are_counted_for_the_operator(self, alone: SourceLedger) -> None:
        chunked(alone, a=paragraphs(1), b=paragraphs(2, "b"))
        alone.embedder = Picky()
        with alone.database.control() as connection:
            assert overview.waiting(connection) is None
        alone.indexer(terms=terms(CallBudget(calls=0))).embed(alone.tenant, alone.items())
        with alone.database.control() as connection:
            found = overview.waiting(connection)
            assert found is not None
            assert (found.documents, found.reason) == (2, "nothing left")
            embedding_use.resume_waiting(connection)
            assert overview.waiting(connection) is None

    def test_each_grant_ends_once(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(1))
        for trouble, end in (
            (EmbedderUnavailable("away", retry_after=1), "failed 1: away"),
            (TextRejected("rude"), "refused 1"),
            (EmbedderRefused("key"), "refused 1"),
        ):
            call_budget = CallBudget()
            notes.embedder = Picky(trouble=trouble)
            notes.set("a", due_at=ago(), state="pending")
            notes.holds.clear()
            notes.indexer(terms=terms(call_budget, str(notes.tenant))).embed(notes.tenant, notes.items("a"))
            assert call_budget.ends == [end], trouble

    @pytest.mark.parametrize(
        ("limits", "calls"),
        [({"texts": 2}, 4), ({"tokens": 50}, 4), ({"tokens": 1}, 8), ({"texts": 100, "tokens": 10**6}, 2)],
    )
    def test_a_call_the_budget_could_never_allow_is_cut(
        self, notes: SourceLedger, limits: dict[str, int], calls: int
    ) -> None:
        chunked(notes, a=paragraphs(8))
        notes.embedder = paid = Picky()
        call_budget = CallBudget(texts=limits.get("texts"), tokens=limits.get("tokens"))
        notes.indexer(terms=terms(call_budget, str(notes.tenant))).embed(notes.tenant, notes.items())
        assert (paid.calls, len(paid.seen)) == (calls, 8)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries take no time."""
    monkeypatch.setattr(ATTEMPTS, "sleep", lambda _seconds: None)


@pytest.mark.usefixtures("hurried")
class TestCalls:
    def test_a_call_that_outlasts_the_lease_keeps_its_documents(self, alone: SourceLedger) -> None:
        """Else a second worker pays for the same text, and a healthy document counts as one that kills workers."""
        chunked(alone, a=paragraphs(1))
        other, lease = Picky(), 0.6

        def look_after_the_lease() -> None:
            time.sleep(2.5 * lease)
            with alone.database.control() as connection:
                pumped = due_work.pump_once(connection, Limits(resend=0.1))
            assert pumped is not None
            assert (pumped.crashed, pumped.batches) == (0, ())
            alone.embedder = other
            alone.indexer(terms=terms(), lease=lease).embed(alone.tenant, alone.items("a"))

        alone.embedder = mine = Picky(meanwhile=look_after_the_lease)
        step = alone.indexer(terms=terms(), lease=lease).embed(alone.tenant, alone.items("a"))
        assert (len(mine.seen), other.seen) == (1, [])
        assert [i.document_id for i in step.ready] == [alone.id("a")]
        assert alone.row("a")["crash_count"] == 0

    def test_one_malformed_answer_holds_nothing_up(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(2, "a"), b=paragraphs(2, "b"))

        class Short(Picky):
            def embed_documents(self, texts: Sequence[str]) -> Vectors:
                vectors = super().embed_documents(texts)
                return vectors[:-1] if self.calls == 1 else vectors

        notes.embedder, call_budget = Short(), CallBudget()
        step = notes.indexer(terms=terms(call_budget, str(notes.tenant))).embed(notes.tenant, notes.items())
        assert len(step.ready) == 2
        assert call_budget.ends == ["spent 4", "spent 4"], "both were answered, and charged"
        assert standing(notes, str(notes.tenant)) is None

    def test_only_what_stays_malformed_is_laid_aside_and_named(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(2, "a"), b="poison", c=paragraphs(1, "c"))

        class Spoilt(Picky):
            def embed_documents(self, texts: Sequence[str]) -> Vectors:
                vectors = super().embed_documents(texts)
                return vectors[:-1] if any("poison" in t for t in texts) else vectors

        notes.embedder = Spoilt()
        indexer = notes.indexer(terms=terms(name=str(notes.tenant)))
        step = indexer.embed(notes.tenant, notes.items())
        assert {i.document_id for i in step.ready} == {notes.id("a"), notes.id("c")}
        assert [letter["document_id"] for letter in notes.dead_letters()] == [notes.id("b")]
        assert standing(notes, str(notes.tenant)) is None

    def test_a_service_of_malformed_answers_is_waited_for(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(2, "a"))

        class Broken(Picky):
            def embed_documents(self, texts: Sequence[str]) -> Vectors:
                return super().embed_documents(texts)[:0]

        notes.embedder = Broken()
        notes.indexer(terms=terms(name=str(notes.tenant))).embed(notes.tenant, notes.items())
        assert stages(notes)["a"] == ("chunked", 1, 0)
        assert "with an array of shape" in notes.row("a")["last_error"]
        assert standing(notes, str(notes.tenant)) is None


class TestHolds:
    @pytest.mark.parametrize(
        "trouble",
        [
            EmbedderRefused("wrong key"),
            ModelMissing("gone"),
            ConfigurationError("odd"),
            EmbeddingError("shape"),
        ],
    )
    def test_a_refused_configuration_blames_no_document(
        self, notes: SourceLedger, trouble: LarderError
    ) -> None:
        chunked(notes, a=paragraphs(6), b=paragraphs(6, "b"))
        notes.embedder = paid = Picky(trouble=trouble)
        indexer = notes.indexer(terms=terms(name=str(notes.tenant)))
        indexer.embed(notes.tenant, notes.items("a"))
        indexer.embed(notes.tenant, notes.items("b"))
        assert paid.calls == 1
        assert stages(notes) == {"a": ("chunked", 1, 0), "b": ("chunked", 1, 0)}
        assert notes.dead_letters() == []
        held = standing(notes, str(notes.tenant))
        assert held is not None
        assert held.error == trouble.message
        assert notes.row("b")["last_error"] == trouble.message

    def test_a_model_that_cannot_be_opened_is_held_too(self, notes: SourceLedger) -> None:
        def missing() -> Any:
            raise ModelMissing("no such folder")

        chunked(notes, a=paragraphs(1))
        notes.indexer(terms=terms(name=str(notes.tenant)), embedder=missing).embed(
            notes.tenant, notes.items()
        )
        assert standing(notes, str(notes.tenant)) is not None
        assert stages(notes) == {"a": ("chunked", 1, 0)}

    def test_another_configuration_is_not_held(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(1), b=paragraphs(1, "b"))
        notes.embedder = Picky(trouble=EmbedderRefused("wrong key"))
        notes.indexer(terms=terms(name=f"bad {notes.tenant}")).embed(notes.tenant, notes.items("a"))
        notes.embedder = good = Picky()
        wake(notes)
        notes.indexer(terms=terms(name=f"good {notes.tenant}")).embed(notes.tenant, notes.items())
        assert len(good.seen) == 2
        assert standing(notes, f"bad {notes.tenant}") is not None

    def test_one_probe_finds_out_and_ends_it(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(1), b=paragraphs(1, "b"), c=paragraphs(1, "c"))
        notes.embedder = paid = Picky(trouble=EmbedderRefused("wrong key"))
        indexer = notes.indexer(terms=terms(name=str(notes.tenant)))

        def again(name: str) -> int:
            """How many calls a message about this document leads to when it is time to probe."""
            before = paid.calls
            notes.holds.set(probe_at=ago())
            wake(notes)
            indexer.embed(notes.tenant, notes.items(name))
            indexer.embed(notes.tenant, notes.items(*"abc".replace(name, "")))
            return paid.calls - before

        indexer.embed(notes.tenant, notes.items("a"))
        assert again("a") == 1
        paid.trouble = None
        assert again("b") == 2
        assert standing(notes, str(notes.tenant)) is None
        assert {stage for stage, _, _ in stages(notes).values()} == {"embedded"}

    def test_documents_that_need_no_call_go_on(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(2), b=paragraphs(2, "b"))
        notes.embedder = Picky()
        notes.indexer(terms=terms(name=str(notes.tenant))).embed(notes.tenant, notes.items("a"))
        notes.embedder = Picky(trouble=EmbedderRefused("wrong key"))
        notes.indexer(terms=terms(name=str(notes.tenant))).embed(notes.tenant, notes.items("b"))
        notes.admit(document("again", paragraphs(2), title="Same"))
        notes.indexer().chunk(notes.tenant, notes.items("again"))
        notes.indexer(terms=terms(name=str(notes.tenant))).embed(notes.tenant, notes.items("again"))
        assert stages(notes)["again"][0] == "embedded"
        assert standing(notes, str(notes.tenant)) is not None

    def test_a_hold_that_nobody_confirms_is_forgotten(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(1))
        notes.embedder = Picky(trouble=EmbedderRefused("wrong key"))
        notes.indexer(terms=terms(name=str(notes.tenant))).embed(notes.tenant, notes.items())
        notes.holds.set(seen_at=ago(minutes=16))
        assert standing(notes, str(notes.tenant)) is None


class TestUsage:
    def test_a_free_model_is_counted_with_its_cache_hits(self, notes: SourceLedger) -> None:
        told: list[tuple[Meter, Used]] = []
        free = terms(budget=None, counted=lambda meter, used: told.append((meter, used)))
        chunked(notes, a=paragraphs(5))
        notes.embedder = Picky()
        notes.indexer(terms=free).embed(notes.tenant, notes.items())
        chunked(notes, b=paragraphs(5))
        notes.indexer(terms=free).embed(notes.tenant, notes.items("b"))
        (row,) = notes.usage()
        assert (row["provider"], row["model"], row["kind"]) == ("paid", MODEL, "document")
        assert (row["calls"], row["texts"], row["cache_hits"]) == (2, 5, 5)
        assert [(used.texts, used.cache_hits) for _, used in told] == [(5, 0), (0, 5)]

    def test_the_operator_sees_the_use_of_every_tenant(self, notes: SourceLedger) -> None:
        chunked(notes, a=paragraphs(2))
        notes.indexer(terms=terms(budget=None)).embed(notes.tenant, notes.items())
        with notes.database.control() as connection:
            (row,) = [r for r in embedding_use.usage_today(connection) if r["tenant"] == str(notes.tenant)]
        assert (row["tenant"], row["texts"], row["cost"]) == (str(notes.tenant), 2, 0.0)


def test_a_refused_text_does_not_count_as_reused(notes: SourceLedger) -> None:
    notes.embedder = Picky(refuses="rude")
    run = notes.open_run()
    notes.admit(document("a", f"{paragraphs(2)}\n\nThese rude words are refused."), run=run)
    notes.index()
    (item,) = notes.run_items()
    assert (item["texts_embedded"], item["texts_reused"]) == (2, 0)


class TestTooLongTexts:
    @pytest.mark.parametrize(("oversize", "told"), [("cut", (2, 2)), ("split", (0, 0))])
    def test_those_that_are_cut_are_counted_once_where_they_are_embedded(
        self, notes: SourceLedger, oversize: Any, told: tuple[int, int]
    ) -> None:
        notes.embedder = Picky(limits=EmbedderLimits(texts=4, tokens_per_text=12, oversize=oversize))
        runs = []
        for name in ("a", "b"):  # the same two long texts; and a short one each
            runs.append(notes.open_run())
            body = f"{paragraphs(2, 'A long word for')}\n\n{name} is short."
            notes.admit(document(name, body, title="Same"), run=runs[-1])
            notes.index(notes.items(name))
            notes.close_run(runs[-1])
        first, second = map(notes.run, runs)
        assert (first.texts_embedded, first.texts_cut, second.texts_embedded) == (3, told[0], 1)
        assert (first.texts_cut + second.texts_cut, second.texts_reused) == (told[1], 2)
