"""Metrics, logs, health, alerts and traces."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
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
    Texts,
    WebUrl,
    Whole,
    refuse,
)

LEVELS = ("debug", "info", "warning", "error", "critical")

Level = Annotated[str, OneOf(LEVELS)]
Severity = Literal["info", "warning", "error", "critical"]
CollectorUrl = Annotated[
    WebUrl,
    Field(pattern=r"^[^?#]*$"),  # errors repeat it, and what follows a question mark is often a key
    Expected(
        "an address such as https://collector.example.com/v1/traces, with a key in `token` if it wants one"
    ),
]
Endpoint = Annotated[Text, Field(pattern="^/"), Expected("a path that begins with /")]


class MetricsSettings(ConfigSection):
    """Figures for Prometheus, at `/metrics` of the API."""

    enabled: Flag = True
    """Offer metrics."""
    token: Secret | None = Field(default=None, examples=["${LARDER_METRICS_TOKEN}"])
    """Bearer token that Prometheus must send, or password of any user. Empty: none is needed, and then
    the API shows no figures of single sources, whose names tell something."""
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
    """The health page of the API, and how often the health of all is looked at."""

    enabled: Flag = True
    """Offer the health page."""
    endpoint: Endpoint = "/health/rag"
    """Path of the health page."""
    interval: Number = Field(default=30, gt=0)
    """Seconds between two looks of worker-control at the conditions of alerts."""


class TracingSettings(ConfigSection):
    """Traces for an OpenTelemetry collector, by OTLP over HTTP; needs the extra `larder[tracing]`."""

    endpoint: CollectorUrl | None = Field(default=None, examples=["http://localhost:4318/v1/traces"])
    """Address that spans are posted to. Empty: nothing is traced."""
    token: Secret | None = Field(default=None, examples=["${LARDER_TRACING_TOKEN}"])
    """Sent to it as a bearer token."""
    sample_ratio: Number = Field(default=1, ge=0, le=1)
    """Share of runs and requests that are traced. Of a request that comes with a `traceparent` its sender decides."""

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        if self.endpoint and not _has_exporter():
            missing = "nothing, since OpenTelemetry is not installed"
            refuse(self, [Mismatch(key="endpoint", expected=missing, fix="install larder[tracing]")])
        return self


def _has_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


_NEEDS = {
    "console": (),
    "file": (("path", "the file to write alerts to"),),
    "webhook": (("url", "the address to send alerts to"),),
    "mail": (("host", "the mail server"), ("sender", "an address"), ("recipients", "a list of addresses")),
}
"""Type of a channel -> what it cannot do without."""


class AlertChannel(ConfigSection):
    """A channel that alerts are sent to."""

    type: Literal["console", "file", "webhook", "mail"]
    """console: the log; file: lines of JSON; webhook: JSON by POST, with a `text` as chats read it; mail: by SMTP."""
    min_severity: Severity = "warning"
    """Least severe alerts this channel gets."""
    path: Folder | None = None
    """The file, for the type file."""
    url: WebUrl | None = Field(default=None, examples=["https://chat.example.com/hooks/larder"])
    """The address, for the type webhook."""
    token: Secret | None = Field(default=None, examples=["${LARDER_ALERT_TOKEN}"])
    """Sent to it as a bearer token."""
    host: Text | None = Field(default=None, examples=["mail.example.com"])
    """The mail server, for the type mail."""
    port: Whole = Field(default=587, ge=1, le=65_535)
    """Port of the mail server."""
    tls: Flag = True
    """Speak TLS with it, from the start at port 465, else by STARTTLS."""
    username: Text | None = Field(default=None, examples=["larder"])
    """User that logs in there. Empty: no login."""
    password: Secret | None = Field(default=None, examples=["${LARDER_ALERT_PASSWORD}"])
    """The password."""
    sender: Text | None = Field(default=None, examples=["larder@example.com"])
    """Address that mails come from."""
    recipients: Texts = Field(default=(), examples=[["oncall@example.com"]])
    """Addresses that mails go to."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        missing = [
            (key, expected) for key, expected in _NEEDS[self.type] if getattr(self, key) in (None, (), Path())
        ]
        refuse(self, [Mismatch(key=key, expected=expected) for key, expected in missing])
        return self


ALERTS: Mapping[str, tuple[float, Severity]] = {
    "slow_query": (1000, "warning"),
    "indexing_failure": (5, "error"),
    "store_unreachable": (3, "critical"),
    "broker_unreachable": (3, "critical"),
    "broker_memory": (0.7, "warning"),
    "disk_full": (1, "critical"),
    "oldest_due": (600, "warning"),
    "freshness_broken": (3600, "warning"),
    "dead_letters": (1, "warning"),
    "held_deletions": (1, "warning"),
    "left_out": (1, "warning"),
    "deaf_worker": (30, "error"),
    "silent_queue": (600, "error"),
    "unserved_queue": (60, "error"),
    "backlog_growing": (600, "warning"),
    "store_behind": (300, "warning"),
    "enrichment_waiting": (10, "error"),
    "embedding_held": (1, "error"),
    "budget_low": (0.9, "warning"),
    "audit_broken": (1, "critical"),
}
"""Every condition with the value from which on it raises an alert, and how severe that is."""


class AlertCondition(ConfigSection):
    """A condition that raises an alert."""

    name: Annotated[str, OneOf(ALERTS)] = Field(description=", ".join(ALERTS) + ".")
    threshold: Number = Field(gt=0)
    """Alert from this on."""
    severity: Severity = "warning"
    """Severity of the alert."""
    enabled: Flag = True
    """false: never raise it."""


class AlertSettings(ConfigSection):
    """Alerts; see [operations](operations.md#alerts)."""

    enabled: Flag = True
    """Raise alerts."""
    channels: Annotated[tuple[AlertChannel, ...], Expected("a list of channels")] = (
        AlertChannel(type="console"),
    )
    """Channels that alerts are sent to: type, minSeverity, and what the type needs."""
    conditions: Annotated[tuple[AlertCondition, ...], Expected("a list of conditions")] = (
        AlertCondition(name="slow_query", threshold=1000, severity="warning"),
        AlertCondition(name="indexing_failure", threshold=5, severity="error"),
        AlertCondition(name="store_unreachable", threshold=3, severity="critical"),
    )
    """Conditions that raise alerts: name, threshold, severity. slow_query counts milliseconds, indexing_failure
    failures one after another, store_unreachable attempts. Those that are not named keep their own values."""

    @cached_property
    def in_force(self) -> Mapping[str, AlertCondition]:
        """Every condition that may raise an alert, by name."""
        defaults = {
            name: AlertCondition(name=name, threshold=t, severity=s) for name, (t, s) in ALERTS.items()
        }
        every = defaults | {condition.name: condition for condition in self.conditions}
        return {name: condition for name, condition in every.items() if condition.enabled and self.enabled}


class MonitoringSettings(ConfigSection):
    """Metrics, logs, health, alerts and traces."""

    metrics: MetricsSettings = MetricsSettings()
    """Figures for Prometheus."""
    logging: LoggingSettings = LoggingSettings()
    """Log lines."""
    health_check: HealthCheckSettings = HealthCheckSettings()
    """The health page."""
    alerts: AlertSettings = AlertSettings()
    """Alerts."""
    tracing: TracingSettings = TracingSettings()
    """Traces."""
