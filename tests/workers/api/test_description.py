"""The API against its own description: requests drawn from it, answers held to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.api_page import HEAD, PAGE, reference

EXAMPLES = os.environ.get("LARDER_CASES", "2")
"""Requests drawn for each operation."""
EVERYTHING = frozenset({"read", "write", "operate", "admin"})
LOOSE = """
[[operations]]
include-path = "/api/v1/enrich"
# What Step 3 wrote comes in many shapes; which ones hold an item no schema says.
checks.positive_data_acceptance.enabled = false
"""


def test_no_phase_finds_an_answer_that_is_not_as_described(
    address: str, token: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(LOOSE, encoding="utf-8")
    ran = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            *("run", f"{address}/openapi.json", "--phases", "examples,coverage,fuzzing,stateful"),
            *(
                "--max-examples",
                EXAMPLES,
                # One: Python 3.11 counts the depth of a syntax tree for all threads together, and Hypothesis parses.
                "--workers",
                "1",
                "--request-timeout",
                "60",
                "--generation-deterministic",
                "--no-color",
            ),
            *("-H", f"Authorization: Bearer {token(permissions=EVERYTHING, projects=('*',))}"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[:6000] + ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "✅ Coverage" in ran.stdout
    assert "✅ Stateful" in ran.stdout


@pytest.mark.req("004-010", "004-024")
def test_every_address_is_described(api: TestClient) -> None:
    told = api.get("/openapi.json").json()
    assert told["components"]["securitySchemes"]["bearerAuth"]["scheme"] == "bearer"
    for path, operations in told["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            # The events of webhooks are proved by the secret of their source.
            open_to_all = path.startswith(("/health", "/api/v1/hooks/")) or path == "/metrics"
            assert ("security" in operation) is not open_to_all, path
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and not (status == "503" and path == "/health/rag"):
                    assert "application/problem+json" in answer["content"], (path, status)


@pytest.mark.parametrize(("path", "allowed"), [("/api/v1/projects", "GET, POST"), ("/rag/seed", "GET, POST")])
def test_a_method_that_is_not_there_is_told_those_that_are(api: TestClient, path: str, allowed: str) -> None:
    answer = api.put(path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


def test_the_page_is_the_one_made_from_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(HEAD)[2] == reference().partition(HEAD)[2], (
        "write it again: python -m tests.api_page"
    )
