"""Traces for an OpenTelemetry collector: the way of a run from its tick to the rows, and of a request to its answer.

A message is only a bell: it may be lost, sent again by the pump, or carry documents of several runs. So no context
travels in messages. It lies in the ledger, in the W3C form `traceparent`, beside the run or the job that it is about,
and whoever does the work finds it there. Nothing of OpenTelemetry is loaded unless the configuration names a collector.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from connectors.sections import secret_value
from pipeline.errors import LarderError
from workers import installed_version
from workers.settings.monitoring import TracingSettings

P = ParamSpec("P")
R = TypeVar("R")

SEND_MILLISECONDS = 1000.0
"""Milliseconds between two sends of spans that have ended; a killed process loses no more than these."""
TIMEOUT = 3.0
"""Seconds in which a collector must take them; a command ends no later for its sake."""
LONGEST_WAIT = 3600.0
"""Longest time in seconds that a tick may have been on its way; an earlier start is ignored."""

_lock = threading.Lock()
_settings: list[TracingSettings] = []
"""Settings of the collector that this process sends its spans to; empty: none."""


def configure(settings: TracingSettings) -> None:
    """Trace this process as configured from now on; it connects with its first span."""
    _settings[:] = [settings] if settings.endpoint else []


def enabled() -> bool:
    """Whether spans are made."""
    return bool(_settings)


@cache
def _provider(settings: TracingSettings) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    token = secret_value(settings.token)
    exporter = OTLPSpanExporter(
        endpoint=settings.endpoint,
        headers={"Authorization": f"Bearer {token}"} if token else None,
        timeout=TIMEOUT,
    )
    named = Resource.create({"service.name": "larder", "service.version": installed_version()})
    # Own provider instead of the global one: the program around the client may have set that.
    provider = TracerProvider(ParentBased(TraceIdRatioBased(settings.sample_ratio)), named)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=SEND_MILLISECONDS))
    return provider


def _propagator() -> Any:
    """Reader and writer of contexts in the form in which they are kept."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def flush(**_: object) -> None:
    """Send spans that have ended: a process of a worker ends without its exit handlers."""
    if _settings and _provider.cache_info().currsize:
        _provider(_settings[0]).force_flush()


@contextmanager
def span(
    name: str, *, within: Sequence[str | None] = (), since: float | None = None, **about: Any
) -> Iterator[None]:
    """The block as a span, with what it is `about`: ids, names and counts, never a text.

    `within` are kept contexts. Of several, each gets a span, linked with the first one's, in which goes what the block
    makes further. Without one it is a part of what this thread is at, else the beginning of a trace. `since` is the
    time at which it began elsewhere, in seconds.
    """
    if not _settings:
        yield
        return
    from opentelemetry import trace
    from opentelemetry.trace import Link

    with _lock:
        tracer = _provider(_settings[0]).get_tracer("larder")
    contexts = [_propagator().extract({"traceparent": one}) for one in dict.fromkeys(within) if one]
    parents: Sequence[Any] = contexts or [None]
    options = {
        "attributes": {f"larder.{key}": value for key, value in about.items() if value is not None},
        "start_time": None if since is None else round(_past(since) * 1e9),
    }
    first = tracer.start_span(name, parents[0], **options)
    linked = [
        tracer.start_span(name, one, links=[Link(first.get_span_context())], **options) for one in parents[1:]
    ]
    for other in linked:
        first.add_link(other.get_span_context())
    try:
        # An exception's words may hold a text.
        with trace.use_span(first, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _failed(first, error)
        raise
    finally:
        for one in (*linked, first):
            one.end()


def _past(moment: float) -> float:
    """The time that a message names, or now if it cannot be right: clocks differ, and strangers write messages."""
    now = time.time()
    plausible = isinstance(moment, float) and moment >= now - LONGEST_WAIT
    return min(moment, now) if plausible else now


def traced(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a span."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            with span(name):
                return function(*args, **named)

        return call

    return decorate


def set_attributes(**about: str | float) -> None:
    """Add attributes to the current span."""
    if _settings:
        from opentelemetry import trace

        trace.get_current_span().set_attributes({f"larder.{key}": value for key, value in about.items()})


def mark_failed(error: BaseException) -> None:
    """Mark the current span as failed by an error that was handled."""
    if _settings:
        from opentelemetry import trace

        _failed(trace.get_current_span(), error)


def _failed(current: Any, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    kind = type(error).__name__
    code = error.code if isinstance(error, LarderError) else ""
    current.set_status(StatusCode.ERROR, f"{code} {kind}".strip())
    current.set_attribute("error.type", kind)


def traceparent() -> str | None:
    """The current context, to be kept; None without one."""
    if not _settings:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def received(header: str | None) -> Iterator[None]:
    """Make the block a part of the trace of the HTTP request that has this header."""
    if not (_settings and header):
        yield
        return
    from opentelemetry import context

    token = context.attach(_propagator().extract({"traceparent": header}))
    try:
        yield
    finally:
        context.detach(token)
