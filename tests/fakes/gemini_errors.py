"""Errors as Gemini words them, as bodies and as faults."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.faults import Fault
from tests.fakes.messages import Answer

_TYPE = "type.googleapis.com/google.rpc."

BAD_KEY = {
    "@type": f"{_TYPE}ErrorInfo",
    "reason": "API_KEY_INVALID",
    "domain": "googleapis.com",
    "metadata": {"service": "generativelanguage.googleapis.com"},
}


def body(code: int, status: str, message: str, *details: Any) -> dict[str, Any]:
    """The JSON of an error."""
    error: dict[str, Any] = {"code": code, "message": message, "status": status}
    if details:
        error["details"] = list(details)
    return {"error": error}


def refused(code: int, status: str, message: str, *details: Any) -> Answer:
    """As the answer of a fake."""
    return Answer(status=code, json=body(code, status, message, *details))


def fault(code: int, status: str, message: str = "told to fail", *details: Any) -> Fault:
    """As a fault to plan."""
    whole = json.dumps(body(code, status, message, *details))
    return Fault.status(code, body=whole, content_type="application/json; charset=UTF-8")


def retry_info(delay: str) -> dict[str, Any]:
    """`37s`, also with fractions."""
    return {"@type": f"{_TYPE}RetryInfo", "retryDelay": delay}


def quota(quota_id: str) -> dict[str, Any]:
    """Such as `GenerateRequestsPerDayPerProjectPerModel-FreeTier`."""
    violation = {
        "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
        "quotaId": quota_id,
        "quotaValue": "20",
    }
    return {"@type": f"{_TYPE}QuotaFailure", "violations": [violation]}


def too_many(*details: Any) -> Fault:
    """A 429 with these details."""
    return fault(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", *details)
