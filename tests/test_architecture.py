"""Who may import whom, and what files may be called."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("connectors", "pipeline", "workers")
FILES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))
BAD_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "shared"}
MOST_LINES = 500
MOST_ENTRIES = 14
VAGUE = re.compile(
    "found|told|said|asked|wanted|given|known|shown|made|kept|held|left|gone|taken|noted|seen|heard|meant|brought"
    "|own|ours|theirs|mine|where|what|who|how|here|there|again|of|others|those|such|things?|way|parts"
)
"""Verbs and pronouns of prose, which name no thing: an error's text is `error_message`, and not `said`."""
MOST_VAGUE = 1.0
"""Largest share of vague names, in thousandths; columns and public fields keep theirs."""
RIDDLE = re.compile(
    "what|of|those|whoever|whatever|so|where|whose|who|how|that|as|until|from|for|between|beside|beyond|nothing"
    "|nobody|anything|anybody|some|none|neither|either|not|it|they|its|their"
)
"""First words of docstrings that are no statement, and no noun phrase of the field."""
MOST_RIDDLES = 0.01
"""Largest share of docstrings that open with a riddle."""
NO_ENTRIES = {"__pycache__", "__init__.py", "py.typed", "README.md"}
FORBIDDEN = {
    "pipeline": ("connectors", "workers", "celery", "kombu"),
    "connectors": ("workers", "celery", "kombu", "sqlalchemy", "psycopg"),
    "workers/app": tuple(f"workers.{door}" for door in ("cli", "api", "client", "tasks", "processes")),
    "workers/local": ("workers.app", "workers.cli", "workers.api", "workers.client", "workers.processes"),
    "workers/tasks.py": ("workers.cli", "workers.api"),
    "workers/cli": ("workers.tasks", "workers.api"),
    "workers/api": ("workers.tasks", "workers.cli"),
    "workers/settings": ("workers.cli", "workers.tasks", "workers.runtime", "celery", "sqlalchemy"),
}
"""Folder -> what nothing in it may import, itself or anything below."""
ALLOWED_IN_CONNECTORS = ("connectors", "pipeline.documents", "pipeline.errors")


class Module(NamedTuple):
    """What is looked at of a file; the tree itself would be kept in vain."""

    imports: frozenset[str]
    """Dotted names of all that it imports, wherever in the file."""
    silent: bool
    """It is not empty, and does not say what it is."""
    asynchronous: bool
    names: tuple[str, ...]
    """Variables, arguments, functions and classes that it defines, without underscores at their ends."""
    first_words: tuple[str, ...]
    """Of its docstrings."""


@cache
def module(path: Path) -> Module:
    """A file, parsed once for all tests."""
    found: set[str] = set()
    text, asynchronous = path.read_text(encoding="utf-8"), False
    tree = ast.parse(text)
    names, first_words = list[str](), list[str]()
    for node in ast.walk(tree):
        names += defined(node)
        if isinstance(node, ast.Expr) and isinstance(literal := getattr(node.value, "value", None), str):
            first_words.append(literal.strip().partition(" ")[0].lower())
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        asynchronous |= isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    silent = bool(text.strip()) and not ast.get_docstring(tree)
    return Module(
        frozenset(found),
        silent=silent,
        asynchronous=asynchronous,
        names=tuple(names),
        first_words=tuple(first_words),
    )


def defined(node: ast.AST) -> list[str]:
    """The name that a node defines, if it is a definition, without underscores at its ends."""
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.arg(arg=name)
            | ast.Name(id=name, ctx=ast.Store())
            | ast.AnnAssign(target=ast.Attribute(attr=name))
        ):
            return [name.strip("_").lower()]
    return []


def imports(path: Path) -> frozenset[str]:
    return module(path).imports


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def below(folder: str) -> list[Path]:
    return [p for p in FILES if p.is_relative_to(ROOT / folder)]


@pytest.mark.req("004-019")
@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_nothing_imports_what_lies_beyond_it(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in below(folder)
        for name in imports(path)
        if any(within(name, forbidden) for forbidden in FORBIDDEN[folder])
    ]
    assert wrong == []


@pytest.mark.req("001-149")
def test_connectors_know_documents_and_errors_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in below("connectors")
        for name in imports(path)
        if name.split(".")[0] in ROOMS and not any(within(name, a) for a in ALLOWED_IN_CONNECTORS)
    ]
    assert wrong == []


