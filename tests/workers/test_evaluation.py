"""Measuring a made-up set: known answers, own documents left out, comparison, calibration, broken sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pipeline.errors import ConfigurationError
from pipeline.search.records import Mode
from tests.conftest import Addresses, Site
from tests.ledger import ahead, of_connection
from workers import runtime as runtimes
from workers.app.evaluation import measuring, sandbox
from workers.app.evaluation.dataset import EvalDataset, read
from workers.cli.eval import evaluate
from workers.local import embedded
from workers.settings import Settings, load

DOCUMENTS = {
    "birds": ("Kestrels", "The kestrel nests in church towers and hovers over fields."),
    "birds2": ("Falcons", "A falcon such as the kestrel or the peregrine nests in towers and on cliffs."),
    "river": ("Otters", "The otter swims in the river and eats fish."),
    "pots": ("Kilns", "A kiln fires clay until it is hard."),
    "bread": ("Ovens", "The baker bakes bread before dawn."),
    "boats": ("Boats", "A boat with an engine crosses the lake."),
    "trees": ("Oaks", "Oaks grow slowly and live long."),
    "empty": ("Nothing", ""),
}
QUERIES = {
    "q1": "kestrel nests in towers",
    "q2": "otter swims in the river",
    "q3": "baker bakes bread",
    "q4": "oaks grow slowly",
}
RELEVANT = [("q1", "birds"), ("q1", "birds2"), ("q2", "river"), ("q3", "boats")]
"""The third question's only relevant document shares no word with it; the fourth has none."""
CONFIG = """\
rag:
  embedding: {provider: hashing, dimensions: 64}
  retrieval: {minSimilarity: 0}
"""


