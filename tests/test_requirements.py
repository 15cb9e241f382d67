"""The list of requirements, the decisions, and the walk that finds marked tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from tests.requirements_report import Report, decisions, listed_ids, main, report

ROOT = Path(__file__).resolve().parents[1]
COUNTS = {"001": 149, "000": 56, "002": 11, "003": 40, "004": 27, "ORD": 7}
LIST = "# List\n\n- 001-001\n\n  First.\n\n- 001-002\n\n  Second.\n\n- ORD-01\n\n  Third.\n"
DECISIONS = "# Decisions\n\n- 001-002 two words are no reason here but these are\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests/deep").mkdir(parents=True)
    (tmp_path / "docs/requirements.md").write_text(LIST)
    (tmp_path / "docs/decisions.md").write_text(DECISIONS)
    return tmp_path


def reported(project: Path, source: str, name: str = "deep/test_sample.py") -> Report:
    (project / "tests" / name).write_text("import pytest\n\n" + dedent(source))
    return report(project)


class TestTheWalk:
    def test_a_mark_on_a_function_covers(self, project: Path) -> None:
        found = reported(
            project,
            """
            @pytest.mark.req("001-001", "ORD-01")
            def test_one():
                assert 1 + 1 == 2
            """,
        )
        name = "tests/deep/test_sample.py::test_one"
        assert found.covered == {"001-001": [name], "ORD-01": [name]}
        assert found.faults == []

    def test_a_mark_on_a_class_covers_by_each_of_its_tests(self, project: Path) -> None:
        found = reported(
            project,
            """
            @pytest.mark.req("001-001")
            class TestOuter:
                class TestInner:
                    async def test_one(self):
                        assert len("a") == 1

                @pytest.mark.req("ORD-01")
                def test_two(self):
                    assert len("b") == 1
            """,
        )
        inner = "tests/deep/test_sample.py::TestOuter::TestInner::test_one"
        outer = "tests/deep/test_sample.py::TestOuter::test_two"
        assert found.covered == {"001-001": [inner, outer], "ORD-01": [outer]}

    @pytest.mark.parametrize(
        "mark",
        [
            'pytestmark = pytest.mark.req("001-001")',
            'pytestmark = [pytest.mark.drill, pytest.mark.req("001-001")]',
            'pytestmark: object = pytest.mark.req("001-001")',
        ],
    )
    def test_a_mark_of_the_module_covers(self, project: Path, mark: str) -> None:
        found = reported(project, f"{mark}\n\ndef test_one():\n    assert len('a') == 1\n")
        assert list(found.covered) == ["001-001"]

    def test_a_mark_inside_a_class_stays_there(self, project: Path) -> None:
        found = reported(
            project,
            """
            class TestMarked:
                pytestmark = pytest.mark.req("001-001")

                def test_one(self):
                    assert len("a") == 1

            def test_other():
                assert len("b") == 1
            """,
        )
        assert found.covered == {"001-001": ["tests/deep/test_sample.py::TestMarked::test_one"]}

    def test_a_mark_on_a_parameter_covers(self, project: Path) -> None:
        found = reported(
            project,
            """
            @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.req("001-001"))])
            def test_one(n):
                assert n == 1
            """,
        )
        assert list(found.covered) == ["001-001"]

    def test_only_tests_of_test_files_count(self, project: Path) -> None:
        source = '@pytest.mark.req("001-001")\ndef {}():\n    assert len("a") == 1\n'
        assert reported(project, source.format("test_one"), "conftest.py").covered == {}
        assert reported(project, source.format("build_one")).covered == {}
        assert list(reported(project, source.format("test_one"), "bench_speed.py").covered) == ["001-001"]

    @pytest.mark.parametrize("around", ["if True:", "with open(__file__):", "try:"])
    def test_a_test_defined_under_a_condition_counts(self, project: Path, around: str) -> None:
        test = '    @pytest.mark.req("001-001")\n    def test_one():\n        assert len("a") == 1\n'
        end = "finally:\n    DONE = 1\n" if around == "try:" else ""
        assert list(reported(project, f"{around}\n{test}{end}").covered) == ["001-001"]

    def test_a_marker_in_text_is_no_mark(self, project: Path) -> None:
        source = 'TEXT = \'@pytest.mark.req("001-001")\'\n\ndef test_one():\n    assert "req" in TEXT\n'
        assert reported(project, source).covered == {}


class TestFaults:
    def test_an_unknown_requirement_is_named_with_its_test(self, project: Path) -> None:
        found = reported(project, '@pytest.mark.req("001-999")\ndef test_one():\n    assert len("a") == 1\n')
        assert found.faults == ["tests/deep/test_sample.py::test_one: 001-999 is no requirement"]
        assert found.covered == {}

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("def test_one():\n    pass\n", "is empty"),
            ('def test_one():\n    """Only words."""\n', "is empty"),
            ("def test_one():\n    ...\n", "is empty"),
            ("def test_one():\n    assert True\n", "is empty"),
            ("def test_one():\n    pytest.skip('later')\n    assert len('a') == 1\n", "is skipped"),
            ("@pytest.mark.skip\ndef test_one():\n    assert len('a') == 1\n", "is skipped"),
            (
                "@pytest.mark.skipif(True, reason='x')\ndef test_one():\n    assert len('a') == 1\n",
                "is skipped",
            ),
            ("@pytest.mark.xfail(reason='x')\ndef test_one():\n    assert len('a') == 1\n", "is skipped"),
        ],
    )
    def test_a_hollow_test_covers_nothing(self, project: Path, source: str, why: str) -> None:
        found = reported(project, '@pytest.mark.req("001-001")\n' + source)
        assert found.covered == {}
        assert found.open == ["001-001", "ORD-01"]
        assert found.faults == [f"tests/deep/test_sample.py::test_one: {why} and shows nothing"]

    @pytest.mark.parametrize("where", ["module", "class"])
    def test_skipping_around_a_test_is_seen(self, project: Path, where: str) -> None:
        before = "pytestmark = pytest.mark.skip\n" if where == "module" else ""
        decorator = "@pytest.mark.skip\n" if where == "class" else ""
        test = '    @pytest.mark.req("001-001")\n    def test_one(self):\n        assert len("a") == 1\n'
        found = reported(project, f"{before}{decorator}class TestOne:\n{test}")
        assert found.covered == {}
        assert len(found.faults) == 1

    def test_an_unmarked_empty_test_is_somebody_elses_business(self, project: Path) -> None:
        assert reported(project, "def test_one():\n    pass\n").faults == []

    def test_a_decision_on_nothing_and_a_number_listed_twice(self, project: Path) -> None:
        (project / "docs/requirements.md").write_text(LIST + "\n- 001-001\n\n  Again.\n")
        (project / "docs/decisions.md").write_text("- 004-999 this number is not on the list\n")
        assert report(project).faults == [
            "docs/requirements.md: 001-001 is listed twice",
            "docs/decisions.md: 004-999 is no requirement",
        ]


class TestTheReport:
    def test_lines_and_count(self, project: Path) -> None:
        found = reported(project, '@pytest.mark.req("ORD-01")\ndef test_one():\n    assert len("a") == 1\n')
        assert list(found.lines()) == [
            "001-001 open",
            "001-002 decided two words are no reason here but these are",
            "ORD-01 covered tests/deep/test_sample.py::test_one",
            "1 covered, 1 decided, 1 open of 3",
        ]

    def test_a_shown_requirement_is_not_counted_as_decided(self, project: Path) -> None:
        found = reported(project, '@pytest.mark.req("001-002")\ndef test_one():\n    assert len("a") == 1\n')
        assert list(found.covered) == ["001-002"]
        assert found.decided == {}

    def test_exit_codes(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(project) == 0
        reported(project, '@pytest.mark.req("001-999")\ndef test_one():\n    assert len("a") == 1\n')
        assert main(project) == 1
        last = capsys.readouterr().out.splitlines()[-2:]
        assert last[0].startswith("fault: ")
        assert last[1] == "0 covered, 1 decided, 2 open of 3"

    def test_a_short_remark_is_no_reason(self) -> None:
        assert decisions("- 001-001 not built yet\n- 001-002 it is decided in another way\n") == {
            "001-002": "it is decided in another way"
        }

    def test_a_number_alone_is_no_decision_and_one_with_words_no_entry(self) -> None:
        assert decisions("- 001-001\n\n  The text stands apart from its number.\n") == {}
        assert listed_ids("- 001-001 with words behind the number\n") == []


class TestThisProject:
    text = (ROOT / "docs/requirements.md").read_text(encoding="utf-8")
    reasons = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")

    def test_every_document_is_listed_completely(self) -> None:
        ids = listed_ids(self.text)
        assert Counter(number.split("-")[0] for number in ids) == COUNTS
        expected = {
            f"{d}-{n:0{2 if d == 'ORD' else 3}}" for d, count in COUNTS.items() for n in range(1, count + 1)
        }
        assert set(ids) == expected
        assert len(ids) == len(expected)

    def test_every_number_is_followed_by_its_text(self) -> None:
        entries = re.findall(r"^- (\S+)\n\n  (\S.*\.)$", self.text, re.MULTILINE)
        assert [number for number, _ in entries] == listed_ids(self.text)
        short = [number for number, text in entries if len(text) < len("Title, required.")]
        assert short == []

    def test_entries_are_not_taken_for_decisions(self) -> None:
        assert decisions(self.text) == {}

    def test_every_decided_number_has_a_reason_and_is_known(self) -> None:
        section = self.reasons.split("## Decided otherwise")[1].split("\n## ")[0]
        mentioned = re.findall(r"^- ((?:00\d-\d{3}|ORD-\d{2}))", section, re.MULTILINE)
        assert len(mentioned) >= 15
        assert sorted(mentioned) == sorted(decisions(self.reasons))
        assert set(mentioned) <= set(listed_ids(self.text))

    def test_what_is_only_followed_in_another_form_is_not_decided(self) -> None:
        section = self.reasons.split("## Followed in another form")[1].split("\n## ")[0]
        numbers = listed_ids(section)
        assert "001-071" in numbers
        assert not set(numbers) & set(decisions(self.reasons))

    def test_the_script_prints_every_number_once(self) -> None:
        ran = subprocess.run(
            [sys.executable, "tests/requirements_report.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        *lines, count = [line for line in ran.stdout.splitlines() if not line.startswith("fault: ")]
        assert sorted(line.split()[0] for line in lines) == sorted(listed_ids(self.text))
        state = Counter(line.split()[1] for line in lines)
        assert count == f"{state['covered']} covered, {state['decided']} decided, {state['open']} open of 290"
        assert ran.returncode == (1 if "\nfault: " in ran.stdout else 0)
