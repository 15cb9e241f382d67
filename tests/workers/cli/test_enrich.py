"""larder enrich with files that are none: what it says, and how it exits, before anything is started for it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from pipeline.database import driver_errors
from pipeline.documents import Json
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import ConfigurationError, DocumentRejected
from workers import step4_file
from workers.cli.enrich import enrich
from workers.step4_file import write

app = typer.Typer()
app.command()(enrich)
GOOD = {"id": "PBI-1", "title": "Warn of shallow water"}
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(content, *options)`: the command on a file of this content; no file for None."""
    monkeypatch.chdir(tmp_path)
    # Twice in a command it would wait so long for a server that may be starting again;
    # that wait is what test_waiting.py tests.
    monkeypatch.setattr(driver_errors, "RESTART_SECONDS", 0.2)
    # Addresses where nothing listens: whoever starts or asks a server before the file is read, fails otherwise.
    env = {
        "LARDER_DATABASE_URL": "postgresql://x:x@127.0.0.1:1/x",
        "LARDER_BROKER_URL": "redis://127.0.0.1:1/0",
    }

    def invoke(content: bytes | None, *options: str) -> Result:
        if content is not None:
            Path("step-3.json").write_bytes(content)
        return CliRunner().invoke(app, ["step-3.json", *options], env=env)

    return invoke


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 2, "cannot be read: No such file"),
        (b"{not json", 1, "is not valid JSON"),
        (b'["\xe9"]', 1, "is no text in UTF-8"),
        ("[]".encode("utf-16"), 1, "is text in UTF-16, not in UTF-8"),
        (b" \n", 1, "is empty"),
        (
            b'[{"title": "a"}, {"title": "b", "points": {"x": [1, NaN]}}]',
            1,
            "holds a number that JSON does not know",
        ),
        (b'{"pbis": [{"title": "b", "points": -1e999}]}', 1, "holds a number that JSON does not know"),
        (b"7", 1, "has no PBIs; it holds a number"),
        (b"null", 1, "has no PBIs; it holds null"),
        (b'{"unrelated": [], "other": 1}', 1, "it holds"),
        (
            json.dumps({"scored_pbis": {"scored_pbis": [GOOD, 7]}}).encode(),
            1,
            "scored_pbis.scored_pbis[1] is a number, not",
        ),
        (
            json.dumps({"scored_pbis": {"scored_pbis": [{"pbi": "text"}]}}).encode(),
            1,
            "scored_pbis.scored_pbis[0].pbi is a text, not",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(
    run: Run, content: bytes | None, code: int, words: str
) -> None:
    for options in ((), ("--json",)):
        result = run(content, *options)
        assert result.exit_code == code, result.output
        assert "step-3.json" in result.stderr
        assert words in result.stderr
        assert "Traceback" not in result.output
    told = json.loads(result.stdout)
    assert told["success"] is False
    assert "step-3.json" in told["error"]["message"]
    assert told["error"]["fix"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"id": "PBI-2"}, "neither a title nor a description (give pbi.title"),
        ({"id": "PBI-2", "title": " \t\n"}, "neither a title nor a description (give pbi.title"),
        ({"id": "PBI-2", "title": ["a"]}, "pbi.title is a list, not a text"),
        ({"id": "PBI-2", "title": "a", "acceptance_criteria": 5}, "pbi.acceptance_criteria is a number"),
        ({"id": {"n": 2}, "title": "a"}, "pbi.id is an object"),
    ],
)
def test_a_pbi_that_is_none_is_refused_and_is_no_degradation(run: Run, bad: object, words: str) -> None:
    result = run(json.dumps([GOOD, bad]).encode(), "--json")
    told = json.loads(result.stdout)
    good, refused = told["enriched_pbis"]
    assert good["context"]["degradation_level"] == 4, "there is no database, and that is another matter"
    assert "error" not in good["context"]
    assert refused["context"]["degradation_level"] == 0
    assert refused["context"]["suggestions"] == []
    assert words in refused["context"]["error"]
    assert [e["index"] for e in told["errors"]] == [0, 1]
    assert "PBIs[1], " in result.stderr
    assert words in " ".join(result.stderr.split())
    assert "using fallback" not in result.stderr.partition("PBIs[1]")[2].partition("\n")[0]
    screen = run(json.dumps([bad]).encode(), "-o", "out.json")
    assert screen.exit_code == 1
    assert "(refused)" in screen.stderr
    assert "level 4" not in screen.stderr


