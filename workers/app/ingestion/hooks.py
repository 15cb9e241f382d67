"""Webhooks: events of services, proved by the source's secret, become hints of what to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from connectors.documents.options import ServiceOptions
from connectors.sections import secret_value
from connectors.web.hooks import event_id, is_proved
from pipeline.documents import Finding, Json
from pipeline.errors import ConfigurationError, LarderError, RequestRejected
from pipeline.ingest import hints
from pipeline.ledger import sources
from workers.app.ingestion.sync import Configured, configured_sources, start_hinted
from workers.app.ingestion.sync_now import configured_sources_named
from workers.app.tokens import TokenUnproved
from workers.runtime import Runtime
from workers.settings import Settings

PATH = "/api/v1/hooks/"
MOST_BYTES = 1_000_000
"""Bytes of an event; one that names an item has a few thousand."""


def receive(runtime: Runtime, name: str, headers: Mapping[str, str], body: bytes) -> int:
    """Note the items that an event names; returns how many. `headers` have names in small letters.

    Whoever cannot prove the event costs no work of the database, and learns not which sources there are.

    Raises:
        TokenUnproved: it is not proved, or the source takes no events.
        RequestRejected: it is not a JSON object.
    """
    one = hooked_source(runtime.settings, name)
    hook = one.settings.hook if one and isinstance(one.settings, ServiceOptions) else None
    if one is None or hook is None or not is_proved(secret_value(hook.secret), headers, body):
        raise TokenUnproved(
            f"no event of a source {name!r} is proved by this request",
            fix="larder sources hooks NAME shows what its service has to send",
        )
    event = _event(body)
    ids = one.settings.hinted_ids(event) if isinstance(one.settings, ServiceOptions) else []
    with runtime.database.tenant(one.tenant_id) as connection:
        if sources.get(connection, one.id) is None:
            return 0  # its first sync reads everything
        noted_ids = hints.record(connection, one.tenant_id, one.id, ids, event_id=event_id(headers, event))
    if noted_ids:
        start_hinted(runtime, one.tenant_id, one.id)
    return len(noted_ids)


def hooked_source(settings: Settings, name: str) -> Configured | None:
    """The enabled source of this name, if it takes events."""
    return next(
        (
            one
            for one in configured_sources(settings).values()
            if one.settings.name == name
            and isinstance(one.settings, ServiceOptions)
            and one.settings.hook is not None
        ),
        None,
    )


def setup(settings: Settings, name: str) -> Json:
    """What a source's service needs to send events: `{"source", "path", "secret", "steps"}`.

    Raises:
        ConfigurationError: there is no such source, or it takes no events.
    """
    (one,) = configured_sources_named(settings, [name])
    section = one.settings
    if not isinstance(section, ServiceOptions):
        fix = "its changes are found by its schedule, and at once with watch: true"
        raise ConfigurationError(f"{name} is of the type {section.type}, which no service tells of", fix=fix)
    if section.hook is None:
        fix = f'write hook: {{secret: "${{{name.upper().replace("-", "_")}_HOOK_SECRET}}"}} into its section'
        raise ConfigurationError(f"{name} takes no events", fix=fix)
    path = f"{settings.rag.api.root_path}{PATH}{name}"
    secret = secret_value(section.hook.secret)
    return {"source": name, "path": path, "secret": secret, "steps": [*section.event_steps]}


def add_findings(checks: Sequence[Json], runtime: Callable[[], Runtime]) -> None:
    """Add to the checks of sources when the last event came; nothing without a database."""
    with suppress(LarderError):
        for check in checks:
            if one := hooked_source(runtime().settings, check["source"]):
                check["findings"].append(vars(_last_event(runtime(), one)))


def _last_event(runtime: Runtime, one: Configured) -> Finding:
    with runtime.database.tenant(one.tenant_id) as connection:
        last = hints.last_event(connection, one.id)
    detail = f"the last one came at {last:%Y-%m-%d %H:%M} UTC" if last else "none has come yet"
    fix = "" if last else f"larder sources hooks {one.settings.name} shows how to have them sent"
    return Finding(ok=True, subject="events", detail=detail, fix=fix)


def _event(body: bytes) -> Json:
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestRejected("the body is not JSON", fix="send the event as application/json") from None
    if not isinstance(event, dict):
        raise RequestRejected("the body is not a JSON object", fix="send one event in a request")
    return event
