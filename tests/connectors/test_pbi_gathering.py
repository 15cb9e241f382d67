"""PBIs of many files and runs: the newest counts, a bad file takes none with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.pbi.sources import natural_sort_key, run_name
from pipeline.documents.plain_text import is_same_title
from tests.connectors.outputs import ONE, TWO, read, source, write


class TestNewest:
    def state(self, word: str) -> dict[str, Any]:
        return {"pbis": [{**ONE, "description": word}]}

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("run-2025-01-10/final-output.json", "run-2025-02-01/step-1.json"),
            ("run-2025-01-10/step-9-x.json", "run-2025-01-10/final-output.json"),
            ("run-2025-01-10/step-2-x.json", "run-2025-01-10/step-10-x.json"),
            ("run-2025-01-10-9/final-output.json", "run-2025-01-10-10/final-output.json"),
            ("run-2025-01-10T08-00/final-output.json", "run-2025-01-10T17-30/final-output.json"),
            ("run-nightly/final-output.json", "run-2025-01-10/final-output.json"),
            ("run-1763631209333/summary.json", "run-1763631504655/step-2-extract_candidates.json"),
            ("run-2025-01-10/step-7-readiness_checker.json", "run-2025-01-10/summary.json"),
            ("run-2025-01-10/summary.json", "run-2025-01-10/pbi-PBI-1-one.json"),
            ("run-2025-01-10/step-7-readiness_checker.json", "run-2025-01-10/pbi-PBI-1-one.json"),
        ],
    )
    @pytest.mark.parametrize("turned", [False, True])
    def test_the_newest_file_wins_whatever_the_file_times(
        self, tmp_path: Path, older: str, newer: str, turned: bool
    ) -> None:
        write(tmp_path, older, self.state("old"), age=0 if turned else 5000)
        write(tmp_path, newer, self.state("new"), age=5000 if turned else 0)

        documents, _, _ = read(tmp_path, "output/*/*.json")

        assert list(documents) == ["PBI-1"]
        assert "new" in documents["PBI-1"].text
        assert documents["PBI-1"].metadata["source_path"] == f"output/{newer}"

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            (
                {"step": "x", "timestamp": "2025-02-01T08:00:00Z"},
                {"step": "x", "timestamp": "2025-02-01T09:00:00Z"},
            ),
            ({"metadata": {"generated_at": 1740000000}}, {"metadata": {"generated_at": 1750000000}}),
            ({"pbi": {"updated_at": "2025-01-01"}}, {"pbi": {"updated_at": "2025-03-01"}}),
        ],
    )
    @pytest.mark.parametrize("turned", [False, True])
    def test_without_runs_and_steps_the_times_inside_count_before_those_of_files(
        self, tmp_path: Path, older: dict[str, Any], newer: dict[str, Any], turned: bool
    ) -> None:
        for name, said, word, age in (("a", newer, "new", 9000), ("b", older, "old", 100)):
            pbi = {**ONE, "description": word, **said.get("pbi", {})}
            write(tmp_path, f"{'cd'[name == 'a'] if turned else name}.json", {**said, "pbi": pbi}, age=age)

        assert "new" in read(tmp_path, "output/*.json")[0]["PBI-1"].text

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_newer_title_alone_takes_no_text_away_and_its_facts_count(
        self, tmp_path: Path, turned: bool
    ) -> None:
        early, late = ("run-2025-02-01", "run-2025-01-01") if turned else ("run-2025-01-01", "run-2025-02-01")
        full = {**ONE, "description": "What it is", "status": "open", "priority": "high"}
        write(tmp_path, f"{early}/step-5.json", {"pbis_with_risks": [{"pbi": full, "risks": {}}]})
        write(
            tmp_path, f"{early}/step-6.json", {"pbis_with_questions": [{"pbi_id": "PBI-1", "title": "One"}]}
        )
        write(tmp_path, f"{late}/step-6.json", {"pbis": [{**ONE, "status": "done"}]})

        found = read(tmp_path)[0]["PBI-1"]

        assert "What it is" in found.text
        assert found.metadata["status"] == ("open" if turned else "done")
        assert found.metadata["priority"] == "high"
        assert found.metadata["version"] == 1
        assert found.metadata["source_path"].endswith("step-5.json")

    def test_file_times_are_the_last_resort(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", self.state("new"), age=100)
        write(tmp_path, "b.json", self.state("old"), age=9000)

        documents, _, _ = read(tmp_path, "output/*.json")

        assert "new" in documents["PBI-1"].text
        assert documents["PBI-1"].metadata["runs"] == []
        assert documents["PBI-1"].metadata["version"] == 1

    def test_runs_and_versions_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", self.state("a"))
        write(tmp_path, "run-2025-01-09/step-2.json", self.state("draft"))
        write(tmp_path, "run-2025-01-09/final-output.json", self.state("a"))
        write(tmp_path, "run-2025-02-01/final-output.json", self.state("b"))
        write(tmp_path, "run-2025-03-01/final-output.json", self.state("b"))

        found = read(tmp_path)[0]["PBI-1"]

        assert found.metadata["runs"] == [
            "run-2025-01-09",
            "run-2025-01-10",
            "run-2025-02-01",
            "run-2025-03-01",
        ]
        assert found.metadata["version"] == 2
        assert "b" in found.text

    def test_a_score_of_an_earlier_step_stays(self, tmp_path: Path) -> None:
        scored = {"scored_pbis": [{"pbi": ONE, "scores": {"overall_confidence": 0.8}}]}
        write(tmp_path, "run-2025-01-10/step-3-score.json", scored)
        write(tmp_path, "run-2025-01-10/final-output.json", self.state("final"))

        found = read(tmp_path)[0]["PBI-1"]

        assert found.metadata["quality_score"] == 0.8
        assert found.metadata["source_path"].endswith("final-output.json")

    def test_the_same_pbi_twice_in_a_list_is_one(self, tmp_path: Path) -> None:
        told = {**ONE, "description": "Berths by draught."}
        write(tmp_path, "run-2025-01-10/final-output.json", [told, {**told, "title": "Later"}, told, ONE])

        documents, failed, skipped = read(tmp_path)

        assert list(documents) == ["PBI-1"]
        assert not failed
        assert [p.reason for p in skipped.values()] == []

    def test_two_items_with_one_id_in_a_list_are_both_kept_and_named(self, tmp_path: Path) -> None:
        other = {**ONE, "title": "Crane hours", "description": "Count them."}
        write(tmp_path, "run-2025-01-10/final-output.json", [ONE, other, other])
        first = read(tmp_path)
        write(tmp_path, "run-2025-01-11/final-output.json", [ONE, other, TWO])

        documents, failed, skipped = read(tmp_path)

        again = next(key for key in documents if documents[key].title == "Crane hours")
        assert set(documents) == {"PBI-1", "PBI-2", again}
        assert set(first[0]) == {"PBI-1", again}, "its name is the same in each run"
        assert documents[again].metadata["pbi_id"] == "PBI-1"
        assert "PBI-1" in documents[again].metadata["reading_note"]
        assert source(tmp_path).ids().ids == set(documents)
        assert not failed
        assert {name.partition("#")[2] for name in skipped} == {again}
        assert all("id of its own" in p.reason for p in skipped.values())

    def test_a_text_that_another_one_of_the_same_title_replaces_is_named(self, tmp_path: Path) -> None:
        items = [{**ONE, "description": "North quay."}, {**ONE, "description": "South quay."}]
        write(tmp_path, "run-2025-01-10/final-output.json", items)

        documents, _, skipped = read(tmp_path)

        assert "South quay." in documents["PBI-1"].text
        assert [name.partition("#")[2] for name in skipped] == ["PBI-1"]

    def test_a_history_of_states_is_no_clash(self, tmp_path: Path) -> None:
        items = [
            {**ONE, "description": "North quay.", "updatedAt": "2025-02-02"},
            {**ONE, "description": "South quay.", "updatedAt": "2025-01-02"},
        ]
        write(tmp_path, "run-2025-01-10/final-output.json", items)

        documents, _, skipped = read(tmp_path)

        assert "North quay." in documents["PBI-1"].text
        assert not skipped

    def test_two_files_of_a_run_with_another_item_under_one_id_are_named(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/step-1-a.json", {"pbis": [{"id": "1", "title": "Sort the berths"}]})
        write(tmp_path, "run-2025-01-10/step-1-b.json", {"pbis": [{"id": "1", "title": "Count crane hours"}]})
        write(
            tmp_path, "run-2025-01-11/step-1-a.json", {"pbis": [{"id": "1", "title": "Sort all the berths"}]}
        )

        documents, _, skipped = read(tmp_path)

        assert list(documents) == ["1"]
        (problem,) = skipped.values()
        assert "step-1-a.json" in problem.reason
        assert "step-1-b.json" in problem.reason

    def test_names_of_runs(self) -> None:
        assert run_name("output/run-1/deep/x.json") == "run-1"
        assert run_name("run-1.json") == ""
        assert sorted(["run-10", "run-9", "run-9a"], key=natural_sort_key) == ["run-9", "run-9a", "run-10"]


class TestIdentity:
    """As the public pipeline writes: each run numbers from PBI-001, and files tell their run, their folder does, or none."""

    def run(self, root: Path, name: str, *titles: str, **top: Any) -> None:
        items = [
            {"id": f"PBI-{n:03}", "title": title, "description": name} for n, title in enumerate(titles, 1)
        ]
        write(root, name, {**top, "candidates": items})

    def titles(self, root: Path, **more: Any) -> dict[str, str]:
        made = source(root, "output/**/*.json", **more)
        found = {d.external_id: d.title for page in made.pages(None) for d in page.documents}
        assert made.ids().ids == set(found)
        return found

    @pytest.mark.parametrize(
        ("first", "second", "told"),
        [
            ("run-1763631209333/step-2-x.json", "run-1763632506990/step-2-x.json", ({}, {})),
            (
                "steps/2-x-1.json",
                "steps/2-x-2.json",
                ({"runId": "1763628934894"}, {"runId": "1763630462063"}),
            ),
            ("pipeline-output-1.json", "pipeline-output-2.json", ({}, {})),
            ("a/step-2-x.json", "b/step-2-x.json", ({}, {})),
        ],
    )
    def test_items_of_runs_that_number_anew_are_all_kept(
        self, tmp_path: Path, first: str, second: str, told: tuple[dict[str, Any], dict[str, Any]]
    ) -> None:
        self.run(tmp_path, first, "As a user, I want to log in", "Export the table", **told[0])
        before = self.titles(tmp_path)
        self.run(
            tmp_path, second, "As a user, I want to log out", "Export the tables", "Sort berths", **told[1]
        )

        found = self.titles(tmp_path)

        assert found.items() >= {("PBI-001", "As a user, I want to log in")}
        assert sorted(found.values()) == [
            "As a user, I want to log in", "As a user, I want to log out", "Export the tables", "Sort berths",
        ]  # fmt: skip
        assert set(before) <= set(found), "no name changes when a run is added"

    def test_with_identity_id_an_id_is_one_item_in_all_runs(self, tmp_path: Path) -> None:
        self.run(tmp_path, "run-1/step-2-x.json", "Log in")
        self.run(tmp_path, "run-2/step-2-x.json", "Sort the berths")

        assert self.titles(tmp_path, identity="id") == {"PBI-001": "Sort the berths"}

    def test_states_of_a_run_are_one_item_under_whatever_titles(self, tmp_path: Path) -> None:
        self.run(tmp_path, "run-1/step-2-x.json", "Log in")
        self.run(tmp_path, "run-1/step-5-x.json", "Sign on with a badge")
        self.run(tmp_path, "run-2/step-2-x.json", "Sign on with the badge")

        assert self.titles(tmp_path) == {"PBI-001": "Sign on with the badge"}

    def test_a_folder_and_the_id_in_a_file_name_one_run(self, tmp_path: Path) -> None:
        self.run(tmp_path, "run-17/step-2-x.json", "Log in", runId="17")
        self.run(tmp_path, "other/step-3-x.json", "Sign on", runId="17")

        assert list(self.titles(tmp_path)) == ["PBI-001"]

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("Sort the berths", "sort  all the Berths", True),
            ("Log in", "Log out", False),
            ("Import phase 1", "Import phase 2", False),
            ("Add GitHub login to the portal", "Add Google login to the portal", False),
            (
                "As a user, I want to export my dashboard data to Excel",
                "As a user, I want to export dashboard data to Excel",
                True,
            ),
        ],
    )
    def test_titles_that_are_nearly_the_same(self, one: str, other: str, same: bool) -> None:
        assert is_same_title(one, other) is is_same_title(other, one) is same


class TestBadFiles:
    BAD = "output/run-2025-05-10/step-9-broken.json"

    def spoil(self, root: Path, data: str, age: float = 0) -> None:
        write(root, "run-2025-01-10/final-output.json", {"pbis": [ONE]})
        write(root, "run-2025-05-10/step-9-broken.json", data, age=age)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            ('{"pbis": [\n  {"id": "PBI-9", "title": "cut off in the mid', "starting at line 2, column 28"),
            ("not json", "line 1, column 1"),
            ('{"pbis": []} {}', "line 1, column 14"),
            ("[" * 200_000, "nested too deeply"),
            ("[" + "1" * 5000 + "]", "too many digits"),
        ],
    )
    def test_invalid_json_fails_by_file_line_and_column(self, tmp_path: Path, data: str, said: str) -> None:
        self.spoil(tmp_path, data)

        documents, failed, _ = read(tmp_path)

        assert list(documents) == ["PBI-1"]
        assert self.BAD in failed[self.BAD].reason
        assert said in failed[self.BAD].reason
        assert "PBI-9" not in failed[self.BAD].reason

    def test_a_file_being_written_deletes_nothing(self, tmp_path: Path) -> None:
        self.spoil(tmp_path, '{"pbis": [')

        assert not source(tmp_path).ids().complete

    @pytest.mark.parametrize("data", ['{"pbis": [', "", "  \n"])
    def test_a_file_broken_for_long_does_not_stop_deletion_for_ever(self, tmp_path: Path, data: str) -> None:
        self.spoil(tmp_path, data, age=2 * 3600)

        listing = source(tmp_path).ids()

        assert listing.complete
        assert listing.ids == {"PBI-1"}

    def test_an_emptied_file_is_left_out_and_deletes_nothing_yet(self, tmp_path: Path) -> None:
        self.spoil(tmp_path, "")

        assert set(read(tmp_path)[2]) == {self.BAD}
        assert not source(tmp_path).ids().complete

    def test_a_file_that_cannot_be_read_deletes_nothing_however_old(self, tmp_path: Path) -> None:
        self.spoil(tmp_path, json.dumps({"pbis": [TWO], "filler": "x" * 1000}), age=10**6)

        documents, failed, skipped = read(tmp_path, max_bytes=500)

        assert list(documents) == ["PBI-1"]
        assert not failed
        assert "limit is 500" in skipped[self.BAD].reason
        assert not source(tmp_path, max_bytes=500).ids().complete

    def test_a_binary_file_fails_and_deletes_nothing(self, tmp_path: Path) -> None:
        self.spoil(tmp_path, "\0\0", age=10**6)

        assert set(read(tmp_path)[1]) == {self.BAD}
        assert not source(tmp_path).ids().complete

    def test_ids_alone_are_right_and_follow_changes(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": [ONE, TWO]})
        opened = source(tmp_path)
        assert opened.ids().ids == {"PBI-1", "PBI-2"}
        list(opened.pages(None))
        write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": [TWO]}, age=5)

        assert opened.ids().ids == {"PBI-2"}

    def test_problems_are_paged_with_the_documents(self, tmp_path: Path) -> None:
        items: list[Any] = [{"id": f"PBI-{n:03d}"} for n in range(150)] + [{}] * 60
        write(tmp_path, "run-2025-01-10/final-output.json", items)

        pages = list(source(tmp_path).pages(None))

        assert [len(page.documents) + len(page.failed) for page in pages] == [100, 100, 10]
        assert sum(len(page.failed) for page in pages) == 60
        rest = list(source(tmp_path).pages(pages[0].cursor))
        assert [page.documents for page in rest] == [page.documents for page in pages[1:]]

    def test_check_counts_files(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", [ONE])

        findings = source(tmp_path).check()

        assert [finding.ok for finding in findings] == [True, True, False]
        assert findings[1].detail == "matches 1 file"
