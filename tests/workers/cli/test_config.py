"""larder config: a file that is right from the start, shown without secrets, and checked whole."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectors import SOURCES
from workers.cli import commands
from workers.cli.config import app
from workers.monitoring.liveness import process_start
from workers.settings import load
from workers.settings.rendering import in_force

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("check", LOG_LEVEL="info")`: the command in an empty folder, without a server anywhere near."""
    monkeypatch.chdir(tmp_path)
    for name in ("LARDER_CONFIG", "LARDER_DATA", "LARDER_DATABASE_URL", "LARDER_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args, **env: CliRunner().invoke(app, list(args), env=env)


def write(text: str) -> None:
    Path("larder.yaml").write_text(text, encoding="utf-8")


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.mark.req("001-081", "001-091", "001-139", "001-148")
def test_the_written_file_passes_its_own_check(run: Run) -> None:
    made = run("init")
    assert made.exit_code == 0, made.output
    text = Path("larder.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert "without a source" in made.stdout
    assert document(run("check", "--json"))["sources"] == []
    examples = (
        text.replace("sources: []", "sources:")
        .replace("    # ", "    ")
        .replace("Examples of", "# Examples of")
    )
    write(examples)
    shorter = document(run("check", "--json"))
    assert not shorter["problems"]
    assert {s["type"] for s in shorter["sources"]} == set(SOURCES)
    made = run("init", "--full", "--force")
    assert made.exit_code == 0, made.output
    text = Path("larder.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Configuration of Larder")
    checked = run("check", "--json")
    assert checked.exit_code == 0, checked.output
    sources = {s["name"]: s["enabled"] for s in document(checked)["sources"]}
    assert sources == {
        "project_docs": True,
        "pipeline_outputs": True,
        "confluence_kb": False,
        "azure_devops": False,
        "tickets": False,
    }


def test_a_file_that_is_there_is_kept_unless_forced(run: Run) -> None:
    write("rag: {tenant: mine}\n")
    refused = run("init")
    assert refused.exit_code == 2
    assert "larder.yaml is there already" in refused.stderr
    assert Path("larder.yaml").read_text(encoding="utf-8") == "rag: {tenant: mine}\n"
    assert run("init", "--force").exit_code == 0
    assert "mine" not in Path("larder.yaml").read_text(encoding="utf-8")


def test_another_file_may_be_named(run: Run) -> None:
    made = run("init", "conf/other.yaml", "--json")
    assert (document(made)["success"], document(made)["file"]) == (True, "conf/other.yaml")
    assert Path("conf/other.yaml").exists()
    assert not Path("larder.yaml").exists()
    assert run("check", "--config", "conf/other.yaml").exit_code == 0


def test_what_is_there_is_written_once_and_the_rest_is_said(run: Run) -> None:
    for name in ("docs/a.md", "docs/adr/0001-x.md", "README.md", "node_modules/p/readme.md", "src/app.ts"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("# Text\n", encoding="utf-8")
    made = document(run("init", "conf/larder.yaml", "--json"))
    assert [(s["name"], s["files"]) for s in made["sources"]] == [("decisions", 1), ("documents", 2)]
    reasons = {one["reason"]: one["count"] for one in made["left_out"]}
    assert reasons == {"folders of dependencies and tools": 1, "files that are no documents": 1}
    checked = document(run("check", "--config", "conf/larder.yaml", "--json"))
    assert [Path(s["root"]).resolve() for s in checked["sources"]] == [Path.cwd(), Path.cwd()]


def test_services_come_from_variables_that_suffice_and_no_secret_is_written(run: Run) -> None:
    env = {"CONFLUENCE_BASE_URL": "https://wiki.example.com", "CONFLUENCE_PAT": "hush", "AZURE_PAT": "hush"}
    made = run("init", **env)
    text = Path("larder.yaml").read_text(encoding="utf-8")
    assert "baseUrl: ${CONFLUENCE_BASE_URL}" in text
    assert "hush" not in text + made.output
    assert "AZURE_PAT is set: not set: AZURE_ORG, AZURE_PROJECT" in made.stdout
    assert [s["type"] for s in document(run("check", "--json", **env))["sources"]] == ["confluence"]


def test_a_variable_that_would_be_refused_is_named_and_not_written(run: Run) -> None:
    made = run("init", CONFLUENCE_URL="wiki hush", CONFLUENCE_PAT="x")
    assert "the value of CONFLUENCE_URL is refused" in made.stdout
    assert "hush" not in made.output
    assert run("check").exit_code == 0


def test_larder_init_is_the_same_command(run: Run) -> None:
    del run  # its empty folder is what is wanted
    made = CliRunner().invoke(commands.app, ["init"])
    assert (made.exit_code, Path("larder.yaml").exists()) == (0, True)


def test_a_place_that_cannot_be_written_is_a_sentence(run: Run) -> None:
    Path("taken").write_text("", encoding="utf-8")
    refused = run("init", "taken/larder.yaml")
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr


def test_show_prints_what_is_in_force_without_secrets(run: Run) -> None:
    write("rag: {tenant: acme, storage: {database: {url: 'postgresql://u:hush@db/larder'}}}\n")
    shown = run("show", LARDER_BROKER_URL="redis://:hush@b/0", LARDER_PROJECT="app")
    assert shown.exit_code == 0
    assert "tenant: acme" in shown.stdout
    assert "project: app" in shown.stdout
    assert "hush" not in shown.output
    assert "@db/larder" in shown.stdout
    found = document(run("show", "--json"))
    assert found["rag"]["tenant"] == "acme"
    assert found["rag"]["retrieval"]["topK"] == 5
    assert "hush" not in str(found)


def test_check_reports_all_problems_at_once(run: Run) -> None:
    write("rag:\n  tenant: acme\n  retrieval: {topK: many}\n  sauces: []\n  timezone: Nowhere/Land\n")
    checked = run("check")
    assert checked.exit_code == 2
    lines = checked.stderr.splitlines()
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"]
    assert checked.stdout == ""
    found = document(run("check", "--json"))
    assert (found["success"], len(found["error"]["problems"])) == (False, 3)


def test_check_tells_what_was_understood(run: Run) -> None:
    write("""
rag:
  tenant: acme
  sources:
    - {name: docs, type: markdown, paths: ["docs/**/*.md"], exclude: ["**/old/**"], indexSchedule: "0 2 * * *"}
    - {name: notes, type: text, paths: ["*.txt"], enabled: false, tenant: other, root: notes}
    - {name: wiki, type: confluence, enabled: false}
""")
    found = document(run("check", "--json"))
    assert found["success"] is True
    docs, notes, _wiki = found["sources"]
    assert (docs["paths"], docs["exclude"], docs["schedule"]) == (
        ["docs/**/*.md"],
        ["**/old/**"],
        "0 2 * * *",
    )
    assert (notes["enabled"], notes["tenant"], docs["tenant"]) == (False, "other", "acme")
    assert notes["root"] == str(Path("notes").absolute())
    said = run("check").stdout
    assert not any(line.endswith("at ") for line in said.splitlines())
    for words in (
        "docs (markdown, 0 2 * * *)",
        "reads   docs/**/*.md",
        "without **/old/**",
        "notes (text, disabled)",
    ):
        assert words in said


def test_keys_that_are_not_used_are_warnings(run: Run) -> None:
    write("rag: {enrichment: {generator: gemini}}\n")
    checked = run("check", "--json")
    assert checked.exit_code == 0
    assert len(document(checked)["warnings"]) == 1
    assert "enrichment.generator" in document(checked)["warnings"][0]
    assert "warning" in run("check").stdout


def test_a_pattern_that_leaves_its_root_is_a_problem(run: Run) -> None:
    write("""
rag:
  sources:
    - {name: good, type: text, paths: ["*.txt"]}
    - {name: bad, type: text, paths: ["../../etc/*"]}
""")
    checked = run("check")
    assert checked.exit_code == 2
    assert "bad" in checked.stderr
    assert "good" not in checked.stderr


def test_dimensions_the_model_does_not_have_are_a_problem(run: Run) -> None:
    write("rag: {embedding: {provider: minilm, dimensions: 100}}\n")
    checked = run("check", "--json")
    assert checked.exit_code == 2
    assert "384" in str(document(checked))


def test_without_a_file_the_defaults_hold(run: Run) -> None:
    checked = run("check")
    assert checked.exit_code == 0
    assert "no file: the defaults hold" in checked.stdout
    assert "no sources" in checked.stdout


def test_nothing_of_this_starts_a_server(run: Run) -> None:
    run("init")
    run("show")
    run("check")
    assert [path.name for path in Path().iterdir()] == ["larder.yaml"]


def test_down_with_a_data_folder_needs_no_configuration(run: Run) -> None:
    del run  # its empty folder is what is wanted
    write("rag: {embedding: {provider: openai, apiKey: '${UNSET_KEY}'}}")
    refused = CliRunner().invoke(commands.app, ["down"])
    assert (refused.exit_code, "UNSET_KEY" in refused.stderr) == (2, True)
    assert "larder down --data FOLDER" in refused.stderr
    done = CliRunner().invoke(commands.app, ["down", "--data", ".larder", "--json"])
    assert (done.exit_code, document(done)) == (0, {"success": True, "stopped": []})


def test_files_that_searches_need_are_looked_at(run: Run) -> None:
    Path("half").mkdir()
    write("rag: {retrieval: {synonyms: no.yaml, rerank: {enabled: true, model: ./half}}}\n")
    checked = run("check")
    assert checked.exit_code == 2
    assert f"retrieval.synonyms: {Path('no.yaml').absolute()} cannot be read" in checked.stderr
    # Searches go on without a reranker.
    write("rag: {retrieval: {rerank: {enabled: true, model: ./half}}}\n")
    checked = run("check")
    assert checked.exit_code == 0
    assert "warning searches go without the reranker: " in checked.stdout
    assert "has no model.onnx" in checked.stdout


def test_files_that_addresses_name_are_looked_at(run: Run) -> None:
    Path("ca.pem").touch()
    storage = (
        "rag: {{storage: {{database: {{url: 'postgresql://a:b@there/x?sslmode=verify-full&sslrootcert={}'}}"
    )
    storage += ", broker: {{url: 'rediss://there/0?ssl_ca_certs={}'}}}}}}"
    write(storage.format("no.pem", "none.pem"))
    checked = run("check")
    assert checked.exit_code == 2
    assert "storage.database.url: its TLS: sslrootcert names no.pem" in checked.stderr
    assert "storage.broker.url: its TLS: ssl_ca_certs names none.pem" in checked.stderr
    write(storage.format("system", "ca.pem"))
    assert "TLS" not in run("check").stderr


@pytest.mark.parametrize("door", ["api", "flower"])
def test_a_port_that_is_taken_is_named_with_its_key(run: Run, door: str) -> None:
    del run
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = {"LARDER_DATABASE_URL": "postgresql://there/x", "LARDER_BROKER_URL": "redis://there/0"}
        refused = CliRunner().invoke(commands.app, [door, "--port", str(port)], env=addresses)
    assert refused.exit_code == 2
    assert f"{door}.port is {port}, and another program listens there" in refused.stderr


def test_what_runs_differently_is_told_and_taken_over(run: Run) -> None:
    def larder(*args: str) -> Result:
        return CliRunner().invoke(commands.app, list(args))

    write("rag: {retrieval: {topK: 5}, auth: {secret: 'a secret of some length, sixty-four bits at least'}}")
    settings = load(None, {})
    nothing = larder("reload")
    assert (nothing.exit_code, nothing.stderr.splitlines()[1]) == (2, "  larder up --detach")
    addresses = {"LARDER_DATABASE_URL": "postgresql://there/larder", "LARDER_BROKER_URL": "redis://there/0"}
    elsewhere = CliRunner().invoke(commands.app, ["reload"], env=addresses)
    assert elsewhere.exit_code == 2
    assert "start each process again that was started by hand or in a container" in elsewhere.stderr
    assert "larder up --detach" not in elsewhere.stderr
    settings.data.mkdir(mode=0o700)
    entry = {"name": "supervisor", "pid": os.getpid(), "started": process_start(os.getpid())}
    state = {"processes": [entry], "configuration": in_force(settings), "outdated": []}
    (settings.data / "state.json").write_text(json.dumps(state))
    assert document(run("check", "--json"))["not_running"] == []
    assert larder("reload").stdout.startswith("nothing to do")
    write(
        "rag: {retrieval: {topK: 9}, auth: {secret: 'another secret of some length, sixty-four bits at least'}}"
    )
    told = run("check").stdout.splitlines()
    assert told[-3:] == [
        "differs retrieval.topK: 9 (running with 5)",
        "differs a password or key",
        "next  larder reload",
    ]
    write(
        "rag: {retrieval: {topK: 5}, auth: {secret: 'a secret of some length, sixty-four bits at least'}, "
        "sources: [{name: docs, type: markdown, paths: ['*.md']}]}"
    )
    assert document(run("check", "--json"))["not_running"] == ["sources.docs: new"]
    write("rag: {storage: {broker: {url: 'redis://:secret@elsewhere/0'}}}")
    refused = larder("reload")
    assert refused.exit_code == 2
    assert "storage.broker.url: redis://:***@elsewhere/0" in refused.stderr
    assert "larder down, then larder up --detach" in refused.stderr
