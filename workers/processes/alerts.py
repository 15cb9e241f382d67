"""Alerts: what raises one, whom it is told to, and the look now and then that raises, fires and clears them."""

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
from workers.admin import status
from workers.admin.judgement import LEAST_DISK_BYTES
from workers.control import maintenance
from workers.processes.metrics import value_at
from workers.queue import broker
from workers.runtime import Runtime
from workers.settings import Settings
from workers.settings.monitoring import LEVELS, AlertChannel

logger = logging.getLogger(__name__)

_Values = Iterable[tuple[str, float | None]]
"""What it is about, and a value to hold against the threshold; None: nothing is known."""


class Rule(NamedTuple):
    """What raises an alert, out of the document of `larder status --json` and what a `Watcher` adds to it."""

    says: str
    """With `subject`, `value`, and `s` for the plural; the command that helps comes last."""
    measure: Callable[[Json], _Values] = lambda _found: ()


def _of(*path: str) -> Callable[[Json], _Values]:
    return lambda found: [("", value_at(found, *path))]


def _sources(value: Callable[[Json], float | None]) -> Callable[[Json], _Values]:
    return lambda found: [
        (f"{s['tenant']}/{s['name']}", value(s)) for s in found["sources"] if not s["removed"]
    ]


def _failures(found: Json) -> _Values:
    yield "documents", found["backlog"]["dead_in_a_row"]
    yield from _sources(lambda s: s["failures"])(found)


RULES: Mapping[str, Rule] = {
    "indexing_failure": Rule("{value:.0f} failures of {subject} one after another: larder status", _failures),
    "store_unreachable": Rule("the database could not be reached {value:.0f} times: larder doctor"),
    "broker_unreachable": Rule(
        "the broker could not be reached {value:.0f} times: larder doctor", _of("broker_missed")
    ),
    "broker_memory": Rule("the broker uses {value:.0%} of its memory: larder doctor", _of("broker_memory")),
    "disk_full": Rule(
        "there is hardly room where the data lie: larder doctor",
        lambda found: [("", found["disk_free"] < LEAST_DISK_BYTES)],
    ),
    "oldest_due": Rule(
        "work has been due for {value:.0f} s: larder doctor", _of("backlog", "oldest_due_seconds")
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
        lambda found: found["silent_workers"].items(),
    ),
    "silent_queue": Rule(
        "queue {subject} did nothing for {value:.0f} s: larder status",
        lambda found: [(q, min(age, found["reached_seconds"])) for q, age in found["canaries"].items()],
    ),
    "unserved_queue": Rule(
        "no worker has served {subject} for {value:.0f} s: larder status",
        lambda found: [
            (q, seconds and min(seconds, found["reached_seconds"]))
            for q, seconds in found["unserved"].items()
        ],
    ),
    "backlog_growing": Rule("the backlog has grown for {value:.0f} s: larder status", _of("growing_seconds")),
    "enrichment_waiting": Rule(
        "Step 4 waits for {value:.0f} s: larder status", _of("enrichment", "oldest_seconds")
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
        lambda found: [(str(tenant), 1) for tenant in found["broken_chains"]],
    ),
}
"""Name -> rule; thresholds and severities are the configuration's. slow_query is raised by whoever searches."""


# Where they go ----------------------------------------------------------------------------------------


class Untaken(OSError):
    """A channel did not take an alert; says why without its address, which may hold a key."""


def _console(_channel: AlertChannel, _settings: Settings, told: Json) -> None:
    fires = told["state"] == "firing"
    level = logging.getLevelName(told["severity"].upper()) if fires else logging.INFO
    extra = {key: told[key] for key in ("alert", "subject", "severity", "state", "since")}
    logger.log(level, told["message"] if fires else f"over: {told['message']}", extra=extra)


def _file(channel: AlertChannel, settings: Settings, told: Json) -> None:
    path = settings.resolve(channel.path or Path())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(told) + "\n")


def _webhook(channel: AlertChannel, _settings: Settings, told: Json) -> None:
    import httpx2  # by who has such a channel alone

    from pipeline.embedding.http_client import refuse_metadata_service

    headers = {"Authorization": f"Bearer {secret_value(channel.token)}"} if channel.token else {}
    try:
        body = {**told, "text": f"{told['state']}: {told['message']}"}
        with httpx2.Client(event_hooks={"request": [refuse_metadata_service]}, timeout=SECONDS) as client:
            client.post(channel.url or "", json=body, headers=headers).raise_for_status()
    except httpx2.HTTPStatusError as error:
        raise Untaken(f"status {error.response.status_code}") from None
    except (httpx2.HTTPError, LarderError) as error:
        raise Untaken(type(error).__name__) from None


