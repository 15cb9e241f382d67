"""One request to a pretended Azure DevOps, taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.fakes.azure_devops_errors import Refusal, bad_request
from tests.fakes.azure_devops_records import Project
from tests.fakes.server import Answer, Seen


@dataclass(frozen=True, kw_only=True)
class Call:
    seen: Seen
    args: Mapping[str, str]
    """Variables of the route, those that were given."""
    project: Project | None
    newest: str
    """The highest API version of the server."""

    def text(self, name: str, default: str = "") -> str:
        """A query parameter; names in any case, as the service takes them."""
        for key, values in self.seen.query.items():
            if key.lower() == name.lower():
                return values[0]
        return default

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def number(self, name: str, default: int, *, most: int | None = None) -> int:
        raw = self.text(name)
        try:
            value = int(raw) if raw else default
        except ValueError:
            raise bad_request(f"The value '{raw}' is not valid for {name}.") from None
        if value < 0 or (most is not None and value > most):
            raise bad_request(f"VS402426: The value {value} of {name} is not between 1 and {most}.")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas between."""
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def date(self, name: str) -> datetime | None:
        raw = self.text(name)
        if not raw:
            return None
        try:
            found = datetime.fromisoformat(raw)
        except ValueError:
            raise bad_request(f"The value '{raw}' is not valid for {name}.") from None
        if found.tzinfo is None:
            raise bad_request(f"The value '{raw}' of {name} has no zone.")
        return found

    def body(self) -> dict[str, Any]:
        """The JSON object that was sent."""
        try:
            found = json.loads(self.seen.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise bad_request("TF400898: A value is required for the body of the request.")
        return found

    def item_id(self, name: str = "id") -> int:
        raw = self.args[name]
        if not raw.isdecimal():
            raise bad_request(f"The value '{raw}' is not a valid work item id.")
        return int(raw)


def check_version(seen: Seen, *, preview: bool, newest: str) -> None:
    """Refuses a version that is missing where it is needed, too new, or lacks `-preview`."""
    version = seen.first("api-version")
    for part in seen.headers.get("Accept", "").split(";"):
        name, _, value = part.strip().partition("=")
        version = version or (value if name.lower() == "api-version" else "")
    if not version:
        if seen.method == "GET" and not preview:
            return
        text = f'No api-version was supplied for the "{seen.method}" request. The version must be supplied.'
        raise Refusal(400, "VssVersionNotSpecifiedException", text)
    number = version.partition("-")[0]
    try:
        too_new = float(number) > float(newest)
    except ValueError:
        raise Refusal(
            400, "InvalidApiVersionStringException", f"The api-version '{version}' is not valid."
        ) from None
    if too_new:
        text = f"The requested REST API version of {version} is out of range. The latest is {newest}."
        raise Refusal(400, "VssVersionOutOfRangeException", text)
    if preview and "-preview" not in version:
        text = (
            f'The requested version "{version}" of the resource is under preview. '
            "The -preview flag must be supplied in the api-version for such requests."
        )
        raise Refusal(400, "VssInvalidPreviewVersionException", text)


def collection(values: list[Any], headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(json={"count": len(values), "value": values}, headers=headers or {})
