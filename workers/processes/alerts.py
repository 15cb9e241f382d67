"""Alerts: their rules, their channels, and the look now and then that raises, fires and clears them."""

from __future__ import annotations

import hashlib
import json
import logging
import smtplib
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import localtime, make_msgid
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from connectors.sections import secret_value
from pipeline.documents import Json
from pipeline.errors import LarderError, StoreError
from pipeline.ledger import audit, upkeep
from workers.app import status
from workers.app.health.judgement import LEAST_DISK_BYTES
from workers.app.ingestion import maintenance
from workers.monitoring.metrics import value_at
from workers.queue import broker
from workers.runtime import Runtime
from workers.settings import Settings
from workers.settings.monitoring import LEVELS, AlertChannel

logger = logging.getLogger(__name__)

_Values = Iterable[tuple[str, float | None]]
"""Subject and value to compare with the threshold; None: nothing is known."""


class Rule(NamedTuple):
    """Condition of an alert, over the document of `larder status --json` and what a `Watcher` adds to it."""

    says: str
    """Text with `subject`, `value`, and `s` for the plural; the command that helps comes last."""
    measure: Callable[[Json], _Values] = lambda _document: ()


def _value_at(*path: str) -> Callable[[Json], _Values]:
    return lambda document: [("", value_at(document, *path))]


def _sources(value: Callable[[Json], float | None]) -> Callable[[Json], _Values]:
    return lambda document: [
        (f"{s['tenant']}/{s['name']}", value(s)) for s in document["sources"] if not s["removed"]
    ]


def _failures(document: Json) -> _Values:
    yield "documents", document["backlog"]["dead_in_a_row"]
    yield from _sources(lambda s: s["failures"])(document)


RULES: Mapping[str, Rule] = {
    "indexing_failure": Rule("{value:.0f} failures of {subject} one after another: larder status", _failures),
    "store_unreachable": Rule("the database could not be reached {value:.0f} times: larder doctor"),
    "broker_unreachable": Rule(
        "the broker could not be reached {value:.0f} times: larder doctor", _value_at("broker_missed")
    ),
    "broker_memory": Rule(
        "the broker uses {value:.0%} of its memory: larder doctor", _value_at("broker_memory")
    ),
    "disk_full": Rule(
        "the disk of the data is almost full: larder doctor",
        lambda document: [("", document["disk_free"] < LEAST_DISK_BYTES)],
    ),
    "oldest_due": Rule(
        "work has been due for {value:.0f} s: larder doctor", _value_at("backlog", "oldest_due_seconds")
    ),
    "freshness_broken": Rule(
        "{subject} should have been synced {value:.0f} s ago: larder sources list",
        _sources(lambda s: s["late_seconds"]),
    ),
    "dead_letters": Rule(
        "{value:.0f} dead letter{s} of {subject}: larder dead list", _sources(lambda s: s["dead"])
    ),
    "held_deletions": Rule(
        "{value:.0f} deletion{s} of {subject} wait for approval: larder sources list",
        _sources(lambda s: s["held"]),
    ),
    "left_out": Rule(
        "{value:.0f} item{s} of {subject} excluded: larder status --json",
        _sources(lambda s: sum(s["left_out"].values())),
    ),
    "deaf_worker": Rule(
        "{subject} gave no sign of life for {value:.0f} s: larder health",
        lambda document: document["silent_workers"].items(),
    ),
    "silent_queue": Rule(
        "queue {subject} did nothing for {value:.0f} s: larder status",
        lambda document: [
            (q, min(age, document["reached_seconds"])) for q, age in document["canaries"].items()
        ],
    ),
    "unserved_queue": Rule(
        "no worker has served {subject} for {value:.0f} s: larder status",
        lambda document: [
            (q, seconds and min(seconds, document["reached_seconds"]))
            for q, seconds in document["unserved"].items()
        ],
    ),
    "backlog_growing": Rule(
        "the backlog has grown for {value:.0f} s: larder status", _value_at("growing_seconds")
    ),
    "store_behind": Rule(
        "the vector store {subject} lacks changes for {value:.0f} s: larder stores list",
        lambda document: [
            (one["name"], one["oldest_unsent_seconds"]) for one in document["vector_stores"]["stores"]
        ],
    ),
    "enrichment_waiting": Rule(
        "Step 4 waits for {value:.0f} s: larder status", _value_at("enrichment", "oldest_seconds")
    ),
    "embedding_held": Rule(
        "the embedding provider refuses us: larder status",
        lambda f: [("", f["embedding"]["state"] == "held")],
    ),
    "budget_low": Rule(
        "{value:.0%} of the day's embedding budget is used: larder status",
        lambda f: [
            ("", None if f["embedding"]["budget_left"] is None else 1 - f["embedding"]["budget_left"])
        ],
    ),
    "audit_broken": Rule(
        "the audit chain of tenant {subject} is broken: larder audit verify",
        lambda document: [(str(tenant), 1) for tenant in document["broken_chains"]],
    ),
}
"""Name -> rule; thresholds and severities are the configuration's. slow_query is raised by whoever searches."""


