"""A judged set made of what an installation holds: duplicates, relations and decisions become judgements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from tests.conftest import Addresses, Site
from tests.ledger import Ledger, of_tenant
from workers import runtime as runtimes
from workers.app.evaluation import dataset, measuring, sandbox
from workers.app.evaluation.dataset import read
from workers.settings import load

CONFIG = "rag:\n  embedding: {provider: hashing, dimensions: 64}\n"
BOARD = "https://boards.example/_workitems/edit"


def work(name: str, text: str = "Some text.", **facts: Any) -> dict[str, Any]:
    return {"_id": name, "kind": "work", "title": f"Item {name}", "text": text, **facts}


def decision(name: str, text: str) -> dict[str, Any]:
    return {"_id": name, "kind": "decision", "title": f"Record {name}", "text": text}


@pytest.fixture
def stocked(tmp_path: Path, addresses: Addresses) -> Iterator[Callable[..., runtimes.Runtime]]:
    """A runtime whose tenant has these documents indexed."""
    made: list[runtimes.Runtime] = []

    def make(*rows: dict[str, Any]) -> runtimes.Runtime:
        folder = tmp_path / "stock"
        folder.mkdir()
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "queries.jsonl").write_text('{"_id": "q", "text": "any"}')
        (folder / "qrels.tsv").write_text(f"q\t{rows[0]['_id']}\t1\n")
        (folder / "larder.yaml").write_text(CONFIG)
        where = runtimes.Addresses(
            database=addresses.app, control=addresses.control, admin=addresses.admin, broker=""
        )
        judged = read(folder)
        made.append(runtimes.Runtime(sandbox.settings_for(load(folder / "larder.yaml", {}), judged), where))
        assert sandbox.index(made[-1], judged, lambda *_: None) == 0
        return made[-1]

    yield make
    for runtime in made:
        runtime.database.close()


def lines(path: Path) -> set[tuple[str, ...]]:
    return {tuple(line.split("\t")) for line in path.read_text().splitlines()[1:]}


def both(one: str, other: str, *rest: str) -> set[tuple[str, ...]]:
    return {(one, other, *rest), (other, one, *rest)}


class TestBuild:
    def test_duplicates_are_closed_over_all_links(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]
    ) -> None:
        runtime = stocked(
            work("A-1"),
            work("A-2", duplicate_of="A-1"),
            work("A-3", duplicate_of="A-2"),
            work("B-1", duplicate_of="gone"),
            work("B-2", duplicate_of="gone"),
            work("C-1", duplicate_of="nobody else has it"),
        )
        told = dataset.build(runtime, runtime.settings.tenant_id, tmp_path / "out")
        pairs = both("A-1", "A-2") | both("A-1", "A-3") | both("A-2", "A-3") | both("B-1", "B-2")
        assert lines(tmp_path / "out/qrels.tsv") == {(*pair, "2") for pair in pairs}
        assert lines(tmp_path / "out/context_judgements.tsv") == {
            (query, section, name, "2")
            for query, name in pairs
            for section in ("similar_work", "likely_duplicates")
        }
        assert told == {"documents": 6, "queries": 5, "duplicates": 8}

    def test_relations_and_decisions_that_name_items(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]
    ) -> None:
        runtime = stocked(
            work("A-1", metadata={"dependencies": ["A-2", "after A-3."]}),
            work("A-2"),
            work("A-3"),
            work("17", url=f"{BOARD}/17"),
            work("18", text=f"Body.\n\n## Links\n\n- Related: [Bug 17: Item 17]({BOARD}/17)\n- Parent: #19"),
            work("19"),
            decision("adr/1.md", f"We chose PDF for A-1, see [the item]({BOARD}/17). It took 19 days."),
            decision("adr/2.md", "This was #19's doing."),
        )
        told = dataset.build(runtime, runtime.settings.tenant_id, tmp_path / "out")
        related = both("A-1", "A-2") | both("A-1", "A-3") | both("17", "18")
        decided = {("A-1", "adr/1.md"), ("17", "adr/1.md"), ("19", "adr/2.md")}
        assert lines(tmp_path / "out/qrels.tsv") == {(*p, "1") for p in related} | {
            (*p, "2") for p in decided
        }
        assert lines(tmp_path / "out/context_judgements.tsv") == {
            (query, "similar_work", name, "1") for query, name in related
        } | {(query, "past_decisions", name, "2") for query, name in decided}
        assert (told["relations"], told["decisions"]) == (6, 3)

    def test_it_is_a_set_with_statuses_that_can_be_measured(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]
    ) -> None:
        whole: dict[str, Any] = {
            "text": "# Item A-1\n\nBadges are printed.\n\n## Resolution\n\nDuplicate of A-2.\n\n## Notes\n\nOn paper.",
            "source_type": "pbi",
            "url": f"{BOARD}/1",
            "tags": ["print"],
            "metadata": {"story_points": 5, "status": "Closed", "duplicate_of": "A-2"},
            "created_at": "2025-01-01T00:00:00+00:00",
            "project": "badges",
        }
        runtime = stocked(work("A-1", **whole), work("A-2", text="Badges are printed on paper."))
        out = tmp_path / "out"
        dataset.build(runtime, runtime.settings.tenant_id, out)
        row = json.loads((out / "corpus.jsonl").read_text().splitlines()[0])
        assert row == {"_id": "A-1", "kind": "work", "title": "Item A-1", **whole}
        judged = read(out)
        assert judged.self_exclude
        assert judged.queries["A-1"] == "Item A-1\nBadges are printed.\n\n## Notes\n\nOn paper."
        again = runtimes.Runtime(sandbox.settings_for(runtime.settings, judged), runtime.addresses)
        found = measuring.measure(again, judged, "keyword", lambda *_: None, list(judged.context))
        again.database.close()
        assert found.report["scores"]["mrr@10"] == 1.0
        assert found.step4 is not None
        assert set(found.step4.answers) == {"A-1", "A-2"}

    def test_it_has_the_texts_that_are_indexed_and_reads_back_whatever_an_id_holds(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]
    ) -> None:
        odd = "a\tb\nc\rd\\t"
        runtime = stocked(work("A-2", duplicate_of=odd), work(odd, text="As it is found."))
        acme = Ledger(of_tenant(runtime.database, runtime.settings.tenant_id))
        for one in acme.documents():
            newer = {"version": one["desired_version"] + 1, "body": "Not indexed yet."}
            acme.documents.set({"id": one["id"]}, desired_version=newer["version"])
            acme.bodies.add(document_id=one["id"], tenant_id=one["tenant_id"], **newer)
        dataset.build(runtime, runtime.settings.tenant_id, tmp_path / "out")
        made = read(tmp_path / "out")
        assert made.relevant == {odd: {"A-2": 2.0}, "A-2": {odd: 2.0}}
        assert {d.external_id: d.text for d in made.documents} == {
            odd: "As it is found.",
            "A-2": "Some text.",
        }
        assert set(made.context[odd]) == {("similar_work", "A-2"), ("likely_duplicates", "A-2")}

    def test_it_is_for_its_owner_only(self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]) -> None:
        runtime = stocked(work("A-1"), work("A-2", duplicate_of="A-1"))
        out = tmp_path / "made" / "out"
        dataset.build(runtime, runtime.settings.tenant_id, out)
        assert out.stat().st_mode & 0o777 == 0o700
        before = {path: path.read_bytes() for path in out.iterdir()}
        with pytest.raises(ConfigurationError, match="not empty"):
            dataset.build(runtime, runtime.settings.tenant_id, out)
        assert {path: path.read_bytes() for path in out.iterdir()} == before

    def test_without_a_link_nothing_is_written(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime]
    ) -> None:
        runtime = stocked(work("A-1"), decision("adr/1.md", "We use PDF."))
        with pytest.raises(ConfigurationError, match="names a duplicate"):
            dataset.build(runtime, runtime.settings.tenant_id, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_ids_of_two_sources_are_told_apart(
        self, tmp_path: Path, stocked: Callable[..., runtimes.Runtime], omniscient: Any, ledger: Ledger
    ) -> None:
        """Two trackers count from 1: each link leads to an item of its own tracker."""
        runtime = stocked(
            work("1", project="a"),
            work("2a", project="a", duplicate_of="1"),
            work("2b", project="b", duplicate_of="1"),
            work("one", project="b"),
        )
        ledger.documents.set("one", external_id="1")
        omniscient.commit()
        dataset.build(runtime, runtime.settings.tenant_id, tmp_path / "out")
        assert lines(tmp_path / "out/qrels.tsv") == {
            (*pair, "2") for pair in both("judged-a:1", "2a") | both("judged-b:1", "2b")
        }


def test_the_command_builds_and_a_folder_of_that_name_is_measured(site: Site) -> None:
    site.write("larder.yaml", CONFIG + "  sources:\n  - {name: old, type: pbi_json, paths: ['*.json']}\n")
    pbis = [{"id": "P-1", "title": "Print badges"}, {"id": "P-2", "title": "Print", "dependencies": ["P-1"]}]
    site.write("pbis.json", json.dumps({"pbis": pbis}))
    site.prepare()
    site.index()
    ran = site.larder("eval", "build", "build")
    assert ran.code == 0, ran.err
    assert "texts of 2 documents and 2 questions" in ran.out
    measured = site.larder("eval", "./build", "--json")
    assert measured.code == 0, measured.err
    assert measured.data["set"] == "build"
    assert measured.data["documents"] == 2
    refused = site.larder("eval", "build", "build")
    assert refused.code == 2
    assert "not empty" in refused.err
