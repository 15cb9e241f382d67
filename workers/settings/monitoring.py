"""What Larder tells about itself: metrics, logs, health and alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from connectors.sections import (
    ConfigSection,
    Expected,
    Flag,
    Folder,
    Mismatch,
    Number,
    OneOf,
    Secret,
    Size,
    Text,
    Whole,
    refuse,
)

LEVELS = ("debug", "info", "warning", "error", "critical")

Level = Annotated[str, OneOf(LEVELS)]
Severity = Literal["info", "warning", "error", "critical"]
Endpoint = Annotated[Text, Field(pattern="^/"), Expected("a path that begins with /")]


class MetricsSettings(ConfigSection):
    """Figures for Prometheus, at `/metrics` of the API."""

    enabled: Flag = True
    """Offer metrics."""
    token: Secret | None = Field(default=None, examples=["${LARDER_METRICS_TOKEN}"])
    """What Prometheus must send as its bearer token, or as the password of any user. Empty: nothing."""
    port: Whole = Field(default=0, ge=0, le=65_535)
    """Port at which each worker offers what it counts, where no API shares its machine. 0: none."""
    host: Text = "127.0.0.1"
    """Address that this port listens on."""
    export_path: Folder | None = Field(default=None, examples=["./metrics"])
    """Folder where worker-control writes them as `larder.prom`, too. Empty: none."""
    export_interval: Number = Field(default=60, ge=1)
    """Seconds between two writes."""


class LoggingSettings(ConfigSection):
    """Log lines, on standard error: for people on a terminal, else as JSON."""

    level: Level = Field(
        default="info", description="Least important lines to show: " + ", ".join(LEVELS) + "."
    )
    path: Folder | None = Field(default=None, examples=["./logs/larder.log"])
    """File to log to as well, as JSON, by all processes. Empty: none."""
    max_files: Whole = Field(default=10, ge=1, le=1000)
    """Files kept when the log is rotated."""
    max_size: Size = Field(default="10m", validate_default=True)
    """Size at which the log is rotated."""


class HealthCheckSettings(ConfigSection):
    """The health page of the API."""

    enabled: Flag = True
    """Offer the health page."""
    endpoint: Endpoint = "/health/rag"
    """Its path."""
    interval: Number = Field(default=30, gt=0)
    """Seconds between two checks."""


class AlertChannel(ConfigSection):
    """Where alerts go."""

    type: Literal["console", "file"]
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

    name: Literal["slow_query", "indexing_failure", "store_unreachable"]
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
