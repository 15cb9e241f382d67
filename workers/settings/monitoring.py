"""What Larder tells about itself: metrics, logs, health and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from connectors.sections import (
    ConfigSection,
    Expected,
    Flag,
    Folder,
    Mismatch,
    Number,
    OneOf,
    Size,
    Text,
    Whole,
    refusal,
    refuse,
)

LEVELS = ("debug", "info", "warning", "error", "critical")
SEVERITIES = ("info", "warning", "error", "critical")
CHANNELS = ("console", "file")
CONDITIONS: Mapping[str, str] = {
    "slow_query": "milliseconds a search takes",
    "indexing_failure": "failures one after another",
    "store_unreachable": "attempts to reach the database",
}
"""What may raise an alert, and what its threshold counts."""


def _endpoint(value: str) -> str:
    if not value.startswith("/"):
        raise refusal(_ENDPOINT)
    return value


_ENDPOINT = "a path that begins with /"

Level = Annotated[str, OneOf(LEVELS)]
Severity = Annotated[str, OneOf(SEVERITIES)]
Channel = Annotated[str, OneOf(CHANNELS)]
Condition = Annotated[str, OneOf(CONDITIONS)]
Endpoint = Annotated[Text, AfterValidator(_endpoint), Expected(_ENDPOINT)]


class MetricsSettings(ConfigSection):
    """Figures for Prometheus. These keys are checked and have no effect yet."""

    enabled: Flag = True
    """Offer metrics."""
    export_path: Folder | None = Field(default=None, examples=["./metrics"])
    """Folder to write them to as well. Empty: none."""
    export_interval: Number = Field(default=60, gt=0)
    """Seconds between two writes."""


class LoggingSettings(ConfigSection):
    """Log lines."""

    level: Level = Field(
        default="info", description="Least important lines to show: " + ", ".join(LEVELS) + "."
    )
    path: Folder | None = Field(default=None, examples=["./logs/larder.log"])
    """File to log to. Checked, no effect yet: lines go to standard error."""
    max_files: Whole = Field(default=10, ge=1, le=1000)
    """Files kept when the log is rotated."""
    max_size: Size = Field(default="10m", validate_default=True)
    """Size at which the log is rotated."""


class HealthCheckSettings(ConfigSection):
    """The health page. These keys are checked and have no effect yet."""

    enabled: Flag = True
    """Offer the health page."""
    endpoint: Endpoint = "/health/rag"
    """Its path."""
    interval: Number = Field(default=30, gt=0)
    """Seconds between two checks."""


class AlertChannel(ConfigSection):
    """Where alerts go."""

    type: Channel
    """console or file."""
    path: Folder | None = None
    """The file, for the type file."""
    min_severity: Severity = "warning"
    """Least severe alerts this channel gets."""

    @model_validator(mode="after")
    def _file_has_path(self) -> Self:
        if self.type == "file" and self.path in (None, Path()):
            refuse(self, [Mismatch(key="path", expected="the file to write alerts to")])
        return self


class AlertCondition(ConfigSection):
    """What raises an alert."""

    name: Condition
    """slow_query, indexing_failure or store_unreachable."""
    threshold: Number = Field(gt=0)
    """Alert above this."""
    severity: Severity = "warning"
    """How severe the alert is."""


class AlertSettings(ConfigSection):
    """Alerts. These keys are checked and have no effect yet."""

    enabled: Flag = True
    """Raise alerts."""
    channels: Annotated[tuple[AlertChannel, ...], Expected("a list of channels")] = (
        AlertChannel(type="console"),
    )
    """Where alerts go: type, path, minSeverity."""
    conditions: Annotated[tuple[AlertCondition, ...], Expected("a list of conditions")] = (
        AlertCondition(name="slow_query", threshold=1000, severity="warning"),
        AlertCondition(name="indexing_failure", threshold=5, severity="error"),
        AlertCondition(name="store_unreachable", threshold=3, severity="critical"),
    )
    """What raises alerts: name, threshold, severity. slow_query counts milliseconds, indexing_failure
    failures one after another, store_unreachable attempts."""


class MonitoringSettings(ConfigSection):
    """What Larder tells about itself."""

    metrics: MetricsSettings = MetricsSettings()
    """Figures for Prometheus."""
    logging: LoggingSettings = LoggingSettings()
    """Log lines."""
    health_check: HealthCheckSettings = HealthCheckSettings()
    """The health page."""
    alerts: AlertSettings = AlertSettings()
    """Alerts."""
