"""The lock files install on every Python that the package promises, and hold all that each of them needs."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROMISED = ("3.11.0", "3.11.2", "3.11.9", "3.12.0", "3.13.0")
"""The first of all, that of Debian 12, and first ones of later years: a lock is made on one and installed on others."""
LOCKS = ("deploy/requirements.lock", "deploy/tracing.lock", "deploy/stores.lock", "deploy/dev.lock")


def locked(name: str) -> dict[str, str]:
    """Package -> version."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([\w.-]+)(?:\[[\w,-]+])?==([^ ]+) \\$", line) for line in lines)
    return {canonicalize_name(one[1]): one[2] for one in found if one}


def installed(name: str) -> list[Distribution]:
    return [distribution(package) for package in locked(name)]


def environment(python: str) -> dict[str, str]:
    return {
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "extra": "",
    }


def test_the_promise_is_the_one_that_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize("python", PROMISED)
@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_installs(lock: str, python: str) -> None:
    refusing = {
        one.name: wanted
        for one in installed(lock)
        if not SpecifierSet(wanted := one.metadata["Requires-Python"] or "").contains(python)
    }
    assert not refusing


@pytest.mark.parametrize("python", PROMISED)
@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_is_missing_or_of_another_version(lock: str, python: str) -> None:
    versions, lacking = locked(lock), []
    for one in installed(lock):
        for text in one.requires or []:
            wanted = Requirement(text)
            if wanted.marker and not wanted.marker.evaluate(environment(python)):
                continue
            version = versions.get(canonicalize_name(wanted.name))
            if version is None or not wanted.specifier.contains(version, prereleases=True):
                lacking.append(f"{one.name}: {text} ({version})")
    assert not lacking


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_asked_for_with_extras_is_pinned_with_them(lock: str) -> None:
    """Or pip looks at the newest release for the extra, which has no hash here, as soon as there is a newer one."""
    lines = (ROOT / lock).read_text(encoding="utf-8")
    pinned = {
        canonicalize_name(name): {canonicalize_name(extra) for extra in extras.split(",")}
        for name, extras in re.findall(r"^([\w.-]+)\[([\w,-]+)]==", lines, flags=re.MULTILINE)
    }
    wanted = (Requirement(text) for one in installed(lock) for text in one.requires or [])
    lacking = {
        str(one)
        for one in wanted
        if one.extras - pinned.get(canonicalize_name(one.name), set())
        and (one.marker is None or one.marker.evaluate(environment("3.11.0")))
    }
    assert not lacking


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_tested_is_what_is_locked(lock: str) -> None:
    assert {canonicalize_name(one.name): one.version for one in installed(lock)} == locked(lock)
