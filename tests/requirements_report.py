"""What became of every numbered requirement: `python tests/requirements_report.py`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ID = r"(?:00\d-\d{3}|ORD-\d{2})"
LISTED = re.compile(rf"^- ({ID})$", re.MULTILINE)
DECIDED = re.compile(rf"^- ({ID}) +(\S.*)$", re.MULTILINE)
TEST_FILE = re.compile(r"(test_.*|.*_test|bench_.*)\.py")
NEVER_RUNS = re.compile(r"\bmark\.(skip|skipif|xfail)\b")
LEAST_REASON = 4
"""Words a reason needs to be one."""


@dataclass(frozen=True, kw_only=True)
class MarkedTest:
    """One test with the requirements it claims to show."""

    name: str
    """`tests/file.py::Class::function`."""
    ids: frozenset[str]
    hollow: str = ""
    """Why it can never fail; empty for a test that can."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a test inherits from its module and its classes."""

    prefix: str
    ids: frozenset[str] = frozenset()
    hollow: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of every requirement, and what is wrong with the marks."""

    covered: Mapping[str, Sequence[str]]
    """Requirement to the tests that show it."""
    decided: Mapping[str, str]
    """Requirement to the reason, without those that are covered."""
    open: Sequence[str]
    faults: Sequence[str]

    def lines(self) -> Iterator[str]:
        """One line per requirement, the faults, and the count as the last line."""
        for number in sorted([*self.covered, *self.decided, *self.open]):
            if number in self.covered:
                yield f"{number} covered {' '.join(self.covered[number])}"
            elif number in self.decided:
                yield f"{number} decided {self.decided[number]}"
            else:
                yield f"{number} open"
        yield from (f"fault: {fault}" for fault in self.faults)
        counts = len(self.covered), len(self.decided), len(self.open)
        yield "{} covered, {} decided, {} open of {}".format(*counts, sum(counts))


def listed_ids(text: str) -> list[str]:
    """Every requirement of a list, in its order: lines that hold a number and nothing else."""
    return LISTED.findall(text)


def decisions(text: str) -> dict[str, str]:
    """Requirement to reason: lines that begin with a number and go on with at least four words."""
    found: dict[str, str] = dict(DECIDED.findall(text))
    return {
        n: reason for n, reason in found.items() if len(re.findall(r"[A-Za-z]{2,}", reason)) >= LEAST_REASON
    }


def marked_tests(root: Path) -> Iterator[MarkedTest]:
    """Every marked test below `root / "tests"`.

    Raises:
        SyntaxError: a test file does not parse.
    """
    for file in sorted((root / "tests").rglob("*.py")):
        if TEST_FILE.fullmatch(file.name):
            tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
            scope = _inside(Scope(prefix=file.relative_to(root).as_posix()), tree.body, ())
            yield from _walk(tree.body, scope)


def _walk(body: Iterable[ast.stmt], scope: Scope) -> Iterator[MarkedTest]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            test = _test(node, scope)
            if test.ids:
                yield test
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = Scope(prefix=f"{scope.prefix}::{node.name}", ids=scope.ids, hollow=scope.hollow)
            yield from _walk(node.body, _inside(inner, node.body, node.decorator_list))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _walk(node.body, scope)


def _inside(scope: Scope, body: Iterable[ast.stmt], decorators: Iterable[ast.expr]) -> Scope:
    """The scope with the marks of a class's decorators and of `pytestmark` added."""
    marks = [*decorators, *(mark for node in body for mark in _pytestmark(node))]
    return Scope(prefix=scope.prefix, ids=scope.ids | _ids(marks), hollow=scope.hollow or _skipped(marks))


def _pytestmark(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign) and any(_name(target) == "pytestmark" for target in node.targets):
        return [node.value]
    if isinstance(node, ast.AnnAssign) and node.value and _name(node.target) == "pytestmark":
        return [node.value]
    return []


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _ids(marks: Iterable[ast.expr]) -> frozenset[str]:
    """The numbers of all `mark.req(...)` in these expressions, also inside `parametrize` and lists."""
    calls = (node for mark in marks for node in ast.walk(mark) if isinstance(node, ast.Call))
    requirements = (call for call in calls if ast.unparse(call.func).endswith("mark.req"))
    arguments = (arg for call in requirements for arg in call.args)
    return frozenset(a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _skipped(marks: Iterable[ast.expr]) -> str:
    return "is skipped" if any(NEVER_RUNS.search(ast.unparse(mark)) for mark in marks) else ""


def _test(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> MarkedTest:
    return MarkedTest(
        name=f"{scope.prefix}::{node.name}",
        ids=scope.ids | _ids(node.decorator_list),
        hollow=scope.hollow or _skipped(node.decorator_list) or _empty(node.body),
    )


def _empty(body: Iterable[ast.stmt]) -> str:
    """Why a body shows nothing; a call of `pytest.skip` as its first statement counts as none."""
    rest = [
        node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    if rest and isinstance(rest[0], ast.Expr) and ast.unparse(rest[0]).startswith("pytest.skip("):
        return "is skipped"
    constant = (
        isinstance(node, ast.Pass) or (isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant))
        for node in rest
    )
    return "is empty" if all(constant) else ""


def report(root: Path) -> Report:
    """The state of every requirement of the project in `root`.

    Raises:
        OSError: one of the two documents is missing.
        SyntaxError: a test file does not parse.
    """
    known = listed_ids((root / "docs/requirements.md").read_text(encoding="utf-8"))
    reasons = decisions((root / "docs/decisions.md").read_text(encoding="utf-8"))
    tests = list(marked_tests(root))
    shown: dict[str, list[str]] = {}
    for test in (t for t in tests if not t.hollow):
        for number in test.ids & set(known):
            shown.setdefault(number, []).append(test.name)
    return Report(
        covered=shown,
        decided={n: reasons[n] for n in known if n in reasons and n not in shown},
        open=[n for n in known if n not in shown and n not in reasons],
        faults=list(_faults(known, reasons, tests)),
    )


def _faults(known: Sequence[str], reasons: Iterable[str], tests: Iterable[MarkedTest]) -> Iterator[str]:
    yield from (
        f"docs/requirements.md: {n} is listed twice" for n in sorted({n for n in known if known.count(n) > 1})
    )
    yield from (f"docs/decisions.md: {n} is no requirement" for n in reasons if n not in known)
    for test in tests:
        yield from (f"{test.name}: {n} is no requirement" for n in sorted(test.ids - set(known)))
        if test.hollow:
            yield f"{test.name}: {test.hollow} and shows nothing"


def main(root: Path) -> int:
    """Print the report of `root`; 1 if a mark names no requirement or stands on a hollow test, else 0."""
    found = report(root)
    sys.stdout.write("\n".join(found.lines()) + "\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