def _mail(channel: AlertChannel, _settings: Settings, told: Json) -> None:
    mail = EmailMessage()
    mail["Date"], mail["Message-ID"] = localtime(), make_msgid(domain="larder")
    mail["From"], mail["To"] = channel.sender, ", ".join(channel.recipients)
    # On one line: names of projects, of which a source may have its own, hold what somebody sent.
    heading = f"[larder] {told['severity']} {told['state']}: {told['alert']} {told['subject']}"
    mail["Subject"] = " ".join(heading.split())
    mail.set_content("\n".join(f"{key}: {value}" for key, value in told.items()))
    opened = smtplib.SMTP_SSL if channel.tls and channel.port == smtplib.SMTP_SSL_PORT else smtplib.SMTP
    with opened(channel.host or "", channel.port, timeout=SECONDS) as server:
        if channel.tls and opened is smtplib.SMTP:
            server.starttls(context=ssl.create_default_context())
        if channel.username:
            server.login(channel.username, secret_value(channel.password))
        server.send_message(mail)


SECONDS = 10.0
"""In which a channel must take an alert."""
CHANNELS: Mapping[str, Callable[[AlertChannel, Settings, Json], None]] = {
    "console": _console,
    "file": _file,
    "webhook": _webhook,
    "mail": _mail,
}
"""Type -> what tells it; an OSError means that it is told again."""
MOST_UNTOLD = 1000
TELLING_SECONDS = 120.0
"""Who has not told an alert in this time has ended: then another one does, be it for the second time."""


def address_of(channel: AlertChannel) -> str:
    """Tells a channel from others, also after a change of the configuration; names no address, which may hold a key."""
    where = channel.model_dump_json(include={"type", "min_severity", "path", "url", "host", "recipients"})
    return hashlib.sha256(where.encode()).hexdigest()[:16]


# The look ---------------------------------------------------------------------------------------------

VERIFY_SECONDS = 3600.0
SIGN_SECONDS = 20.0
"""In which a worker that lives gives a sign, also after an absence of the database."""
RETRY_SECONDS = 2.0
AWAY_KEY = "larder:alert:store_unreachable"
"""Where it stands in the broker that this alert is out: its own state cannot lie in the database."""


