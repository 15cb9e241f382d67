"""Loading a piece of YAML as if it stood in ./larder.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from workers.settings import Settings, SettingsError, SettingsProblem, load


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def loaded(here: Path) -> Callable[..., Settings]:
    """`loaded(text, environ={})`: the settings of this text."""

    def read(text: str, environ: Mapping[str, str] | None = None) -> Settings:
        Path("larder.yaml").write_text(dedent(text), encoding="utf-8")
        return load(None, environ or {})

    return read


@pytest.fixture
def problems(loaded: Callable[..., Settings]) -> Callable[..., list[SettingsProblem]]:
    """`problems(text, environ={})`: what is wrong with this text."""

    def refused(text: str, environ: Mapping[str, str] | None = None) -> list[SettingsProblem]:
        with pytest.raises(SettingsError) as caught:
            loaded(text, environ)
        return list(caught.value.problems)

    return refused


@pytest.fixture
def lines(problems: Callable[..., list[SettingsProblem]]) -> Callable[..., list[str]]:
    """`lines(text, environ={})`: the messages about this text."""

    def told(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        return [str(problem) for problem in problems(text, environ)]

    return told
