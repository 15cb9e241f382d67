"""An OpenTelemetry collector: takes spans by OTLP over HTTP, as protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.server import Answer, FakeServer, Seen

PATH = "/v1/traces"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span as it came in; ids in hex, times in seconds since 1970."""

    name: str
    trace: str
    id: str
    parent: str
    """Empty: it begins its trace."""
    links: frozenset[str]
    """Traces of the spans that it is linked with."""
    begun: float
    ended: float
    status: str
    about: Mapping[str, str | int | float]
    process: str
    """Names the process that made it."""


class TraceCollector(FakeServer):
    """Holds all spans that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[Span] = []

    @property
    def endpoint(self) -> str:
        return f"{self.address}{PATH}"

    def spans(self, name: str = "") -> list[Span]:
        """Those of this name, or all."""
        with self.lock:
            return [span for span in self._spans if name in ("", span.name)]

    def traces(self) -> dict[str, list[Span]]:
        """Trace -> its spans, the first begun first."""
        found: dict[str, list[Span]] = {}
        for span in sorted(self.spans(), key=lambda span: span.begun):
            found.setdefault(span.trace, []).append(span)
        return found

    def answer(self, seen: Seen) -> Answer:
        if seen.path != PATH or seen.headers.get("content-type") != "application/x-protobuf":
            return Answer(status=404)
        message = ExportTraceServiceRequest.FromString(seen.body)
        with self.lock:
            for resource in message.resource_spans:
                told = {pair.key: pair.value for pair in resource.resource.attributes}
                assert told["service.name"].string_value == "larder"
                for scope in resource.scope_spans:
                    self._spans += [
                        Span(
                            name=one.name,
                            trace=one.trace_id.hex(),
                            id=one.span_id.hex(),
                            parent=one.parent_span_id.hex(),
                            links=frozenset(link.trace_id.hex() for link in one.links),
                            begun=one.start_time_unix_nano / 1e9,
                            ended=one.end_time_unix_nano / 1e9,
                            status=one.status.message,
                            about={
                                a.key: getattr(a.value, a.value.WhichOneof("value")) for a in one.attributes
                            },
                            process=told["service.instance.id"].string_value,
                        )
                        for one in scope.spans
                    ]
        return Answer(body=b"", content_type="application/x-protobuf")