# Channels ---------------------------------------------------------------------------------------------


class Untaken(OSError):
    """A channel did not take an alert; says why without its address, which may hold a key."""


def _console(_channel: AlertChannel, _settings: Settings, alert: Json) -> None:
    fires = alert["state"] == "firing"
    level = logging.getLevelName(alert["severity"].upper()) if fires else logging.INFO
    extra = {key: alert[key] for key in ("alert", "subject", "severity", "state", "since")}
    logger.log(level, alert["message"] if fires else f"over: {alert['message']}", extra=extra)


def _file(channel: AlertChannel, settings: Settings, alert: Json) -> None:
    path = settings.resolve(channel.path or Path())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(alert) + "\n")


def _webhook(channel: AlertChannel, _settings: Settings, alert: Json) -> None:
    import httpx2  # by who has such a channel alone

    from pipeline.embedding.http_client import refuse_metadata_service

    headers = {"Authorization": f"Bearer {secret_value(channel.token)}"} if channel.token else {}
    try:
        body = {**alert, "text": f"{alert['state']}: {alert['message']}"}
        with httpx2.Client(event_hooks={"request": [refuse_metadata_service]}, timeout=SECONDS) as client:
            client.post(channel.url or "", json=body, headers=headers).raise_for_status()
    except httpx2.HTTPStatusError as error:
        raise Untaken(f"status {error.response.status_code}") from None
    except (httpx2.HTTPError, LarderError) as error:
        raise Untaken(type(error).__name__) from None


def _mail(channel: AlertChannel, _settings: Settings, alert: Json) -> None:
    mail = EmailMessage()
    mail["Date"], mail["Message-ID"] = localtime(), make_msgid(domain="larder")
    mail["From"], mail["To"] = channel.sender, ", ".join(channel.recipients)
    # On one line: names of projects, of which a source may have its own, hold what somebody sent.
    heading = f"[larder] {alert['severity']} {alert['state']}: {alert['alert']} {alert['subject']}"
    mail["Subject"] = " ".join(heading.split())
    mail.set_content("\n".join(f"{key}: {value}" for key, value in alert.items()))
    opened = smtplib.SMTP_SSL if channel.tls and channel.port == smtplib.SMTP_SSL_PORT else smtplib.SMTP
    with opened(channel.host or "", channel.port, timeout=SECONDS) as server:
        if channel.tls and opened is smtplib.SMTP:
            server.starttls(context=ssl.create_default_context())
        if channel.username:
            server.login(channel.username, secret_value(channel.password))
        server.send_message(mail)


SECONDS = 10.0
"""Seconds in which a channel must take an alert."""
CHANNELS: Mapping[str, Callable[[AlertChannel, Settings, Json], None]] = {
    "console": _console,
    "file": _file,
    "webhook": _webhook,
    "mail": _mail,
}
"""Type -> function that sends an alert; after an OSError it is sent again."""
MOST_UNTOLD = 1000
TELLING_SECONDS = 120.0
"""Seconds after which a process that has not sent an alert counts as ended: another sends it, perhaps again."""


def address_of(channel: AlertChannel) -> str:
    """Digest that identifies a channel, also after a change of the file; has no address, which may hold a key."""
    identity = channel.model_dump_json(include={"type", "min_severity", "path", "url", "host", "recipients"})
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


