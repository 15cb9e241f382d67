"""What every command does with what goes wrong around it: folders, files, screens and options."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from workers.cli import commands
from workers.cli.commands import app
from workers.cli.context import CommandContext, command, resumable
from workers.cli.operate import _read_on
from workers.cli.tables import to_stdout_json

Larder = Callable[..., Result]


@pytest.fixture
def larder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Larder:
    """`larder("status", ...)` in an empty folder, with no address of a server."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LARDER_")]:
        monkeypatch.delenv(name)
    return lambda *args: CliRunner().invoke(app, args)


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        (
            {"own_workers": True},
            "stopping within half a minute, at once with another Ctrl-C; what is done is kept",
        ),
        ({"own_workers": False}, "stopping; what is done is kept"),
        ({"goes_on": True}, "the work goes on in the background"),
    ],
)
def test_ctrl_c_is_answered_with_what_becomes_of_the_work(
    capsys: pytest.CaptureFixture[str], whose: dict[str, bool], said: str
) -> None:
    with pytest.raises(typer.Exit) as ended, resumable(**whose):
        raise KeyboardInterrupt
    assert (ended.value.exit_code, capsys.readouterr().err.splitlines()[0]) == (130, said)


def test_the_version_is_that_of_the_package(larder: Larder) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    result = larder("--version")
    assert (result.exit_code, result.stdout) == (0, f"larder {project['version']}\n")


@pytest.mark.parametrize("command", [("up", "--detach"), ("up",)])
def test_a_data_folder_that_can_be_none_is_named(larder: Larder, command: tuple[str, ...]) -> None:
    Path("file").touch()
    for folder in ("file", "file/below"):
        result = larder(*command, "--data", folder, "--json")
        assert result.exit_code == 2, result.output
        assert f"the data folder {Path(folder).resolve()} cannot be created or written to" in result.stderr
        assert json.loads(result.stdout)["error"]["fix"].startswith("name another with --data")


def test_what_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    refused = typer.Typer()

    @command(refused)
    def read(context: CommandContext) -> None:
        (tmp_path / "nothing").read_text()

    result = CliRunner().invoke(refused, ["--json"])
    assert result.exit_code == 1
    message = f"{tmp_path / 'nothing'}: No such file or directory"
    assert json.loads(result.stdout)["error"]["message"] == message
    assert message in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("worker", "ingest", "--concurrency", "0"),
        ("flower", "--port", "99999"),
        ("search", "  "),
        ("ingest", ""),
        ("reindex", "--dimensions", "0"),
        ("reindex", "--dimensions", "4001"),
    ],
)
def test_wrong_values_are_usage_and_start_nothing(larder: Larder, args: tuple[str, ...]) -> None:
    assert larder(*args).exit_code == 2
    assert not list(Path().iterdir())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_on_any_screen(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"title": "Köln → half \ud83d"}
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace"))
    print(to_stdout_json(data), flush=True)
    assert json.loads(raw.getvalue().decode(encoding)) == data