def test_ids_that_are_there_twice_are_named(run: Run) -> None:
    said = run(json.dumps([GOOD, {"id": "PBI-2", "title": "a"}, {**GOOD, "title": "Other"}]).encode()).stderr
    assert "PBI-1: more than one PBI has this id" in said
    assert "PBI-2: more" not in said


@pytest.mark.parametrize(
    ("output", "words"), [("no/such/out.json", "its folder does not exist"), (".", "it is a folder")]
)
def test_an_output_that_cannot_be_written_is_told_before_the_work(run: Run, output: str, words: str) -> None:
    result = run(json.dumps([GOOD]).encode(), "-o", output)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"E005: {output} cannot be written: {words}")
    assert [path.name for path in Path().iterdir()] == ["step-3.json"]


def test_half_a_letter_is_written_as_json_has_it(tmp_path: Path) -> None:
    document = {"title": "half \ud83d", "other": "ö"}
    write(tmp_path / "out.json", document)
    assert json.loads((tmp_path / "out.json").read_bytes()) == document


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    with pytest.raises(ConfigurationError, match="it is a folder"):
        write(tmp_path / "out.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("options", [("--timeout", "0"), ("--timeout", "soon"), ("--unknown",)])
def test_wrong_options_are_usage(run: Run, options: tuple[str, ...]) -> None:
    assert run(b"[]", *options).exit_code == 2


TWO = json.dumps([GOOD, {"id": "PBI-2"}]).encode()


@pytest.mark.parametrize("form", ["md", "html"])
def test_pages_for_a_person_go_into_a_file_or_a_folder_or_to_stdout(run: Run, form: str) -> None:
    whole = run(TWO, "--format", form)
    assert whole.exit_code == 1, whole.output
    assert "Level 4" in whole.stdout
    assert "PBI-2" in whole.stdout
    run(TWO, "--format", form, "-o", f"all.{form}")
    assert Path(f"all.{form}").read_text(encoding="utf-8").strip() == whole.stdout.strip()
    for again in range(2):
        made = run(TWO, "--format", form, "-o", "pages")
        assert ("3 pages of the same names were replaced in pages" in made.stderr) == bool(again)
        assert sorted(path.name for path in Path("pages").iterdir()) == [
            f"index.{form}",
            f"pbi-1.{form}",
            f"pbi-2.{form}",
        ]
    assert "neither a title nor a description" in Path(f"pages/pbi-2.{form}").read_text(encoding="utf-8")


def test_the_ending_of_a_file_is_its_format_unless_another_is_named(run: Run) -> None:
    run(TWO, "-o", "all.md")
    assert Path("all.md").read_text(encoding="utf-8").startswith("- [")
    run(TWO, "-o", "all.HTML")
    assert Path("all.HTML").read_text(encoding="utf-8").startswith("<!")
    run(TWO, "-o", "all.md", "--format", "json")
    assert json.loads(Path("all.md").read_text(encoding="utf-8"))["enriched_pbis"]


def test_pages_leave_the_report_of_a_script_as_it_is(run: Run) -> None:
    told = json.loads(run(TWO, "--format", "html", "-o", "pages", "--json").stdout)
    assert told["stats"]["pbis"] == 2
    assert Path("pages/index.html").is_file()


def test_a_file_without_an_ending_is_no_folder(run: Run) -> None:
    Path("notes").write_text("old")
    run(TWO, "--format", "md", "-o", "notes")
    assert "PBI-2" in Path("notes").read_text(encoding="utf-8")


def test_pages_without_a_place_are_told_before_the_work(run: Run) -> None:
    result = run(TWO, "--format", "html", "-o", "no/such")
    assert result.exit_code == 2
    assert "its folder does not exist" in result.stderr
    assert run(TWO, "--format", "pdf").exit_code == 2


def test_a_bare_item_of_a_context_is_a_pbi() -> None:
    scored = [{"id": "P-1", "project": "shop"}, {"pbi": {"id": "P-1"}, "project": "quay"}]
    read = step4_file.backlog_of(Path("x"), {"scored_pbis": {"scored_pbis": scored}})
    assert read.items == [{"pbi": scored[0]}, scored[1]]
    assert (read.projects, read.repeated) == (["quay", "shop"], ["P-1"])
    assert read.context["scored_pbis"]["scored_pbis"] == scored


def test_a_backlog_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(io.BytesIO(b'[{"id": "P-1", "title": "Moorings"}]'))
    monkeypatch.setattr("sys.stdin", given)
    assert len(step4_file.read_backlog(Path("-")).items) == 1


TASK = "---\nid: task-7\ntitle: Warn of shallow water\ncreated: 2026-01-02\n---\n\nTell the pilot.\n"


@pytest.mark.parametrize(
    ("name", "content", "pbis"),
    [
        ("a.json", '{"title": "A", "description": "B"}', [{"title": "A", "description": "B"}]),
        ("a.json", '{"description": "B"}', [{"description": "B"}]),
        ("a.json", '[{"title": "A"}, {"description": "B"}]', [{"title": "A"}, {"description": "B"}]),
        ("a.json", '[{"description": "B"}]', [{"description": "B"}]),
        ("a.json", '{"pbi": {"title": "A"}, "scores": {"business": 3}}', [{"title": "A"}]),
        ("a.json", '{"Title": "A", "acceptance_criteria": [{"given": "x"}]}',
         [{"Title": "A", "acceptance_criteria": [{"given": "x"}]}]),
        ("a.json", '{"title": "A", "tags": ["x", "y"]}', [{"title": "A", "tags": ["x", "y"]}]),
        ("a.md", "# A\n\nB\nC\n", [{"title": "A", "description": "B\nC"}]),
        ("a.txt", "A\n", [{"title": "A", "description": ""}]),
        ("a.MD", "\ufeff## A\r\n\r\nB", [{"title": "A", "description": "B"}]),
        ("a.txt", '{"title": "A"}', [{"title": "A"}]),
        ("a.md", '[{"title": "A"}]', [{"title": "A"}]),
        ("a", "A\nB", [{"title": "A", "description": "B"}]),
        ("a.md", "x" * 121 + "\nB", [{"title": "", "description": "x" * 121 + "\nB"}]),
        ("a.md", TASK, [{"id": "task-7", "title": "Warn of shallow water", "created": "2026-01-02",
                         "description": "Tell the pilot."}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_stdin", [False, True])
def test_one_item_several_and_text_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, pbis: list[Json], by_stdin: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    if by_stdin:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        path = Path("-")
    backlog = step4_file.read_backlog(path)
    assert [item["pbi"] for item in backlog.items] == pbis
    assert json.dumps(backlog.context)
    assert [EnrichmentRequest.from_json(item).question for item in backlog.items]


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "run 7", "items": [{"x": 1}]}',
        '{"title": "report", "sections": {"a": 1}}',
        '{"count": 3}',
        '[{"title": "A"}, {"points": [[1]]}, 7]',
        "{}",
        '[{"x": 1}]',
    ],
)
def test_a_report_is_no_item(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DocumentRejected, match=r"a\.json"):
        step4_file.read_backlog(path)


def test_a_text_that_begins_with_a_link_is_no_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("[A](b.md)\n\nB")
    (item,) = step4_file.read_backlog(path).items
    assert item["pbi"] == {"title": "[A](b.md)", "description": "B"}
