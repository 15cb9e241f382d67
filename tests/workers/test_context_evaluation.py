"""Step 4 measured on a made-up backlog: the real answers, their grades, and a baseline that must hold."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from tests.conftest import Addresses, Site
from workers import runtime as runtimes
from workers.app.evaluation import measuring, sandbox
from workers.app.evaluation.dataset import SECTIONS, EvalDataset, read
from workers.app.evaluation.measures import MEASURES
from workers.app.evaluation.measuring import Step4Answers, lines_of
from workers.settings import load

CONFIG = """\
rag:
  embedding: {provider: hashing, dimensions: 64}
  retrieval: {minSimilarity: 0.3}
"""
CORPUS: list[dict[str, Any]] = [
    {
        "_id": "W1",
        "kind": "work",
        "title": "Export invoices as PDF",
        "text": "Invoices are exported as PDF files.",
    },
    {
        "_id": "W2",
        "kind": "work",
        "title": "Export of invoices as PDF",
        "text": "Export the invoices as PDF files for accounting.",
        "status": "Closed",
    },
    {"_id": "W3", "kind": "work", "title": "Login with a card", "text": "Members log in with a chip card."},
    {
        "_id": "D1",
        "kind": "decision",
        "title": "Export invoices as PDF",
        "text": "# Decision\n\nWe export invoices as PDF files because accounting archives PDF.",
        "decision_status": "accepted",
    },
    {"_id": "R1", "title": "Exports", "text": "Invoices are exported as PDF files by the export service."},
]
QUERIES = [
    {"_id": "W1", "text": "Export invoices as PDF\nInvoices are exported as PDF files."},
    {"_id": "W3", "text": "Login with a card\nMembers log in with a chip card."},
]
JUDGED = [
    ("W1", "similar_work", "W2", "2"),
    ("W1", "past_decisions", "D1", "1"),
    ("W1", "technical_docs", "R1", "0"),
]


def write(folder: Path, judged: list[tuple[str, ...]] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in (("corpus", CORPUS), ("queries", QUERIES)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels.tsv").write_text("q\td\ts\nW1\tW2\t2\n")
    (folder / "meta.json").write_text('{"self_exclude": true}')
    lines = [("item", "section", "ref", "grade"), *(JUDGED if judged is None else judged)]
    (folder / "context_judgements.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def runtime_of(tmp_path: Path, addresses: Addresses) -> Iterator[Callable[[EvalDataset], runtimes.Runtime]]:
    made: list[runtimes.Runtime] = []

    def make(judged: EvalDataset) -> runtimes.Runtime:
        (tmp_path / "larder.yaml").write_text(CONFIG)
        settings = load(tmp_path / "larder.yaml", {})
        where = runtimes.Addresses(
            database=addresses.app, control=addresses.control, admin=addresses.admin, broker=""
        )
        made.append(runtimes.Runtime(sandbox.settings_for(settings, judged), where))
        return made[-1]

    yield make
    for runtime in made:
        runtime.database.close()


def measured(runtime: runtimes.Runtime, judged: EvalDataset, items: list[str]) -> measuring.Measured:
    return measuring.measure(runtime, judged, "hybrid", lambda *_: None, items)


ANSWER: dict[str, Any] = {
    "similar_work": [{"ref": "W2", "title": "Export", "learnings": ["PDF is large.", "Fonts were missing."]}],
    "past_decisions": [],
    "technical_docs": [{"ref": "R1", "title": "Exports"}],
    "likely_duplicates": [{"ref": "W2", "title": "Export"}],
    "suggestions": ["Merge with W2.", "Fonts are embedded.", "Nothing was found."],
    "suggestion_details": [
        {"text": "Merge with W2.", "kind": "duplicate", "ref": "W2", "citations": []},
        {"text": "Fonts are embedded.", "kind": "acceptance_criterion", "ref": "W2", "citations": [1]},
        {"text": "Nothing was found.", "kind": "notice", "ref": None, "citations": []},
    ],
    "risk_hints": [
        {"type": "overran", "severity": "LOW", "message": "W2 took twice as long.", "citation": 1}
    ],
    "citations": [{"n": 1, "ref": "W2"}],
    "degradation_level": 0,
}


class TestLines:
    def test_an_answer_shows_documents_and_sentences(self) -> None:
        assert [(line.section, line.ref, line.key) for line in lines_of(ANSWER)] == [
            ("similar_work", "W2", "W2"),
            ("technical_docs", "R1", "R1"),
            ("likely_duplicates", "W2", "W2"),
            ("learnings", "W2", "PDF is large."),
            ("learnings", "W2", "Fonts were missing."),
            ("suggestions", "W2", "Merge with W2."),
            ("suggestions", "W2", "Fonts are embedded."),
            ("risk_hints", "W2", "W2 took twice as long."),
        ]

    def test_figures_are_of_the_lines_that_are_judged(self, tmp_path: Path) -> None:
        told = self.contexts(
            tmp_path,
            [
                ("W1", "similar_work", "W2", "2"),
                ("W1", "learnings", "W2", "0"),
                ("W1", "learnings", "Fonts were missing.", "1"),
                ("W1", "suggestions", "W2", "2"),
                ("W1", "technical_docs", "R1", "0"),
            ],
        ).to_json()
        sections = told["sections"]
        assert list(sections) == list(SECTIONS)
        names = (
            "shown",
            "judged",
            "useful",
            "related",
            "noise",
            "unjudged",
            "useful_share",
            "noise_share",
            "empty",
        )
        assert {name: tuple(one[n] for n in names) for name, one in sections.items()} == {
            "similar_work": (1, 1, 1, 0, 0, 0, 1.0, 0.0, 1),
            "past_decisions": (0, 0, 0, 0, 0, 0, None, None, 2),
            "technical_docs": (1, 1, 0, 0, 1, 0, 0.0, 1.0, 1),
            "likely_duplicates": (1, 0, 0, 0, 0, 1, None, None, 1),
            # The sentence's own grade goes before that of the document it cites.
            "learnings": (2, 2, 0, 1, 1, 0, 0.0, 0.5, 1),
            "suggestions": (2, 2, 2, 0, 0, 0, 1.0, 0.0, 1),
            "risk_hints": (1, 0, 0, 0, 0, 1, None, None, 1),
        }
        assert sections["learnings"]["precision"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
        assert sections["past_decisions"]["precision"] is None
        assert told["all"]["noise_share"] == round(2 / 6, 4)

    def test_what_nobody_judged_is_written_to_be_judged(self, tmp_path: Path) -> None:
        """Filled in and put below the judgements, it is read again."""
        contexts = self.contexts(
            tmp_path, [("W1", "similar_work", "W2", "2"), ("W1", "suggestions", "W2", "1")]
        )
        rows = list(contexts.ungraded())
        assert [row[:4] for row in rows] == [
            ("W1", "technical_docs", "R1", ""),
            ("W1", "likely_duplicates", "W2", ""),
            ("W1", "learnings", "PDF is large.", ""),
            ("W1", "learnings", "Fonts were missing.", ""),
            ("W1", "risk_hints", "W2 took twice as long.", ""),
        ]
        assert rows[0][4] == "Export invoices as PDF -> Exports"
        filled = self.contexts(tmp_path, [(*row[:3], "1", row[4]) for row in rows])
        assert [row[1] for row in filled.ungraded()] == ["similar_work", "suggestions", "suggestions"]

    def contexts(self, folder: Path, judged: list[tuple[str, ...]]) -> Step4Answers:
        answers: dict[str, dict[str, Any]] = {"W1": ANSWER, "W3": {"degradation_level": 0}}
        return Step4Answers(dataset=read(write(folder, judged)), answers=answers, seconds=[0.1, 0.3])


class TestMeasure:
    def test_items_are_answered_as_the_worker_answers_them(
        self, tmp_path: Path, runtime_of: Callable[[EvalDataset], runtimes.Runtime]
    ) -> None:
        judged = read(write(tmp_path / "set"))
        found = measured(runtime_of(judged), judged, list(judged.context))
        assert found.step4 is not None
        assert list(found.step4.answers) == ["W1"], "only what is judged"
        (work,) = found.step4.answers["W1"]["similar_work"]
        assert (work["ref"], work["status"]) == ("W2", "Closed"), "not itself, and with what is known of it"
        told = found.report["step4"]
        assert told["items"]["W1"]["past_decisions"] == {"related": 1}
        assert told["items"]["W1"]["technical_docs"] == {"noise": 1}
        assert told["seconds"]["p95"] >= told["seconds"]["p50"] > 0

    def test_a_task_in_a_file_is_judged_by_its_path_though_answers_call_it_by_its_id(
        self, tmp_path: Path, runtime_of: Callable[[EvalDataset], runtimes.Runtime]
    ) -> None:
        folder = write(tmp_path / "set", [("W1", "similar_work", "tasks/2.md", "2")])
        task = {"_id": "tasks/2.md", "metadata": {"pbi_id": "TASK-2", "source_path": "tasks/2.md"}}
        rows = [{**row, **task} if row["_id"] == "W2" else row for row in CORPUS]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "qrels.tsv").write_text("q\td\ts\nW1\ttasks/2.md\t2\n")
        judged = read(folder)
        step4 = measured(runtime_of(judged), judged, ["W1"]).step4
        assert step4 is not None
        (work,) = step4.answers["W1"]["similar_work"]
        assert work["ref"] == "TASK-2"
        assert step4.to_json()["items"]["W1"]["similar_work"] == {"useful": 1}
        assert "tasks/2.md" not in {row[2] for row in step4.ungraded() if row[1] == "similar_work"}

    def test_a_status_costs_a_place(
        self, tmp_path: Path, runtime_of: Callable[[EvalDataset], runtimes.Runtime]
    ) -> None:
        folder = write(tmp_path / "set")
        twins = [
            {
                "_id": name,
                "kind": "work",
                "title": "Print badges",
                "text": "Badges are printed on thick paper.",
            }
            for name in ("first", "second")
        ]
        twins[0]["resolution"] = "Won't Fix"
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*CORPUS, *twins]))
        (folder / "queries.jsonl").write_text('{"_id": "q", "text": "badges printed on paper"}\n')
        (folder / "qrels.tsv").write_text("q\tfirst\t1\n")
        (folder / "context_judgements.tsv").unlink()
        judged = read(folder)
        assert measured(runtime_of(judged), judged, []).rankings["q"][:2] == ["second", "first"]

    def test_a_project_of_a_row_is_that_of_the_document(
        self, tmp_path: Path, runtime_of: Callable[[EvalDataset], runtimes.Runtime], omniscient: Any
    ) -> None:
        folder = write(tmp_path / "set")
        rows = [{**row, "project": "billing"} if row["_id"] == "W2" else row for row in CORPUS]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        judged = read(folder)
        found = measured(runtime_of(judged), judged, [])
        assert "W2" in found.rankings["W1"]
        named = omniscient.execute(
            "select d.external_id, p.name from document d join project p on p.id = d.project_id"
        ).fetchall()
        assert dict(named) == {"W1": "eval", "W2": "billing", "W3": "eval", "D1": "eval", "R1": "eval"}


def report(**changed: Any) -> dict[str, Any]:
    """Twenty questions, half of them answered perfectly; twenty items with one judged line each."""
    scores = dict.fromkeys(("ndcg@10", "recall@5", "recall@10", "mrr@10"), 1.0)
    items = {f"i{n}": {"past_decisions": {"useful": 1}} for n in range(20)}
    return {
        "set": "made-up",
        "digest": "d",
        "mode": "hybrid",
        "questions": {f"q{n}": {**scores, "ndcg@10": float(n % 2)} for n in range(20)},
        "step4": {"items": items},
        **changed,
    }


class TestWorse:
    def test_the_same_answers_are_not_worse(self) -> None:
        assert measuring.regressions(measuring.compare(report(), report())) == []

    def test_a_loss_beyond_chance_is_named_and_a_gain_is_not(self) -> None:
        lost = report(
            questions={q: {**s, "ndcg@10": s["ndcg@10"] / 2} for q, s in report()["questions"].items()}
        )
        assert measuring.regressions(measuring.compare(report(), lost)) == ["ndcg@10"]
        assert measuring.regressions(measuring.compare(lost, report())) == []

    def test_noise_is_worse_where_there_is_more_of_it(self) -> None:
        items = {f"i{n}": {"past_decisions": {"noise" if n < 8 else "related": 1}} for n in range(20)}
        noisy = report(step4={"items": items})
        found = measuring.compare(report(), noisy)
        assert found["noise share"]["difference"] == 0.4
        assert found["past_decisions precision"]["difference"] == -0.4
        assert measuring.regressions(found) == ["past_decisions precision", "noise share"]
        assert measuring.regressions(measuring.compare(noisy, report())) == []

    def test_one_line_more_or_less_may_be_chance(self) -> None:
        items = {**report()["step4"]["items"], "i1": {"past_decisions": {"noise": 1}}}
        assert measuring.regressions(measuring.compare(report(), report(step4={"items": items}))) == []

    def test_a_section_that_shows_nothing_any_more_is_no_loss(self) -> None:
        silent = report(step4={"items": {f"i{n}": {} for n in range(20)}})
        assert measuring.regressions(measuring.compare(report(), silent)) == []
        assert measuring.not_compared(report(), silent) == {
            "noise share": "no judged line in the new report",
            "past_decisions precision": "no judged line in the new report",
        }
        assert set(measuring.not_compared(silent, report()).values()) == {"no judged line in the baseline"}
        assert measuring.not_compared(report(), report()) == measuring.not_compared(silent, silent) == {}

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"set": "other"}, "the set 'other', not 'set'"),
            ({"digest": "x"}, "other documents"),
            ({"mode": "vector"}, "--mode vector, not hybrid"),
            ({"questions": {}}, "other questions"),
            ({"step4": {"items": {"W3": {}}}}, "other items of Step 4"),
            ({"questions": {"W1": {}}}, "it is no report"),
            ({"questions": {"W1": dict.fromkeys(MEASURES, math.nan)}}, "that is no number"),
            ({"step4": []}, "it is no report"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(
        self, tmp_path: Path, changed: dict[str, Any], said: str
    ) -> None:
        judged = read(write(tmp_path / "set"))
        scores = report()["questions"]["q1"]
        fits = {
            "set": "set",
            "digest": judged.digest,
            "questions": {"W1": scores},
            "step4": {"items": {"W1": {}}},
        }
        path = tmp_path / "before.json"
        path.write_text(json.dumps(report(**fits)))
        assert measuring.baseline(path, judged, "hybrid", ["W1"])["set"] == "set"
        path.write_text(json.dumps(report(**{**fits, **changed})))
        with pytest.raises(ConfigurationError) as caught:
            measuring.baseline(path, judged, "hybrid", ["W1"])
        assert said in caught.value.message
        assert str(path) in caught.value.message


class TestCommand:
    """The real command, with servers of its own; a few seconds each."""

    def test_it_reports_writes_and_guards(self, site: Site) -> None:
        write(site.root / "set")
        site.write("larder.yaml", CONFIG)
        ran = site.larder(
            "eval", "set", "--keep", "--json", "--answers", "answers.json", "--ungraded", "ungraded.tsv"
        )
        assert ran.code == 0, ran.err
        told = ran.data
        assert told["step4"]["sections"]["similar_work"]["precision"]["mean"] == 1.0
        answers = json.loads((site.root / "answers.json").read_text())
        assert answers["W1"]["past_decisions"][0]["ref"] == "D1"
        with (site.root / "ungraded.tsv").open() as handle:
            header, *rows = csv.reader(handle, delimiter="\t")
        assert header == ["item", "section", "ref", "grade", "shown"]
        assert all(row[3] == "" for row in rows)

        site.write("before.json", ran.out)
        same = site.larder("eval", "set", "--keep", "--fail-if-worse", "before.json", env={"COLUMNS": "80"})
        assert same.code == 0, same.err
        assert "no measure is worse" in same.out
        table = [line for line in same.out.splitlines() if not line.startswith("kept in")]
        assert max(len(line) for line in table) <= 80
        assert "past_decisions" in same.out

        # The same answers, judged as what they would be if they had become noise.
        write(site.root / "set", [(*line[:3], "0") for line in JUDGED])
        lost = site.larder("eval", "set", "--keep", "--fail-if-worse", "before.json", "--json")
        assert lost.code == 1
        assert lost.data["baseline"]["not_compared"] == {}
        assert lost.data["baseline"]["worse"] == [
            "similar_work precision",
            "past_decisions precision",
            "noise share",
        ]
        assert "similar_work precision" in lost.err
        assert "-1.000" in lost.err

        write(site.root / "set", [line for line in JUDGED if line[1] != "similar_work"])
        partly = site.larder("eval", "set", "--keep", "--fail-if-worse", "before.json")
        assert "not compared: similar_work precision (no judged line in the new report)" in partly.out

        other = site.larder("eval", "set", "--step4", "--keep", "--fail-if-worse", "before.json")
        assert other.code == 2
        assert "other items of Step 4" in other.err
