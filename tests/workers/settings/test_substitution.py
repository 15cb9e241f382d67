"""Variables in values: what is replaced, what stays, and which type the result has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.settings import Settings, SettingsError, load
from workers.settings.yamlfile import Lookup, Variable, substitute

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
LITERALS = st.text(st.characters(exclude_characters="$", exclude_categories=["Cs"]))


def no_variables(name: str) -> None:
    """A lookup that knows nothing."""


def text_of(written: str, lookup: Lookup) -> str:
    return substitute(written, lookup)[0]


@given(NAMES, st.text())
def test_a_value_goes_in_unchanged_and_is_not_searched_again(name: str, value: str) -> None:
    assert text_of(f"<${{{name}}}>", {name: value}.get) == f"<{value}>"


@given(NAMES, LITERALS.filter(lambda text: "}" not in text))
def test_a_default_stands_in_for_unset_and_empty(name: str, default: str) -> None:
    written = f"${{{name}:-{default}}}"
    assert text_of(written, no_variables) == default
    assert text_of(written, {name: ""}.get) == default
    assert text_of(written, {name: "set"}.get) == "set"


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_variables_is_left_alone(text: str) -> None:
    assert substitute(text, no_variables) == (text, None)


@given(LITERALS, LITERALS)
def test_the_escape_gives_the_two_characters(before: str, after: str) -> None:
    assert text_of(f"{before}$${{{after}", no_variables) == f"{before}${{{after}"


@given(st.lists(st.one_of(LITERALS.map(lambda t: (t, t)), NAMES.map(lambda n: (f"${{{n}}}", f"<{n}>")))))
def test_texts_and_variables_in_any_order(parts: list[tuple[str, str]]) -> None:
    written = "".join(part for part, _ in parts)
    assert text_of(written, lambda name: f"<{name}>") == "".join(value for _, value in parts)


@pytest.mark.parametrize(
    "text", ["${", "${}", "${1A}", "${A B}", "${A:default}", "${A:-${B}}", "x ${A", "${A-}"]
)
def test_what_looks_like_a_variable_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        substitute(text, {"A": "1", "B": "2"}.get)
    assert "begins no variable" in caught.value.problems[0].actual


def test_every_unset_variable_of_a_value_is_named() -> None:
    with pytest.raises(SettingsError) as caught:
        substitute("${A}-${B:-x}-${C}", no_variables)
    assert [f.actual for f in caught.value.problems] == ["${A}, which is not set", "${C}, which is not set"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.7", 0.7),
        ("false", False),
        ("text", "text"),
        ("2024-01-02", "2024-01-02"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("!!int x", "x"),
    ],
)
def test_a_value_has_the_type_of_yaml_without_dates(loaded: Loaded, text: str, value: object) -> None:
    source = f"{{name: a, type: text, paths: b, metadata: {{own: {text}}}}}"
    found = loaded(f"rag:\n  sources:\n    - {source}\n").rag.sources[0].metadata.fixed()["own"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("written", "plain", "whole", "secret"),
    [
        ("${X}", True, True, True),
        ("${X}0", True, False, True),
        ("${X}${X}", True, False, True),
        ("${X}", False, False, True),
        ("${Y:-5}", True, True, False),
    ],
)
def test_it_is_kept_how_a_value_was_written(written: str, plain: bool, whole: bool, secret: bool) -> None:
    assert substitute(written, {"X": "5"}.get, plain=plain)[1] == Variable(written, secret, whole)


@pytest.mark.req("001-038")
def test_variables_and_defaults_in_a_file(loaded: Loaded) -> None:
    rag = loaded(
        """\
        rag:
          enabled: ${ON:-false}
          embedding: {model: "${MODEL}", dimensions: 768}
          retrieval:
            topK: ${K}
            minSimilarity: ${S:-0.5}
          sources:
            - name: docs
              type: markdown
              paths: ${PATHS}
              exclude: ["${SKIP}"]
              metadata: {rank: "${K}", weight: 3, label: "$${K}"}
        """,
        {"MODEL": "m: #1", "K": "7", "PATHS": "a/*.md, b/*.md", "SKIP": "x,y"},
    ).rag
    source = rag.sources[0]
    assert (rag.enabled, rag.embedding.model) == (False, "m: #1")
    assert (rag.retrieval.top_k, rag.retrieval.min_similarity) == (7, 0.5)
    assert source.model_dump()["paths"] == ("a/*.md", "b/*.md")
    assert source.model_dump()["exclude"] == ("x,y",)
    assert source.metadata.fixed() == {"rank": "7", "weight": 3, "label": "${K}"}


def test_a_secret_of_digits_stays_text(loaded: Loaded) -> None:
    key = loaded("rag:\n  embedding:\n    apiKey: ${KEY}\n", {"KEY": "007"}).rag.embedding.api_key
    assert key is not None
    assert key.get_secret_value() == "007"


def test_an_empty_variable_leaves_its_key_out(loaded: Loaded) -> None:
    rag = loaded("rag:\n  embedding:\n    apiKey: ${KEY:-}\n    batchSize: ${N:-}\n").rag
    assert rag.embedding.api_key is None
    assert rag.embedding.batch_size == 32


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=60,
)
@given(st.text(min_size=1).filter(lambda text: not text.isspace()))
def test_no_value_of_a_variable_can_change_the_shape_of_the_file(here: Path, value: str) -> None:
    file = here / "any.yaml"
    file.write_text("rag:\n  tenant: x ${V}\n  project: ${V}\n  enabled: false\n")
    rag = load(file, {"V": value}).rag
    assert (rag.tenant, rag.project, rag.enabled) == (f"x {value}", value, False)


def test_an_unset_variable_is_named_with_file_and_line_and_told_once(lines: Lines) -> None:
    def unset(place: str, name: str) -> str:
        fix = f"set the variable {name} or write ${{{name}:-default}}"
        return f"larder.yaml:{place}: found ${{{name}}}, which is not set, expected a value; {fix}"

    assert lines("rag:\n  storage:\n    data: ${A}/${B}\n  retrieval:\n    topK: ${C}\n") == [
        unset("3: storage.data", "A"),
        unset("3: storage.data", "B"),
        unset("5: retrieval.topK", "C"),
    ]


def test_keys_are_not_searched_for_variables(lines: Lines) -> None:
    (line,) = lines("rag:\n  ${KEY}: 5\n", {"KEY": "tenant"})
    assert "${KEY}: found an unknown key" in line
