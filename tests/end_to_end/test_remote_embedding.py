"""The sample, embedded by a service on the network: through the real queue, found by a search, paid once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Site
from tests.end_to_end.fleet import indexing
from tests.fakes.openai_server import KEY, FakeOpenAI
from tests.fakes.server import Fault, Seen

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
rag:
  embedding: {{provider: openai, baseUrl: {url}/v1, apiKey: {key}}}
  queue: {{tickSeconds: 1, retryBaseSeconds: 1}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}}
"""


@dataclass
class Office:
    """An installation, and the service it pays."""

    site: Site
    service: FakeOpenAI


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    site = Site(tmp_path_factory.mktemp("office"))
    with FakeOpenAI() as service:
        site.write("larder.yaml", CONFIG.format(url=service.address, key=KEY))
        for folder in ("api", "adr"):
            shutil.copytree(ROOT / "deploy" / "sample" / "docs" / folder, site.root / "docs" / folder)
        with indexing(site.root):
            yield Office(site=site, service=service)


def of_documents(seen: Seen) -> bool:
    """Processes say something at their start, too."""
    return bool(seen.json["input"] != ["warm"])


@pytest.mark.req("001-078", "003-011", "001-021")
def test_documents_are_embedded_over_the_network_and_found(office: Office) -> None:
    site, service = office.site, office.service
    # The service has a bad moment on the way; nobody is told but the ledger.
    service.faults.next(Fault.status(429, headers={"Retry-After": "1"}), when=of_documents)
    service.faults.next(Fault.reset(), when=of_documents)
    run = site.larder("index", "--json", timeout=240)
    assert run.code == 0, run.err
    documents = len(list((site.root / "docs").rglob("*.md")))
    (figures,) = run.data["runs"]
    assert (figures["indexed"], figures["failed"]) == (documents, 0)
    assert service.faults.waiting == 0
    good = [seen for seen in service.requests() if seen.status == 200 and of_documents(seen)]
    paid = [text for seen in good for text in seen.json["input"]]
    assert len(paid) == len(set(paid)) == figures["texts_embedded"] > documents

    found = site.larder("search", "webhook signature secret", "--json")
    assert found.code == 0, found.err
    assert found.data["degradation_level"] == 0
    assert "webhook" in found.data["results"][0]["metadata"]["title"].lower()
    asked = service.requests()[-1].json
    assert (asked["model"], asked["input"]) == ("text-embedding-3-small", ["webhook signature secret"])


def test_what_did_not_change_is_not_paid_again(office: Office) -> None:
    before = office.service.usage.texts
    again = office.site.larder("index", "--json", timeout=240)
    assert again.code == 0, again.err
    assert again.data["runs"][0]["texts_embedded"] == 0
    assert office.service.usage.texts == before


def test_without_the_service_words_still_find(office: Office) -> None:
    office.service.faults.next(Fault.status(503), times=None)
    found = office.site.larder("search", "harbour berth windows", "--json")
    office.service.faults.clear()
    assert found.code == 0, found.err
    assert found.data["degradation_level"] == 3
    assert found.data["results"]


def test_the_key_is_in_no_log_and_no_state(office: Office) -> None:
    said = [
        path for path in office.site.root.rglob("*") if path.is_file() and path.suffix in {".log", ".json"}
    ]
    assert said
    for path in said:
        assert KEY not in path.read_text("utf-8", errors="replace"), path
