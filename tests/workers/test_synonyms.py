"""The synonyms file, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from tests.connectors.test_bounds import MERGES
from workers.app import search


@pytest.mark.req("001-022")
@pytest.mark.parametrize(
    ("content", "groups"),
    [
        ("- [k8s, Kubernetes]\n- [pto, paid time off]\n", (("k8s", "kubernetes"), ("pto", "paid time off"))),
        ("k8s: [Kubernetes, kube]\npto: leave\n", (("k8s", "kubernetes", "kube"), ("pto", "leave"))),
        ("- [404, not found]\n", (("404", "not found"),)),
        ("", ()),
        ("- [alone]\n", ()),
    ],
)
def test_both_forms_are_read(tmp_path: Path, content: str, groups: tuple[tuple[str, ...], ...]) -> None:
    file = tmp_path / "synonyms.yaml"
    file.write_text(content, encoding="utf-8")
    assert search.read_synonyms(file).groups == groups


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- [a, [b]]\n- [x]", "no list of words: 1"),
        (b"- [a, b]\n- {c: d}", "no list of words: 2"),
        (b"just words", "no list of groups"),
        (b"a: {b: c}", "no list of words: 1"),
        (b"- [a, b\n", "no YAML, see line 2"),
        (b"\xff\xfe\xff", "it is not UTF-8"),
        (b"- [a]\n" * 200_000, "larger than"),
        (MERGES.encode(), "no YAML, see line 1"),
        (b"[" * 3000 + b"]" * 3000, "no YAML, see line 1"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "synonyms.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        search.read_synonyms(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.fix


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        search.read_synonyms(tmp_path / "absent.yaml")
