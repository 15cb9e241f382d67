"""The API against its own description: requests drawn from it, answers held to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from workers.api.app import create_app
from workers.runtime import Runtime

EXAMPLES = int(os.environ.get("LARDER_CASES", "10"))
"""Requests for each operation."""
EVERYTHING = frozenset({"read", "write", "operate", "admin"})


def test_answers_are_as_they_are_described(parts: Runtime, token: Callable[..., str]) -> None:
    headers = {"Authorization": f"Bearer {token(permissions=EVERYTHING, projects=('*',))}"}
    described = schemathesis.openapi.from_asgi("/openapi.json", create_app(parts))
    asked = 0
    for found in described.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]

        @given(case=operation.as_strategy())
        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
        def check(case: Any) -> None:
            nonlocal asked
            asked += 1
            if case.headers:
                case.headers.pop("prefer", None)  # nobody answers here
            # What Step 3 wrote comes in many shapes; which ones hold an item no schema says.
            loose = [positive_data_acceptance] if case.operation.path.endswith("/enrich") else []
            case.call_and_validate(headers=headers, excluded_checks=loose)

        check()
    assert asked > 150


@pytest.mark.req("004-010", "004-024")
def test_every_address_is_described(api: TestClient) -> None:
    told = api.get("/openapi.json").json()
    assert told["components"]["securitySchemes"]["bearerAuth"]["scheme"] == "bearer"
    for path, operations in told["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            open_to_all = path.startswith("/health") or path == "/metrics"
            assert ("security" in operation) is not open_to_all, path
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and not (status == "503" and path == "/health/rag"):
                    assert "application/problem+json" in answer["content"], (path, status)