# The look ---------------------------------------------------------------------------------------------

VERIFY_SECONDS = 3600.0
SIGN_SECONDS = 20.0
"""Seconds in which a living worker gives a sign, also after an absence of the database."""
RETRY_SECONDS = 2.0
AWAY_KEY = "larder:alert:store_unreachable"
"""Key in the broker that says that this alert is out: its own state cannot lie in the database."""


class Watcher:
    """Raises alerts by the status, and sends each when it fires and when it clears; several may watch one database."""

    def __init__(
        self,
        runtime: Runtime,
        patient: Runtime,
        *,
        retry: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`runtime` soon gives up a silent database, `patient` may read long; neither is used by anybody else."""
        self._runtime = runtime
        self._patient = patient
        self._retry = retry
        self._clock = clock
        monitoring = runtime.rag.monitoring
        self._channels = {address_of(channel): channel for channel in monitoring.alerts.channels}
        self._conditions = monitoring.alerts.in_force
        self._calm = 2 * monitoring.health_check.interval
        self._untold: deque[tuple[str, Json]] = deque(maxlen=MOST_UNTOLD)
        """Channels and alerts, as long as the database cannot keep them."""
        self._pending: deque[tuple[float, int]] = deque()
        self._broker_missed = 0
        self._reached_at: float | None = float("-inf")
        """Time since which the database has answered; signs of life go there, and nobody could give one before."""
        self._silent_at: dict[str, float] = {}
        """Worker -> when it was first seen to be silent, and others not."""
        self._verified_at = float("-inf")
        self._broken: list[UUID] = []
        self._outage_alert: Json | None = None
        """The alert that the database is away, while the broker is away, too."""

    def look(self) -> None:
        """Check once: raise what is wrong, send what is new and what is over.

        Raises:
            StoreError: the database went away while it was told; what is left is told at another look.
        """
        limit = self._conditions.get("store_unreachable")
        for tries_left in reversed(range(int(limit.threshold) if limit else 1)):
            try:
                self._settle()
            except StoreError:
                self._reached_at = None
                self._silent_at.clear()
                if tries_left:
                    time.sleep(self._retry)
            else:
                self._tell_kept()
                return
        self._untold.extend(self._addressed(self._store(away=True)))
        untold = [one for one in self._untold if not self._tell(*one)]
        self._untold = deque(untold, maxlen=MOST_UNTOLD)

    def _settle(self) -> None:
        """Raise, fire and clear alerts; messages are kept with them, so that no end of a process loses them."""
        document = self._document()
        with self._runtime.database.control() as connection:
            for name, rule in RULES.items():
                condition = self._conditions.get(name)
                for subject, value in rule.measure(document) if condition else ():
                    if condition and value is not None and value >= condition.threshold:
                        message = rule.says.format(subject=subject, value=value, s="" if value == 1 else "s")
                        details = {"severity": condition.severity, "message": message}
                        upkeep.raise_alert(connection, name, subject, **details)
            fired, cleared = upkeep.fire_alerts(connection, calm=self._calm)
            news = [alert_record("firing", **one) for one in fired]
            news += [alert_record("cleared", **one) for one in cleared]
            upkeep.keep_alert_messages(connection, self._addressed(news), most=MOST_UNTOLD)
        self._untold.extend(self._addressed(self._store(away=False)))
        if self._untold:
            with self._runtime.database.control() as connection:
                upkeep.keep_alert_messages(connection, self._untold, most=MOST_UNTOLD)
        self._untold.clear()

    def _document(self) -> Json:
        """The status, with what only a repeated look can know."""
        document = status.status(self._runtime)
        self._reached_at = self._clock() if self._reached_at is None else self._reached_at
        silent = self._silent(document["workers"])
        self._broker_missed = 0 if document["broker"] == "ok" else self._broker_missed + 1
        if self._clock() - self._verified_at > VERIFY_SECONDS:
            self._verified_at = self._clock()
            self._broken = [t for t in maintenance.tenants(self._patient) if self._is_broken(t)]
        growing = self._growing(document["backlog"]["pending"])
        return document | {
            "broker_missed": self._broker_missed,
            "broken_chains": self._broken,
            "growing_seconds": growing,
            "silent_workers": silent,
            "reached_seconds": self._clock() - self._reached_at,
        }

    def _silent(self, workers: Sequence[Json]) -> dict[str, float]:
        """Age of the last sign of life of workers that have had the time for one, and gave none while others did.

        An absence of the database that lies between two looks is seen by its traces alone: it silenced all of them, and
        the first that are back are so for seconds before the others.
        """
        now = self._clock()
        ages = {w["name"]: w["age_seconds"] for w in workers if w["age_seconds"] > SIGN_SECONDS}
        if workers and len(ages) == len(workers):
            self._reached_at, ages = now, {}
        self._silent_at = {name: self._silent_at.get(name, now) for name in ages}
        return {name: age for name, age in ages.items() if now - self._silent_at[name] >= SIGN_SECONDS}

    def _is_broken(self, tenant: UUID) -> bool:
        with self._patient.database.tenant(tenant) as connection:
            return bool(audit.verify(connection).problems)

    def _growing(self, pending: int) -> float:
        """Seconds for which more has waited than before: in its second half always more than in the first."""
        condition = self._conditions.get("backlog_growing")
        if condition is None:
            return 0.0
        now, samples = self._clock(), self._pending
        samples.append((now, pending))
        while len(samples) > 1 and samples[1][0] <= now - condition.threshold:
            samples.popleft()
        middle = now - condition.threshold / 2
        first = [n for at, n in samples if at <= middle]
        second = [n for at, n in samples if at > middle]
        whole = samples[0][0] <= now - condition.threshold
        return now - samples[0][0] if whole and first and min(second) > max(first) else 0.0

    def _store(self, *, away: bool) -> list[Json]:
        """Alerts about the database, which cannot keep them: the broker does, for all who look."""
        condition, url = self._conditions.get("store_unreachable"), self._runtime.addresses.valkey
        if condition is None or (away and self._outage_alert):
            return []
        if away:
            message = RULES["store_unreachable"].says.format(value=condition.threshold)
            one = {"name": condition.name, "subject": "", "severity": condition.severity, "message": message}
            alert = one | {"since": datetime.now(UTC).isoformat()}
            is_first = broker.set_if_absent(url, AWAY_KEY, json.dumps(alert))
            self._outage_alert = alert if is_first is None else None  # the broker is away, too
            return [] if is_first is False else [alert_record("firing", **alert)]
        stored = broker.get_and_delete(url, AWAY_KEY)
        ended_alert, self._outage_alert = json.loads(stored) if stored else self._outage_alert, None
        return [alert_record("cleared", **ended_alert)] if ended_alert else []

    def _addressed(self, news: Iterable[Json]) -> list[tuple[str, Json]]:
        """Alerts with each channel that they are severe enough for."""
        return [
            (address, one)
            for one in news
            for address, channel in self._channels.items()
            if LEVELS.index(one["severity"]) >= LEVELS.index(channel.min_severity)
        ]

    def _tell_kept(self) -> None:
        """Send the alerts that the database keeps; a channel that does not take one is asked again at the next look."""
        away: list[str] = []
        while True:
            with self._runtime.database.control() as connection:
                message = upkeep.lease_alert_message(connection, besides=away, lease=TELLING_SECONDS)
            if message is None:
                return
            number, address, one = message
            delivered = self._tell(address, one)
            if not delivered:
                away.append(address)
            with self._runtime.database.control() as connection:
                upkeep.settle_alert_message(connection, number, delivered=delivered)

    def _tell(self, address: str, one: Json) -> bool:
        """True if the channel took it, or is not configured any more."""
        channel = self._channels.get(address)
        if channel is None:
            return True
        try:
            CHANNELS[channel.type](channel, self._runtime.settings, one)
        except OSError as error:
            why = error if isinstance(error, Untaken) else type(error).__name__
            logger.warning("%s did not take an alert (%s); it is sent again", channel.type, why)
            return False
        return True


def alert_record(state: str, *, name: str, **fields: str) -> Json:
    """An alert as channels send it: firing, or cleared."""
    return {"at": datetime.now(UTC).isoformat(), "state": state, "alert": name, **fields}