def write(folder: Path, *, self_exclude: bool = False, queries: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [{"_id": i, "title": title, "text": text} for i, (title, text) in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    asked = [{"_id": i, "text": text} for i, text in (queries or QUERIES).items()]
    (folder / "queries.jsonl").write_text("\n".join(json.dumps(row) for row in asked) + "\n")
    judged = "".join(f"{q}\t{d}\t1\n" for q, d in RELEVANT)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    (folder / "meta.json").write_text(json.dumps({"self_exclude": self_exclude}))
    return folder


def silent(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total, what


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "made-up")


@pytest.fixture
def runtime_of(tmp_path: Path, addresses: Addresses) -> Iterator[Callable[..., runtimes.Runtime]]:
    """A runtime on this test's database, for a set and a configuration."""
    made: list[runtimes.Runtime] = []

    def make(judged: EvalDataset, config: str = CONFIG) -> runtimes.Runtime:
        where = runtimes.Addresses(
            database=addresses.app, control=addresses.control, admin=addresses.admin, broker=""
        )
        made.append(runtimes.Runtime(sandbox.settings_for(settings(tmp_path, config), judged), where))
        return made[-1]

    yield make
    for runtime in made:
        runtime.database.close()


def settings(folder: Path, config: str = CONFIG) -> Settings:
    (folder / "larder.yaml").write_text(config)
    return load(folder / "larder.yaml", {})


def measured(runtime: runtimes.Runtime, judged: EvalDataset, mode: Mode = "hybrid") -> measuring.Measured:
    return measuring.measure(runtime, judged, mode, silent)


class TestMeasure:
    def test_known_answers_give_known_figures(
        self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        judged = read(folder)
        found = measured(runtime_of(judged), judged, "keyword")
        assert set(found.rankings["q1"][:2]) == {"birds", "birds2"}
        assert found.rankings["q2"][0] == "river"
        assert found.rankings["q3"] == ["bread"]
        told = found.report
        # q1 and q2 are perfect, q3 finds nothing, q4 has no relevant document and does not count.
        assert told["scores"] == {
            "ndcg@10": 0.6667,
            "recall@5": 0.6667,
            "recall@10": 0.6667,
            "mrr@10": 0.6667,
        }
        assert (told["documents"], told["queries"], told["judged"], told["failed"]) == (8, 4, 3, 0)
        assert told["worst"][0]["id"] == "q3"
        assert told["seconds"]["p50"] > 0

    def test_every_mode_answers(self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]) -> None:
        judged = read(folder)
        runtime = runtime_of(judged)
        modes: tuple[Mode, ...] = ("vector", "keyword", "hybrid")
        found = {mode: measuring.measure(runtime, judged, mode, silent) for mode in modes}
        assert {one.rankings["q2"][0] for one in found.values()} == {"river"}
        assert len({tuple(one.rankings["q1"]) for one in found.values()}) > 1, "they rank differently"

    def test_a_question_that_is_a_document_does_not_find_itself(
        self, tmp_path: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        asked = {i: f"{title}\n{text}" for i, (title, text) in DOCUMENTS.items()}
        folder = write(tmp_path / "dups", self_exclude=True, queries=asked)
        (folder / "qrels.tsv").write_text("q\td\ts\nbirds\tbirds2\t1\nbirds\tbirds\t1\nbirds2\tbirds\t1\n")
        judged = read(folder)
        assert judged.relevant == {"birds": {"birds2": 1}, "birds2": {"birds": 1}}
        found = measured(runtime_of(judged), judged)
        assert all(query not in ranking for query, ranking in found.rankings.items())
        assert found.report["scores"]["mrr@10"] == 1.0

    def test_a_set_that_may_find_its_questions_does(
        self, tmp_path: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        folder = write(tmp_path / "same", queries={"river": DOCUMENTS["river"][1]})
        (folder / "qrels.tsv").write_text("q\td\ts\nriver\triver\t1\n")
        judged = read(folder)
        assert measured(runtime_of(judged), judged).rankings["river"][0] == "river"

    def test_a_second_time_nothing_is_embedded(
        self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        judged = read(folder)
        runtime = runtime_of(judged)
        first = measuring.measure(runtime, judged, "hybrid", silent)
        asked: list[tuple[str, int]] = []
        again = measuring.measure(
            runtime, judged, "hybrid", lambda what, _done, total: asked.append((what, total))
        )
        assert ("indexing", 0) in asked
        assert again.rankings == first.rankings

    def test_the_configured_threshold_holds_as_in_a_search(
        self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        judged = read(folder)
        strict = CONFIG.replace("minSimilarity: 0", "minSimilarity: 0.99, maxTopK: 2")
        found = measured(runtime_of(judged, strict), judged, "vector")
        assert found.rankings["q3"] == []

    def test_ten_results_are_asked_for_whatever_a_search_gives(
        self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        judged = read(folder)
        short = CONFIG.replace("minSimilarity: 0", "minSimilarity: 0, topK: 1, maxTopK: 1")
        found = measured(runtime_of(judged, short), judged, "vector")
        assert len(found.rankings["q1"]) > 5, "all that are near at all"

    def test_an_installation_that_is_off_has_nothing_to_measure(
        self, folder: Path, runtime_of: Callable[..., runtimes.Runtime]
    ) -> None:
        judged = read(folder)
        with pytest.raises(ConfigurationError, match=r"rag\.enabled"):
            measured(runtime_of(judged, CONFIG + "  enabled: false\n"), judged)


def test_calibration_tells_the_threshold_that_the_set_asks_for(
    folder: Path, runtime_of: Callable[..., runtimes.Runtime]
) -> None:
    judged = read(folder)
    runtime = runtime_of(judged)
    sandbox.index(runtime, judged, silent)
    told = measuring.calibrate(runtime, judged)
    embedder = runtime.embedder
    pairs = {
        (q, d): float(
            embedder.embed_documents([f"{DOCUMENTS[d][0]}\n\n{DOCUMENTS[d][1]}"])[0]
            @ embedder.embed_query(QUERIES[q])
        )
        for q, d in RELEVANT
    }
    assert told["pairs"] == 4
    assert told["min_similarity"] == pytest.approx(min(pairs.values()), abs=0.01), "few pairs: all are kept"


def test_comparing_tells_the_difference_and_whether_it_may_be_chance(
    folder: Path, runtime_of: Callable[..., runtimes.Runtime]
) -> None:
    judged = read(folder)
    runtime = runtime_of(judged)
    first = measuring.measure(runtime, judged, "keyword", silent)
    second = measuring.measure(runtime, judged, "vector", silent)
    same = measuring.compare(first.report, first.report)["ndcg@10"]
    assert same == {"difference": 0, "low": 0, "high": 0, "certain": False}
    told = measuring.compare(first.report, second.report)
    after, before = second.report["scores"], first.report["scores"]
    for name, each in told.items():
        assert each["difference"] == pytest.approx(after[name] - before[name], abs=2e-4)
        assert each["low"] <= each["difference"] <= each["high"]


class TestScratchSettings:
    def test_the_tenant_is_named_after_the_set_and_what_it_is_indexed_with(self, tmp_path: Path) -> None:
        judged = read(write(tmp_path / "My Set"))
        plain = sandbox.settings_for(settings(tmp_path), judged).tenant
        assert plain.startswith("eval-my-set-")
        wider = CONFIG.replace("64", "128")
        assert sandbox.settings_for(settings(tmp_path, wider), judged).tenant != plain
        ranked = CONFIG.replace("Similarity: 0", "Similarity: 0.5")
        assert sandbox.settings_for(settings(tmp_path, ranked), judged).tenant == plain

    def test_no_configured_source_comes_along_and_no_old_answer(self, tmp_path: Path) -> None:
        judged = read(write(tmp_path / "made-up"))
        config = CONFIG + "  sources:\n  - {name: notes, type: text, paths: ['*.txt']}\n"
        rag = sandbox.settings_for(settings(tmp_path, config), judged).rag
        assert rag.sources == ()
        assert rag.retrieval.cache.enabled is False


class TestReading:
    def test_the_first_questions_only(self, folder: Path) -> None:
        judged = read(folder, limit=2)
        assert list(judged.queries) == ["q1", "q2"]
        assert len(judged.documents) == 8
        assert set(judged.relevant) == {"q1", "q2"}

    @pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels.tsv"])
    def test_a_missing_file_is_named(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        with pytest.raises(ConfigurationError, match=name) as caught:
            read(folder)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("corpus.jsonl", "{broken secret"),
            ("corpus.jsonl", "[1]"),
            ("corpus.jsonl", '{"title": "secret"}'),
            ("queries.jsonl", '{"_id": "secret"}'),
            ("qrels.tsv", "secret"),
            ("qrels.tsv", "q1\tbirds\tsecret"),
        ],
    )
    def test_a_broken_line_is_named_by_its_number_and_not_quoted(
        self, folder: Path, name: str, line: str
    ) -> None:
        path = folder / name
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines, line]))
        with pytest.raises(ConfigurationError, match=rf"{name}, line {len(lines) + 1}\b") as caught:
            read(folder)
        assert "secret" not in str(caught.value)

    def test_without_a_header_line_no_judgement_is_lost(self, folder: Path) -> None:
        (folder / "qrels.tsv").write_text("q1\tbirds\t2\nq2\triver\t-1\n")
        assert read(folder).relevant == {"q1": {"birds": 2}}

    def test_a_set_without_a_judged_question_is_none(self, folder: Path) -> None:
        (folder / "qrels.tsv").write_text("q\td\ts\nq1\tbirds\t0\nother\tbirds\t1\n")
        with pytest.raises(ConfigurationError, match="no question with a relevant document"):
            read(folder)


def test_a_stopped_command_goes_on(
    folder: Path, runtime_of: Callable[..., runtimes.Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "PAGE", 3)
    judged = read(folder)
    runtime = runtime_of(judged)
    with monkeypatch.context() as stopped:
        stopped.setattr(sandbox, "_run", stop)
        with pytest.raises(KeyboardInterrupt):
            sandbox.index(runtime, judged, silent)
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        left = of_connection(connection)
        left.documents.set(stage="embedded", lease_until=ahead(hours=1))
        left.runs.set(state="discovering", finished_at=None)
    assert sandbox.index(runtime, judged, silent) == 0
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        now = of_connection(connection)
        assert now.documents.values("state") == ["done"] * len(DOCUMENTS)
        assert now.runs(finished_at=None) == []


class TestCommand:
    """The real command, with servers of its own; a few seconds each."""

    @pytest.fixture
    def here(self, site: Site) -> Site:
        write(site.root / "made-up")
        site.write("larder.yaml", CONFIG)
        return site

    def test_it_measures_compares_calibrates_and_leaves_nothing_behind(self, here: Site) -> None:
        here.write(
            "second.yaml",
            CONFIG.replace(
                "Similarity: 0", "Similarity: 0, weights: {vector: 0, keyword: 1, title: 0, covered: 0}"
            ),
        )
        ran = here.larder(
            "eval", "made-up", "--rankings", "rank.json", "--compare", "second.yaml", "--calibrate", "--json"
        )
        assert ran.code == 0, ran.err
        told: dict[str, Any] = ran.data
        ranked = json.loads((here.root / "rank.json").read_text())
        assert list(ranked) == list(QUERIES)
        assert ranked["q2"][0] == "river"
        assert set(told["comparison"]) == {"ndcg@10", "recall@5", "recall@10", "mrr@10"}
        assert told["calibration"]["pairs"] == 4
        assert told["second"]["config"] == "second.yaml"
        assert not here.data.exists()

    def test_the_screen_has_80_columns(self, here: Site) -> None:
        ran = here.larder("eval", "made-up", "--mode", "keyword", "--keep", env={"COLUMNS": "80"})
        assert ran.code == 0, ran.err
        table = [line for line in ran.out.splitlines() if not line.startswith("kept in")]
        assert max(len(line) for line in table) <= 80
        assert "nDCG@10" in ran.out
        assert "0.667" in ran.out
        assert "baker bakes bread" in ran.out
        (kept,) = (here.data / "eval").iterdir()
        assert kept.name.startswith("eval-made-up-")

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (("nowhere",), "corpus.jsonl"),
            (("made-up", "--mode", "magic"), "unknown mode"),
            (("made-up", "--rankings", "no/such/file.json"), "--rankings"),
            (("made-up", "--rankings", "."), "--rankings: . is a folder"),
        ],
    )
    def test_what_is_asked_wrongly_is_told_in_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str
    ) -> None:
        write(tmp_path / "made-up")
        monkeypatch.chdir(tmp_path)
        app = typer.Typer()
        app.command()(evaluate)
        ran = CliRunner().invoke(app, args)
        assert ran.exit_code == 2
        assert said in ran.stderr
        assert "Traceback" not in ran.stderr


def test_it_stops_no_database_of_another_measurement(tmp_path: Path) -> None:
    folder = settings(tmp_path).data / "eval"
    with sandbox.folder_for(settings(tmp_path), keep=True):
        embedded.ensure(folder / "other")
        with sandbox.folder_for(settings(tmp_path), keep=True):
            embedded.ensure(folder / "ours")
        lives = [embedded.running(folder / name / "postgres") is not None for name in ("other", "ours")]
        assert lives == [True, False]