def test_a_screen_without_a_letter_gets_the_rest(tmp_path: Path) -> None:
    (tmp_path / "larder.yaml").write_text("rag: {tenant: Łódź}\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "workers.cli", "config", "check"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LARDER_CONFIG": "larder.yaml"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert b"tenant \\u0141\\xf3d\\u017a" in ran.stdout


@pytest.mark.skipif(
    not Path("/dev/full").exists() and "CI" not in os.environ, reason="needs a device that is always full"
)
def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-u", "-m", "workers.cli", "config", "show", "--json"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.startswith(b"E003: No space left on device")
    assert b"Traceback" not in ran.stderr


NEEDING = [
    *(("status",), ("search", "kestrel"), ("explain", "x"), ("index", "--dry-run"), ("dead", "list")),
    *(("doctor",), ("feedback", "--list"), ("stories", "stats"), ("stories", "search", "x")),
    *(("clear",), ("clear", "--yes"), ("reindex",), ("sources", "pause", "a"), ("token",), ("mcp",)),
]


@pytest.mark.parametrize("args", NEEDING)
def test_what_needs_an_installation_makes_none(larder: Larder, args: tuple[str, ...]) -> None:
    Path("larder.yaml").write_text(
        "rag: {sources: [{name: a, type: text, paths: ['*.txt']}]}", encoding="utf-8"
    )
    result = larder(*args)
    assert result.exit_code == 2, result.output
    assert f"there is no installation in {Path.cwd() / '.larder'}" in result.stderr
    assert "larder up --detach" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["larder.yaml"]


def test_index_without_a_source_makes_no_installation(larder: Larder) -> None:
    result = larder("index")
    assert (result.exit_code, list(Path().iterdir())) == (2, [])
    assert "no sources are configured" in result.stderr


def test_down_says_that_nothing_runs(larder: Larder) -> None:
    assert larder("down").stdout == f"nothing runs with {Path.cwd() / '.larder'}\n"


def test_what_only_looks_finds_the_installation_above(
    larder: Larder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("larder.yaml").write_text("rag: {tenant: above}", encoding="utf-8")
    top = Path.cwd()
    (top / "docs/deep").mkdir(parents=True)
    monkeypatch.chdir("docs/deep")
    assert CommandContext(None, as_json=False, looks=True).settings.data == top / ".larder"
    assert CommandContext(None, as_json=False, looks=True).settings.tenant == "above"
    assert CommandContext(None, as_json=False).settings.tenant == "default", "what writes is told where"
    assert f"no installation in {top / '.larder'}" in larder("status").stderr


def test_the_list_of_commands_tells_what_they_tell(larder: Larder) -> None:
    shown = larder("-h").stdout
    for name in commands.COMMANDS:
        told = (commands.loaded(name).help or "").partition("\n")[0].rstrip(".")
        assert (told in " ".join(shown.split())) == (name not in commands.HIDDEN), name
    assert not [
        text
        for text in shown.splitlines()
        if text.endswith((".", "...")) and text.startswith("  ") and text.split()[0] in commands.COMMANDS
    ]
    assert larder("sources", "-h").stdout == larder("sources", "--help").stdout


@pytest.mark.parametrize(
    ("args", "left_out"),
    [(("--version",), ("typer", "rich", "pydantic")), (("--help",), ("rich", "pydantic", "sqlalchemy"))],
)
def test_what_needs_little_loads_little(args: tuple[str, ...], left_out: tuple[str, ...]) -> None:
    script = (
        "import sys; from workers.cli import main\ntry: main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert not loaded & set(left_out)


def test_shells_are_told_what_may_follow(larder: Larder) -> None:
    env = {"_LARDER_COMPLETE": "complete_bash", "COMP_WORDS": "larder sea", "COMP_CWORD": "1"}
    ran = CliRunner().invoke(app, [], env=env, prog_name="larder")
    assert ran.stdout.split() == ["search"]
    assert larder("--show-completion", "bash").exit_code == 0


def test_logs_are_read_for_people(larder: Larder) -> None:
    folder = Path(".larder/logs")
    folder.mkdir(parents=True)
    told = [{"event": "indexed", "level": "info", "timestamp": "2026-01-02T03:04:05.6Z", "run": 7}]
    told.append({"event": "late", "level": "warning", "timestamp": "2026-01-02T03:04:04Z", "logger": "x"})
    lines = ["a banner", *map(json.dumps, told), '{"half": ']
    (folder / "worker-embed.log").write_text("\n".join(lines))
    (folder / "supervisor.log").write_text("2026-01-02T03:04:06Z beat was ended by SIGKILL\n")
    assert larder("logs").stdout.splitlines() == [
        "2026-01-02 03:04:04 worker-embed   warning  late",
        "2026-01-02 03:04:05 worker-embed   info     indexed run=7",
        "2026-01-02 03:04:06 supervisor     warning  beat was ended by SIGKILL",
    ]
    assert larder("logs", "worker-embed", "--level", "warning").stdout.count("\n") == 1
    assert larder("logs", "-n", "1").stdout.count("\n") == 1
    assert "there is no api.log in" in larder("logs", "api").stderr
    assert "there are: supervisor, worker-embed" in larder("logs", "api").stderr
    assert larder("logs", "--level", "loud").exit_code == 2


def test_a_log_is_read_on_by_whole_lines_and_anew_once_it_was_emptied(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("one\ntwo\nthr")
    assert _read_on(log, 0) == (["one", "two"], 8)
    log.write_text("one\ntwo\nthree\n")
    assert _read_on(log, 8) == (["three"], 14)
    log.write_text("anew\n")
    assert _read_on(log, 14) == (["anew"], 5)


def test_the_log_that_is_named_is_shown_with_lines_of_other_programs(larder: Larder) -> None:
    folder = Path(".larder/logs")
    assert f"there is no *.log in {folder.resolve()}\n" in larder("logs").stderr
    folder.mkdir(parents=True)
    told = {"event": "started", "level": "info", "timestamp": "2026-01-02T03:04:05.6Z"}
    lines = [json.dumps(told), "Traceback (most recent call last):", "ImportError: no such thing"]
    (folder / "api.log").write_text("".join(f"{line}\n" for line in lines))
    assert larder("logs", "api").stdout.splitlines() == [
        "2026-01-02 03:04:05 api            info     started",
        *lines[1:],
    ]
    assert larder("logs").stdout.count("\n") == 1
    assert larder("logs", "api", "--level", "warning").stdout == ""


def test_a_log_says_a_task_once(larder: Larder) -> None:
    folder = Path(".larder/logs")
    folder.mkdir(parents=True)
    told = {"event": "Task larder.embed[7] succeeded", "task": "larder.embed", "task_id": "7", "documents": 2}
    (folder / "worker-embed.log").write_text(json.dumps(told) + "\n")
    assert larder("logs").stdout.rstrip().endswith("Task larder.embed[7] succeeded documents=2")


def test_a_folder_that_is_a_source_is_not_made_a_second_one(larder: Larder) -> None:
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("a")
    Path("larder.yaml").write_text("rag: {sources: [{name: notes, type: text, paths: ['docs/**/*.txt']}]}")
    result = larder("ingest", "docs")
    assert result.exit_code == 2
    assert "the folder of the source notes already" in result.stderr
    assert "larder index notes" in result.stderr
    assert not Path(".larder").exists()
