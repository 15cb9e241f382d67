"""The error tree: every error explains itself, carries its code and its mark."""

from __future__ import annotations

import inspect
import re

import pytest

from pipeline import errors
from pipeline.errors import LarderError, pause_after

TREE = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, LarderError)]
CODES = {
    "E001": "VECTOR_STORE_UNAVAILABLE",
    "E002": "EMBEDDING_FAILURE",
    "E003": "INDEXING_FAILURE",
    "E004": "SEARCH_FAILURE",
    "E005": "CONFIGURATION_ERROR",
}
DRAWN = re.compile(r"^[ |`-]*(\w+) *(E\d{3})? *(transient|permanent)?", re.MULTILINE)


@pytest.mark.req("001-099")
@pytest.mark.parametrize("error", TREE)
def test_every_error_has_a_code_of_the_list_and_its_name(error: type[LarderError]) -> None:
    assert CODES[error.code] == error.name


@pytest.mark.req("001-099")
def test_every_code_has_an_error() -> None:
    assert {e.code for e in TREE} == set(CODES)


@pytest.mark.parametrize("error", TREE)
def test_every_error_explains_itself(error: type[LarderError]) -> None:
    assert error.__doc__
    assert error().message == error.__doc__.splitlines()[0]


@pytest.mark.parametrize("error", TREE)
def test_every_class_stands_in_the_drawing_with_its_code_and_mark(error: type[LarderError]) -> None:
    drawn = {m[1]: (m[2], m[3]) for m in DRAWN.finditer(errors.__doc__ or "")}
    code, mark = drawn[error.__name__]
    assert code in {None, error.code}
    assert mark in {None, "transient" if error.transient else "permanent"}


@pytest.mark.req("001-100")
class TestWhatAnErrorCarries:
    def test_code_message_mark_and_cause(self) -> None:
        cause = OSError("refused")
        error = errors.RAGError("it failed", cause=cause)
        assert (error.code, error.message, error.recoverable) == ("E003", "it failed", False)
        assert error.cause is error.__cause__ is cause

    @pytest.mark.parametrize("error", TREE)
    def test_recoverable_is_the_mark(self, error: type[LarderError]) -> None:
        assert error().recoverable is error.transient

    def test_the_cure_is_told_with_it(self) -> None:
        assert str(LarderError("broken", fix="mend it")) == "broken (mend it)"
        assert str(LarderError("broken")) == "broken"

    def test_when_to_come_back(self) -> None:
        assert errors.RateLimited("busy", retry_after=3.5).retry_after == 3.5
        assert errors.RateLimited().retry_after is None


def test_only_a_wrong_configuration_ends_a_command_with_2() -> None:
    assert {e.__name__ for e in TREE if e.exit_code == 2} == {"ConfigurationError", "StoreMisnamed"}


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 2.0), (1, 2.0), (2, 4.0), (3, 8.0), (5, 30.0), (10_000, 30.0)]
)
def test_pauses_double_up_to_the_longest(failures: int, seconds: float) -> None:
    assert pause_after(failures, first=2.0, most=30.0) == seconds