def test_the_walk_finds_imports_of_every_form(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(
        "import workers.queue.app as a\nfrom pipeline import ledger\ndef f():\n    from celery import Celery\n"
    )
    assert imports(sample) == {"workers.queue.app", "pipeline.ledger", "celery.Celery"}


def test_the_environment_is_read_in_settings_and_at_the_doors_only() -> None:
    processes = ("workers/processes/run.py", "workers/local/supervisor.py", "workers/local/detached.py")
    doors = ("workers/settings", "workers/cli", *processes)
    wrong = [
        str(path.relative_to(ROOT))
        for path in FILES
        if "os.environ" in path.read_text(encoding="utf-8") or "getenv(" in path.read_text(encoding="utf-8")
        if not any(path.is_relative_to(ROOT / door) for door in doors)
    ]
    assert wrong == []


def test_files_are_called_by_what_they_are() -> None:
    assert [str(p.relative_to(ROOT)) for p in FILES if p.stem.lower() in BAD_NAMES] == []


def test_files_stay_short() -> None:
    long = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert {name: n for name, n in long.items() if n > MOST_LINES} == {}


def test_folders_hold_what_a_reader_can_take_in() -> None:
    folders = {path.parent for path in FILES if "versions" not in path.parts}
    counts = {
        str(folder.relative_to(ROOT)): sum(entry.name not in NO_ENTRIES for entry in folder.iterdir())
        for folder in folders
    }
    assert {name: n for name, n in counts.items() if n > MOST_ENTRIES} == {}


@pytest.mark.req("001-149")
def test_no_modules_import_each_other() -> None:
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES if p.stem != "__init__"}
    below = {name: {other for other in imports(path) if other in modules} for name, path in modules.items()}
    assert circles(below) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_packages_of_workers_import_each_other() -> None:
    modules = {path: path.relative_to(ROOT / "workers").with_suffix("").parts[0] for path in below("workers")}
    packages: dict[str, set[str]] = {name: set() for name in modules.values()}
    for path, package in modules.items():
        imported = {name.split(".")[1] for name in imports(path) if name.startswith("workers.")}
        packages[package] |= (imported & packages.keys()) - {package}
    assert circles(packages) == []


def circles(below: dict[str, set[str]]) -> list[list[str]]:
    """Those that reach themselves, each group once."""
    reached: dict[str, set[str]] = {}
    for name, known in below.items():
        seen: set[str] = set()
        todo = set(known)
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo |= below[one]
        reached[name] = seen
    groups = {frozenset(o for o in reached[n] if n in reached[o]) for n in below if n in reached[n]}
    return sorted(sorted(group) for group in groups)


def test_every_module_says_what_it_is() -> None:
    assert [str(p.relative_to(ROOT)) for p in FILES if module(p).silent] == []


def test_names_name_things() -> None:
    names = [name for path in FILES for name in module(path).names]
    vague = Counter(name for name in names if VAGUE.fullmatch(name))
    assert 1000 * vague.total() <= MOST_VAGUE * len(names), vague


def test_docstrings_begin_with_a_statement() -> None:
    words = [word for path in FILES for word in module(path).first_words]
    riddles = Counter(word for word in words if RIDDLE.fullmatch(word))
    assert riddles.total() <= MOST_RIDDLES * len(words), riddles


def test_the_code_is_synchronous() -> None:
    wrong = [
        str(p.relative_to(ROOT))
        for p in FILES
        # ASGI is asynchronous: what stands before all handlers, and those that wait without a thread.
        if p
        not in {
            ROOT / f"workers/api/{name}.py" for name in ("app", "callers", "enrichment", "agents", "stories")
        }
        if module(p).asynchronous
    ]
    assert wrong == []


LOOKS = ("workers.app.search", "workers.app.status", "workers.app.explain")


@cache
def loaded() -> dict[str, list[str]]:
    """Module -> which of the heavy ones are loaded with it and those above it here, in a process of their own."""
    code = """
import importlib, json, sys
heavy = ("celery", "kombu", "structlog", "requests", "atlassian", "msrest")
print(json.dumps({one.__name__: [m for m in heavy if m in sys.modules] for one in map(importlib.import_module, sys.argv[1:])}))
"""
    asked = [sys.executable, "-c", code, *LOOKS, "workers.runtime", "workers.cli"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_who_opens_no_service_loads_no_client_of_one() -> None:
    assert not {"requests", "atlassian", "msrest"} & set(loaded()["workers.cli"])


@pytest.mark.parametrize("looks", LOOKS)
def test_who_only_looks_loads_no_celery(looks: str) -> None:
    assert not {"celery", "kombu", "structlog"} & set(loaded()[looks])


ORDERED = {
    "celery": "celery",
    "redis": "redis",
    "kombu": "kombu",
    "sqlalchemy": "sqlalchemy",
    "pgvector": "pgvector",
    "psycopg": "psycopg",
    "google-genai": "google",
    "atlassian-python-api": "atlassian",
    "azure-devops": "azure.devops",
    "tenacity": "tenacity",
    "flower": "",
    "pytest": "pytest",
}
"""What the order names -> what is imported of it; Flower is a command."""


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize("library", sorted(ORDERED))
def test_each_library_of_the_order_is_a_dependency_and_used(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert any(re.match(rf"{library}[\[=<>]", one) for one in wanted)
    name = ORDERED[library]
    if name:
        files = chain(FILES, (ROOT / "tests").rglob("test_*.py"))
        assert any(within(imported, name) for path in files for imported in imports(path))


@pytest.mark.req("000-050")
def test_stories_need_no_framework_and_no_second_store() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[=<>]", one)[0] for one in project["dependencies"]}
    assert {"pgvector", "google-genai"} <= names
    used = {name.split(".")[0] for path in below("pipeline/stories") for name in imports(path)}
    assert not (names | used) & {"sentence-transformers", "sentence_transformers", "langchain", "chromadb"}