class Watcher:
    """Looks at everything and tells what is wrong once, and once that it is over; several may look at one database."""

    def __init__(
        self,
        parts: Runtime,
        patient: Runtime,
        *,
        retry: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parts` soon gives up a silent database, `patient` may read long; neither is used by anybody else."""
        self._parts = parts
        self._patient = patient
        self._retry = retry
        self._clock = clock
        told = parts.rag.monitoring
        self._channels = {address_of(channel): channel for channel in told.alerts.channels}
        self._conditions = told.alerts.in_force
        self._calm = 2 * told.health_check.interval
        self._untold: deque[tuple[str, Json]] = deque(maxlen=MOST_UNTOLD)
        """For which channel, and what, as long as the database cannot keep it."""
        self._pending: deque[tuple[float, int]] = deque()
        self._broker_missed = 0
        self._reached_at: float | None = float("-inf")
        """Since when the database has answered; signs of life go there, and nobody could give one before."""
        self._silent_at: dict[str, float] = {}
        """Worker -> when it was first seen to be silent, and others not."""
        self._verified_at = float("-inf")
        self._broken: list[UUID] = []
        self._own: Json | None = None
        """The alert that the database is away, while the broker is away, too."""

    def look(self) -> None:
        """Raise what is wrong, tell what is new and what is over.

        Raises:
            StoreError: the database went away while it was told; what is left is told at another look.
        """
        limit = self._conditions.get("store_unreachable")
        for left in reversed(range(int(limit.threshold) if limit else 1)):
            try:
                self._settle()
            except StoreError:
                self._reached_at = None
                self._silent_at.clear()
                if left:
                    time.sleep(self._retry)
            else:
                self._tell_kept()
                return
        self._untold.extend(self._addressed(self._store(away=True)))
        untold = [one for one in self._untold if not self._tell(*one)]
        self._untold = deque(untold, maxlen=MOST_UNTOLD)

    def _settle(self) -> None:
        """Raise, fire and clear; what is to be told is kept with it, so that no end of a process takes it away."""
        found = self._found()
        with self._parts.database.control() as connection:
            for name, rule in RULES.items():
                condition = self._conditions.get(name)
                for subject, value in rule.measure(found) if condition else ():
                    if condition and value is not None and value >= condition.threshold:
                        said = rule.says.format(subject=subject, value=value, s="" if value == 1 else "s")
                        how = {"severity": condition.severity, "message": said}
                        upkeep.raise_alert(connection, name, subject, **how)
            fired, cleared = upkeep.fire_alerts(connection, calm=self._calm)
            news = [alert_record("firing", **one) for one in fired]
            news += [alert_record("cleared", **one) for one in cleared]
            upkeep.keep_alert_messages(connection, self._addressed(news), most=MOST_UNTOLD)
        self._untold.extend(self._addressed(self._store(away=False)))
        if self._untold:
            with self._parts.database.control() as connection:
                upkeep.keep_alert_messages(connection, self._untold, most=MOST_UNTOLD)
        self._untold.clear()

    def _found(self) -> Json:
        """The status, and what only one who looks again and again can know."""
        found = status.status(self._parts)
        self._reached_at = self._clock() if self._reached_at is None else self._reached_at
        silent = self._silent(found["workers"])
        self._broker_missed = 0 if found["broker"] == "ok" else self._broker_missed + 1
        if self._clock() - self._verified_at > VERIFY_SECONDS:
            self._verified_at = self._clock()
            self._broken = [t for t in maintenance.tenants(self._patient) if self._is_broken(t)]
        growing = self._growing(found["backlog"]["pending"])
        return found | {
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
        """For how long more has waited than before: in the second half of that time always more than in the first."""
        condition = self._conditions.get("backlog_growing")
        if condition is None:
            return 0.0
        now, seen = self._clock(), self._pending
        seen.append((now, pending))
        while len(seen) > 1 and seen[1][0] <= now - condition.threshold:
            seen.popleft()
        middle = now - condition.threshold / 2
        first = [n for at, n in seen if at <= middle]
        second = [n for at, n in seen if at > middle]
        whole = seen[0][0] <= now - condition.threshold
        return now - seen[0][0] if whole and first and min(second) > max(first) else 0.0

    def _store(self, *, away: bool) -> list[Json]:
        """What is to be told of the database, which cannot keep it: the broker does, for all who look."""
        condition, url = self._conditions.get("store_unreachable"), self._parts.addresses.valkey
        if condition is None or (away and self._own):
            return []
        if away:
            message = RULES["store_unreachable"].says.format(value=condition.threshold)
            one = {"name": condition.name, "subject": "", "severity": condition.severity, "message": message}
            found = one | {"since": datetime.now(UTC).isoformat()}
            is_first = broker.set_if_absent(url, AWAY_KEY, json.dumps(found))
            self._own = found if is_first is None else None  # the broker is away, too
            return [] if is_first is False else [alert_record("firing", **found)]
        kept = broker.get_and_delete(url, AWAY_KEY)
        over, self._own = json.loads(kept) if kept else self._own, None
        return [alert_record("cleared", **over)] if over else []

    def _addressed(self, news: Iterable[Json]) -> list[tuple[str, Json]]:
        """Each of these for each channel that it is severe enough for."""
        return [
            (address, one)
            for one in news
            for address, channel in self._channels.items()
            if LEVELS.index(one["severity"]) >= LEVELS.index(channel.min_severity)
        ]

    def _tell_kept(self) -> None:
        """Tell what the database keeps; a channel that does not take one is asked again at the next look."""
        away: list[str] = []
        while True:
            with self._parts.database.control() as connection:
                kept = upkeep.lease_alert_message(connection, besides=away, lease=TELLING_SECONDS)
            if kept is None:
                return
            number, address, one = kept
            told = self._tell(address, one)
            if not told:
                away.append(address)
            with self._parts.database.control() as connection:
                upkeep.settle_alert_message(connection, number, told=told)

    def _tell(self, address: str, one: Json) -> bool:
        """True if the channel took it, or is not configured any more."""
        channel = self._channels.get(address)
        if channel is None:
            return True
        try:
            CHANNELS[channel.type](channel, self._parts.settings, one)
        except OSError as error:
            why = error if isinstance(error, Untaken) else type(error).__name__
            logger.warning("%s takes no alert (%s); it is tried again", channel.type, why)
            return False
        return True


def alert_record(state: str, *, name: str, **found: str) -> Json:
    """An alert as channels tell it: firing, or cleared."""
    return {"at": datetime.now(UTC).isoformat(), "state": state, "alert": name, **found}
