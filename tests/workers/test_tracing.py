"""Spans: off they cost nothing, several runs of one message each get one, and no text leaves with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import LarderError, SearchError
from pipeline.ledger import Item
from tests.conftest import Addresses
from tests.fakes.trace_collector import TraceCollector
from tests.ledger import of_connection
from tests.workers.installed import installed, without_messages
from workers import runtime as runtimes
from workers import tasks
from workers.app.ingestion import sync
from workers.app.ingestion.sync import configured_sources, start_run
from workers.local import embedded
from workers.monitoring import tracing
from workers.runtime import Runtime
from workers.settings import SettingsError, load
from workers.settings.monitoring import TracingSettings

ROOT = Path(__file__).parents[2]
CONFIG = """
rag:
  embedding: {{provider: hashing, dimensions: 64}}
  monitoring: {{tracing: {{endpoint: '{endpoint}'}}}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
    - {{name: notes, type: markdown, paths: ['./notes/*.md'], autoIndex: false}}
"""


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as running:
        yield running
    tracing.configure(TracingSettings())


@pytest.fixture
def runtime(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, collector: TraceCollector
) -> Iterator[Runtime]:
    for name in ("docs", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(f"# {name}\n\nA vessel longer than ninety metres.\n")
    with installed(tmp_path, addresses, servers, CONFIG.format(endpoint=collector.endpoint)) as made:
        runtimes.use(made)
        sync.register(made)
        yield made
    without_messages(servers)


def read_all(runtime: Runtime) -> list[list[str | int]]:
    """Open a run of each source and read it; what a message about all documents would carry."""
    for one in configured_sources(runtime.settings).values():
        run = start_run(runtime, one.tenant_id, one.id, trigger="manual")
        assert run is not None
        tasks.sync(str(one.tenant_id), str(one.id), run)
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        items = of_connection(connection).documents.values("id", "desired_version")
        return [Item(*row).to_json() for row in items]


def test_a_message_with_documents_of_two_runs_is_a_span_in_the_trace_of_each(
    runtime: Runtime, collector: TraceCollector
) -> None:
    items = read_all(runtime)
    tasks.chunk(str(runtime.settings.tenant_id), items)
    tracing.flush()
    traces = collector.traces()
    assert (
        sorted([span.name for span in spans] for spans in traces.values())
        == [["open run", "larder.sync", "larder.chunk"]] * 2
    )
    first, second = collector.spans("larder.chunk")
    assert [*first.links, *second.links] == [second.trace, first.trace]
    assert first.about["larder.documents"] == 2


def test_a_message_that_comes_again_goes_on_in_the_trace_of_its_run(
    runtime: Runtime, collector: TraceCollector
) -> None:
    """Messages hold no context: one that the pump sends anew, or an older worker sent, is as good as the first."""
    tenant, (item, _) = str(runtime.settings.tenant_id), read_all(runtime)
    tasks.chunk(tenant, [item])
    tasks.chunk(tenant, [item])
    tracing.flush()
    once, again = collector.spans("larder.chunk")
    assert once.trace == again.trace
    assert once.links == again.links == frozenset()


def test_a_source_that_is_read_already_begins_no_trace(runtime: Runtime, collector: TraceCollector) -> None:
    one = next(iter(configured_sources(runtime.settings).values()))
    assert start_run(runtime, one.tenant_id, one.id, trigger="manual") is not None
    assert start_run(runtime, one.tenant_id, one.id, trigger="manual") is None
    tracing.flush()
    assert [span.name for span in collector.spans()] == ["open run"]


def test_work_goes_on_while_the_collector_is_away(runtime: Runtime, collector: TraceCollector) -> None:
    collector.stop()
    tasks.chunk(str(runtime.settings.tenant_id), read_all(runtime))
    tracing.flush()
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        assert set(of_connection(connection).documents.values("stage")) == {"chunked"}
    collector.start()


@pytest.mark.parametrize("error", [SearchError("the PBI says: harbour"), ValueError("harbour")])
def test_of_an_error_its_kind_and_never_its_words_are_told(
    collector: TraceCollector, error: Exception
) -> None:
    tracing.configure(TracingSettings(endpoint=collector.endpoint))
    with pytest.raises(type(error)), tracing.span("failing", job="1"):
        raise error
    tracing.flush()
    (told,) = collector.spans()
    code = error.code if isinstance(error, LarderError) else ""
    assert told.status == f"{code} {type(error).__name__}".strip()
    assert told.about["error.type"] == type(error).__name__
    assert b"harbour" not in collector.requests()[0].body


@pytest.mark.parametrize(("ratio", "header", "spans"), [(0, "", 0), (0, "01", 1), (1, "", 1), (1, "00", 0)])
def test_the_sender_of_a_request_decides_whether_it_is_traced_and_else_the_ratio(
    collector: TraceCollector, ratio: float, header: str, spans: int
) -> None:
    tracing.configure(TracingSettings(endpoint=collector.endpoint, sample_ratio=ratio))
    given = f"00-{'a' * 32}-{'b' * 16}-{header}" if header else None
    with tracing.received(given), tracing.span("asked"):
        sampled = int((tracing.traceparent() or "")[-2:], 16) & 1
        assert sampled == spans
    tracing.flush()
    assert len(collector.spans()) == spans


@pytest.mark.parametrize(
    "given", ["", "x", "00-zz-yy-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x00" * 400]
)
def test_a_header_that_is_no_context_begins_a_new_trace(collector: TraceCollector, given: str) -> None:
    tracing.configure(TracingSettings(endpoint=collector.endpoint))
    with tracing.received(given), tracing.span("asked"):
        pass
    tracing.flush()
    (one,) = collector.spans()
    assert one.parent == ""


@pytest.mark.parametrize("sent", [0, -1e300, float("nan"), float("inf"), "yesterday", True])
def test_a_tick_of_no_time_began_now(collector: TraceCollector, sent: float) -> None:
    tracing.configure(TracingSettings(endpoint=collector.endpoint))
    with tracing.span("ticked", since=sent):
        pass
    tracing.flush()
    (one,) = collector.spans()
    assert one.begun <= one.ended
    assert one.ended - one.begun < tracing.LONGEST_WAIT


OFF = """
import sys, redis
before = set(sys.modules)  # redis loads what it finds of OpenTelemetry, for figures of its own
import workers.tasks
from workers.client import Client
from workers.monitoring import tracing
with tracing.received("00-" + "a" * 32 + "-" + "b" * 16 + "-01"), tracing.span("x", within=["y"], since=1.0, run=1):
    tracing.set_attributes(indexed=1)
    tracing.mark_failed(ValueError())
    assert tracing.traceparent() is None
tracing.flush()
print([name for name in set(sys.modules) - before if name.startswith("opentelemetry")])
"""
MISSING = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Lacking(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("opentelemetry.exporter", "opentelemetry.sdk") else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Lacking]
from workers.cli import main
sys.argv = ["larder", "config", "check", "--config", "larder.yaml"]
main()
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_switched_off_it_loads_nothing(tmp_path: Path) -> None:
    assert python(OFF, tmp_path).stdout == "[]\n"


def test_without_the_extra_a_sentence_names_it(tmp_path: Path) -> None:
    (tmp_path / "larder.yaml").write_text(
        "rag:\n  monitoring:\n    tracing:\n      endpoint: http://h/v1/traces\n"
    )
    done = python(MISSING, tmp_path)
    assert done.returncode == 2
    assert "larder.yaml:4: monitoring.tracing.endpoint: found 'http://h/v1/traces'" in done.stderr
    assert "OpenTelemetry is not installed" in done.stderr
    assert "install larder[tracing]" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "larder.yaml").write_text("rag:\n  monitoring:\n    tracing: {sampleRatio: 0.5}\n")
    assert python(MISSING, tmp_path).returncode == 0, "nothing is to be traced"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{endpoint: 'http://h/v1/traces?api-key=secret'}", "with a key in `token`"),
        ("{endpoint: 'http://u:secret@h/v1/traces'}", "with a key in `token`"),
        ("{endpoint: 'grpc://h:4317'}", "an address such as https://"),
        ("{endpoint: 'http://h/v1/traces', sampleRatio: 2}", "from 0 to 1"),
    ],
)
def test_what_it_cannot_be_told_is_refused(tmp_path: Path, section: str, says: str) -> None:
    (tmp_path / "larder.yaml").write_text(f"rag:\n  monitoring:\n    tracing: {section}\n")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "larder.yaml", {})
    told = "\n".join(map(str, caught.value.problems))
    assert says in told
    assert "secret" not in told


def test_only_an_allowed_host_is_told_anything(tmp_path: Path) -> None:
    (tmp_path / "larder.yaml").write_text(
        "rag:\n  security: {hosts: [a.example]}\n  monitoring:\n    tracing: {endpoint: 'https://b.example/v1/traces'}\n"
    )
    with pytest.raises(SettingsError, match=r"b\.example.*a host of security\.hosts"):
        load(tmp_path / "larder.yaml", {})
