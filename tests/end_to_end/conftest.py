"""One running installation for all tests of this folder that only need some installation."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.ledger import Ledger, of_all
from workers.local import embedded

CONFIG = """
rag:
  embedding: {provider: hashing, dailyTokens: 1000000}
  queue: {tickSeconds: 1}
  monitoring:
    healthCheck: {interval: 1}
    alerts:
      channels: [{type: file, path: ./alerts.log}]
      conditions:
        - {name: slow_query, threshold: 0.001, severity: warning}
        - {name: backlog_growing, threshold: 10, severity: warning}
  sources:
    - name: docs
      type: markdown
      paths: ['./docs/**/*.md']
      watch: true
      metadata: {sourceType: documentation, category: reference}
    - name: backlog
      type: pbi_json
      paths: ['./output/run-*/final-output.json']
      autoIndex: false
"""
PAGES = {
    "docs/moorings.md": "# Moorings\n\nA vessel longer than ninety metres needs two bollards.\n",
    "docs/tides.md": "---\ntitle: Tide tables\ntags: [tide, depth]\n---\n\nThe bar is passable for three hours.\n",
    "docs/adr/0001-clock.md": "# Use harbour time\n\n## Status\n\nAccepted\n\n## Decision\n\nTimes are local.\n",
}


@pytest.fixture(scope="module")
def harbour(make_site: Callable[[Path], Any]) -> Iterator[Any]:
    """A site with three pages and two backlog items, everything running."""
    root = Path(tempfile.mkdtemp(prefix="larder-harbour-"))
    site = make_site(root)
    site.write("larder.yaml", CONFIG)
    for name, content in PAGES.items():
        site.write(name, content)
    site.write(
        "output/run-2026-09-01/final-output.json",
        '{"pbis": [{"id": "PBI-1", "title": "Warn of shallow water", "description": "Tell the pilot.",'
        ' "acceptance_criteria": ["A warning below two metres"]}, {"id": "PBI-2", "title": "Print the berth plan",'
        ' "description": "On A3 paper.", "acceptance_criteria": ["Fits one page"]}]}',
    )
    started = site.larder("up", "--detach", "--json")
    assert started.code == 0, started.err
    yield site
    site.larder("down")
    shutil.rmtree(root, ignore_errors=True)


def connect(site: Any, database: str = "larder") -> psycopg.Connection[Any]:
    """One who sees every tenant, on the server of this site."""
    password = embedded.Credentials.of_folder(site.data).postgres
    port = urlsplit(embedded.ensure(site.data).database_url).port
    return psycopg.connect(
        host="127.0.0.1", port=port, user="postgres", password=password, dbname=database, autocommit=True
    )


@pytest.fixture
def ledger(harbour: Any) -> Ledger:
    """The rows of every tenant."""
    return Ledger(of_all(partial(connect, harbour)))


@pytest.fixture
def sql(harbour: Any) -> Callable[..., list[tuple[Any, ...]]]:
    """Runs statements as one who sees every tenant, and gives what the last one returns."""

    def run(query: str, *args: Any, database: str = "larder") -> list[tuple[Any, ...]]:
        with connect(harbour, database) as connection:
            done = connection.execute(query, args or None)
            return done.fetchall() if done.description else []

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], bool], float], bool]:
    """Waits for something to become true; False if it does not."""

    def wait(condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.2)
        return False

    return wait
