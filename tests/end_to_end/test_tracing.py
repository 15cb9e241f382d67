"""Traces over real processes: each run is one trace from its tick to its rows, each request one to its answer."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.conftest import Site
from tests.fakes.trace_collector import Span, TraceCollector
from workers.client import Client
from workers.settings import load

Until = Callable[[Callable[[], bool], float], bool]

SECRET = "a-token-for-the-collector"
WORDS = ("bollards", "ninety", "Moorings", "shallow", "pilot")
"""Of the documents and of the question."""
CONFIG = """
rag:
  embedding: {{provider: hashing}}
  queue: {{tickSeconds: 1}}
  monitoring:
    tracing: {{endpoint: '{endpoint}', token: {token}}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: true}}
    - {{name: notes, type: markdown, paths: ['./notes/*.md'], autoIndex: false}}
    - {{name: more, type: markdown, paths: ['./more/*.md'], autoIndex: false}}
"""
PBI = {"id": "PBI-9", "title": "Warn of shallow water", "description": "Tell the pilot in time."}
STEPS = ["larder.sync", "larder.chunk", "larder.embed", "larder.upsert"]


@dataclass
class Traced:
    site: Site
    collector: TraceCollector

    def trace_of(self, **about: object) -> list[Span]:
        """The trace that has a span with this, the first begun first; empty if there is none yet."""
        wanted = {f"larder.{key}": value for key, value in about.items()}
        for spans in self.collector.traces().values():
            if any(wanted.items() <= span.about.items() for span in spans):
                return spans
        return []


@pytest.fixture(scope="module")
def traced(make_site: Callable[[Path], Site]) -> Iterator[Traced]:
    """A running installation with a page in each of its sources, of which one is indexed when it starts."""
    root = Path(tempfile.mkdtemp(prefix="larder-traced-"))
    with TraceCollector() as collector:
        site = make_site(root)
        site.write("larder.yaml", CONFIG.format(endpoint=collector.endpoint, token=SECRET))
        site.write(
            "docs/moorings.md", "# Moorings\n\nA vessel longer than ninety metres needs two bollards.\n"
        )
        site.write("notes/tides.md", "# Tides\n\nThe pilot waits for shallow water to pass.\n")
        site.write("more/quay.md", "# Quay\n\nTwo bollards were moved.\n")
        started = site.larder("up", "--detach", "--json", "--no-flower")
        assert started.code == 0, started.err
        yield Traced(site, collector)
        site.larder("down")
    shutil.rmtree(root, ignore_errors=True)


def below(parent: Span, spans: list[Span]) -> list[str]:
    """Names of the spans that hang on this one."""
    return [span.name for span in spans if span.parent == parent.id]


def indexed(spans: list[Span]) -> int:
    return sum(int(span.about.get("larder.indexed", 0)) for span in spans if span.name == "larder.upsert")


def test_one_trace_leads_from_the_tick_of_beat_to_the_row(traced: Traced, until: Until) -> None:
    # Each process sends its own now and then: the last step may be told before those that led to it.
    def told() -> list[Span]:
        # A message may come twice, and the second one finds nothing to do.
        spans = traced.trace_of(source="docs")
        return [s for s in spans if s.name != "larder.upsert" or s.about["larder.indexed"]]

    assert until(lambda: len(told()) == 1 + len(STEPS), 60)
    spans = told()
    assert indexed(spans) == 1
    opened, *steps = spans
    assert (opened.name, opened.parent) == ("open run", "")
    assert opened.about["larder.trigger"] == "schedule"
    assert [span.name for span in steps] == STEPS
    assert below(opened, spans) == STEPS
    assert len({span.process for span in spans}) >= 3, "control, ingest and embed"
    assert all(earlier.begun < later.begun for earlier, later in pairwise(steps))
    documents = {span.about.get("larder.document") for span in steps[1:]}
    assert len(documents) == 1
    assert documents != {None}


def test_one_trace_leads_from_the_command_to_the_rows(traced: Traced, until: Until) -> None:
    done = traced.site.larder("index", "notes", "more", "--json")
    assert done.code == 0, done.err

    def told() -> bool:  # by the process that answered the command as well
        spans = traced.trace_of(source="notes")
        names = [span.name for span in spans]
        return indexed(spans) >= 2 and names.count("larder.sync") == 2 and "larder index" in names

    assert until(told, 20)
    spans = traced.trace_of(source="notes")
    command = spans[0]
    assert (command.name, command.parent) == ("larder index", "")
    assert below(command, spans) == ["open run", "open run"]
    assert command.ended >= max(span.ended for span in spans if span.name == "larder.upsert")
    assert {span.about.get("larder.source") for span in spans if span.name == "larder.sync"} == {
        "notes",
        "more",
    }


def test_one_trace_leads_from_a_client_through_the_queue_to_its_answer(traced: Traced, until: Until) -> None:
    client = Client.of(load(traced.site.root / "larder.yaml", {}))
    with client:
        client.enrich(PBI, deadline=60)

    def arrived() -> bool:
        return len(traced.collector.spans("enrich")) == 1 and bool(traced.collector.spans("larder.enrich"))

    assert until(arrived, 20)
    spans = next(s for s in traced.collector.traces().values() if s[0].name == "enrich")
    asked, sent, answered = spans
    assert (asked.parent, sent.name, sent.parent) == ("", "submit", asked.id)
    assert (answered.name, answered.parent) == ("larder.enrich", sent.id)
    assert answered.process != asked.process
    assert asked.begun < answered.begun < asked.ended
    assert answered.about["larder.degradation_level"] == 0


def test_a_request_over_http_goes_on_in_the_trace_of_its_sender(traced: Traced, until: Until) -> None:
    token = json.loads(traced.site.larder("token", "--json").out)["token"]
    url = json.loads((traced.site.data / "state.json").read_text())["api_url"]
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    answer = httpx.post(
        f"{url}/api/v1/enrich",
        json={"pbi": {**PBI, "id": "PBI-10"}},
        headers={
            "Authorization": f"Bearer {token}",
            "Prefer": "wait=30",
            "traceparent": f"00-{trace}-{parent}-01",
        },
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert until(lambda: len(traced.collector.traces().get(trace, ())) == 2, 20)
    sent, answered = traced.collector.traces()[trace]
    assert (sent.name, sent.parent) == ("submit", parent)
    assert (answered.name, answered.parent) == ("larder.enrich", sent.id)


def test_nothing_that_is_sent_holds_a_text_or_a_secret(traced: Traced) -> None:
    seen = traced.collector.requests("/v1/traces")
    assert seen
    assert {one.headers["authorization"] for one in seen} == {f"Bearer {SECRET}"}
    sent = b"".join(one.body for one in seen).decode(errors="replace").lower()
    assert "larder.upsert" in sent
    assert [word for word in (*WORDS, SECRET) if word.lower() in sent] == []
    log = "".join(path.read_text() for path in traced.site.data.rglob("*.log"))
    assert SECRET not in log
