"""Every page of the console in a real browser, looked at by axe: at a desk and on a phone, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import sync_playwright

from pipeline.ledger import project_id
from tests.ledger import of_connection
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.api.conftest import ACME
from workers.app.enrichment import job
from workers.runtime import Runtime

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
SCREENS: dict[str, Any] = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 360, "height": 740}}
# A page that looks again would do so in the midst.
HOLD = "for (let n = setTimeout(() => 0); n; n--) clearTimeout(n);"
# In the dark nothing but the colours differs.
SCHEMES: dict[Any, dict[str, Any]] = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
TEXT = "# Tide gates\n\nSome `code`, a [link](https://example.com), and\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as driver:
        # The pages are our own, and root may have no sandbox.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def paths(address: str, runtime: Runtime) -> list[str]:
    """All pages, with something on them."""
    place = project_id(ACME.tenant, "berth")
    notes = SourceLedger(runtime.database, ACME.tenant, place, "gates")
    notes.admit(document("gates", TEXT, title="Tide gates", url="https://example.com/gates"))
    notes.index()
    with runtime.database.control() as connection:
        of_connection(connection).sources.set("notes-berth", held=30)
    return [
        *(
            "",
            "?q=mooring+lines+tide+gates",
            "?q=zzzz",
            "?q=mooring&done=1",
            f"/documents/{notes.id('gates')}",
        ),
        *(
            "/enrich",
            "/sources",
            "/sources?done=1",
            "/sources/notes-berth",
            "/changes",
            f"/documents/{uuid4()}",
        ),
    ]


def test_axe_finds_nothing(
    chromium: Any, address: str, runtime: Runtime, paths: list[str], token: Callable[..., str]
) -> None:
    # Their own policy lets pages run no script but ours, so axe is let in by the browser.
    page = chromium.new_page(bypass_csp=True)
    found = {}

    def look(name: str) -> None:
        page.evaluate(HOLD + AXE)
        for screen, size in SCREENS.items():
            page.set_viewport_size(size)
            for scheme, rules in SCHEMES.items():
                page.emulate_media(color_scheme=scheme)
                told = page.evaluate("rules => axe.run(rules)", rules)["violations"]
                wrong = [(one["id"], [node["html"] for node in one["nodes"]]) for one in told]
                wide = page.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                found[name, screen, scheme] = wrong + [("wider than the screen", [str(wide)])] * (wide > 0)

    page.goto(f"{address}/console")
    look("login")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    look("refused")
    page.get_by_label("Token").fill(token(permissions=frozenset({"admin"})))
    page.get_by_role("button", name="Log in").click()
    for path in paths:
        page.goto(f"{address}/console{path}")
        for summary in page.locator("summary").all():
            summary.click()
        look(path)
    page.goto(f"{address}/console/enrich")
    page.get_by_label("Title").fill("Check mooring lines at tide gates")
    page.get_by_role("button", name="Find out").click()
    page.wait_for_url("**/enrich/*")
    look("waiting")
    page.reload()
    job.run(runtime, ACME.tenant, UUID(page.url.rpartition("/")[2]))
    page.get_by_role("button", name="Copy as Markdown").wait_for()  # the page looks again by itself
    look("answer")
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    page.close()
