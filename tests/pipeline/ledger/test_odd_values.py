"""Texts, ids and tags that the database cannot hold as they come."""

from __future__ import annotations

from pipeline.documents import Page, Problem
from pipeline.ledger import runs
from tests.pipeline.source_ledger import SourceLedger, document


class TestWhatTheDatabaseCannotHold:
    def test_nul_and_lone_surrogates_do_no_harm_anywhere(self, notes: SourceLedger) -> None:
        odd = "x\x00y\ud800z"
        page = Page(
            cursor={"after": odd},
            documents=(
                document(odd, odd, title=odd, url=odd, tags=(odd,), metadata={odd: [odd, {"deep": odd}]}),
            ),
            failed=(Problem(external_id=odd, reason=odd, url=odd),),
            skipped=(Problem(external_id=odd, reason=odd),),
        )
        run = notes.open_run()
        notes.admit_page(page, run=run)
        row = notes.row("xy?z")
        assert (row["title"], row["url"], row["tags"]) == ("xy?z", "xy?z", ["xy?z"])
        assert row["metadata"] == {"xy?z": ["xy?z", {"deep": "xy?z"}]}
        assert [p["item"] for p in notes.run(run).problems] == ["xy?z", "xy?z"]
        notes.index()
        assert notes.contents("xy?z") == ["xy?z"]

    def test_it_stays_unchanged_when_it_comes_again(self, notes: SourceLedger) -> None:
        odd = document("x\x00", "body \x00 \udfff")
        notes.admit(odd)
        notes.index()
        assert notes.admit(odd) == runs.Counts(unchanged=1)

    def test_numbers_that_json_does_not_know_become_null(self, notes: SourceLedger) -> None:
        metadata = {"score": float("nan"), "list": [float("inf"), -float("inf"), 1.5]}
        notes.admit(document("a", metadata=metadata), document("b"))
        assert notes.row("a")["metadata"] == {"score": None, "list": [None, None, 1.5]}
        assert notes.row("b")["state"] == "pending"

    def test_a_document_without_a_title_is_called_by_its_id(self, notes: SourceLedger) -> None:
        notes.admit(document("a/b.md", title=""))
        assert notes.row("a/b.md")["title"] == "a/b.md"


class TestWhatAnIndexRowCannotHold:
    def test_an_endless_id_fails_by_name_and_takes_no_other_with_it(self, notes: SourceLedger) -> None:
        documents = [document("ordinary"), document("x" * 5000)]
        admitted = notes.admit(*documents)
        assert (admitted.queued, admitted.failed) == (1, 1)
        problems = notes.runs.one()["problems"]
        assert problems[0]["item"].startswith("xxx")
        assert "5000 bytes" in problems[0]["reason"]

    def test_an_endless_tag_is_cut(self, notes: SourceLedger) -> None:
        notes.admit(document("one", tags=("t" * 9000, "short")))
        assert notes.documents.one()["tags"] == ["t" * 200, "short"]
