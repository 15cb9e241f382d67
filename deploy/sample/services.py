"""Stand-ins for Harborline's wiki and boards: a small Confluence and a small Azure DevOps on this machine.

    python deploy/sample/services.py FILE      serves until it is stopped; FILE gets their addresses as shell lines

They answer as the real services do, so that the demo shows both connectors without an account anywhere.
"""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.confluence import FakeConfluence

RETRO = """
<h2>What happened</h2>
<p>On 12 October the <ac:link><ri:page ri:content-title="Mooring teams" /></ac:link> of quay 4 waited 50 minutes for a
vessel that had been moved to quay 2 at noon. The move reached the board, but not the tablet of the team: it was in
the shed, without network.</p>
<ac:structured-macro ac:name="warning"><ac:parameter ac:name="title">Cost</ac:parameter><ac:rich-text-body>
<p>Four people on overtime, and a tug that was paid for nothing.</p></ac:rich-text-body></ac:structured-macro>
<h2>What we do about it</h2>
<ac:task-list><ac:task><ac:task-status>complete</ac:task-status><ac:task-body>The tablet shows how old its picture of
the quay is.</ac:task-body></ac:task><ac:task><ac:task-status>incomplete</ac:task-status><ac:task-body>A move within
two hours of arrival rings the foreman's phone.</ac:task-body></ac:task></ac:task-list>
"""
TEAMS = """
<p>Each quay has a mooring team of four. <strong>A team is bound to its quay for a shift</strong>; moving one takes
30 minutes.</p>
<table><tbody><tr><th>Shift</th><th>Begins</th><th>Teams</th></tr>
<tr><td>Early</td><td>06:00</td><td>5</td></tr><tr><td>Late</td><td>14:00</td><td>5</td></tr>
<tr><td>Night</td><td>22:00</td><td>2</td></tr></tbody></table>
"""
ICE = """
<ac:structured-macro ac:name="status"><ac:parameter ac:name="title">Accepted</ac:parameter></ac:structured-macro>
<h2>Context</h2><p>In February two ports asked for a way to close quays because of ice. The planner knows closures of
a berth, but not who may end them.</p>
<h2>Decision</h2><p>Ice closures belong to the harbour master alone. The planner treats them like maintenance, without
an end; windows inside them are kept and marked as doubtful instead of being cancelled.</p>
<h2>Consequences</h2><p>Agents see doubtful windows in amber. Nobody loses a place by a cold night.</p>
"""
FLAKY = "<div>The berth board shows a vessel twice after it was shifted from one quay to the other.</div>"
STEPS = "<ol><li>Shift a vessel while the board is open</li><li>Wait for the next position</li></ol>"


def wiki(fake: FakeConfluence) -> None:
    """The space of the people on the quay."""
    fake.add_space("QUAY", "Quay operations")
    home = fake.add_page("QUAY", "Quay operations", "<p>What the people on the quay write down.</p>")
    fake.advance(days=30)
    fake.add_page("QUAY", "Mooring teams", TEAMS, parent=home, labels=["people"])
    retro = fake.add_page("QUAY", "Retro: the team at the wrong quay", RETRO, parent=home, labels=["retro"])
    fake.comment(retro, "<p>The phone call also helps pilots, they asked for the same.</p>")
    fake.add_page("QUAY", "Decision: closing quays for ice", ICE, parent=home, labels=["decision"])
    fake.add_page("QUAY", "Wages", "<p>Of no interest to a search.</p>", restricted_to=[("group", "board")])


def boards(fake: FakeAzureDevOps) -> None:
    """The project of the planners."""
    fake.add_project("Planner")
    story = fake.add_item(
        "Planner", "User Story", "Ring the foreman when a vessel is moved late",
        description="## Why\n\nA move within two hours of arrival does not reach the team on the quay.", markdown=True,
        tags="tablet; moves",
    )  # fmt: skip
    bug = fake.add_item(
        "Planner", "Bug", "Vessel stands twice on the berth board", tags="board", repro_steps=FLAKY + STEPS
    )
    fake.link(story, bug, "related")
    fake.comment(
        bug, "<div>The old position came from the cache of the board; it now dies with the shift.</div>"
    )
    fake.set_state(bug, "Closed", "Fixed and verified")


def main() -> None:
    """Serve both until a signal."""
    with FakeConfluence("cloud") as confluence, FakeAzureDevOps(organization="harborline") as azure:
        confluence.now = azure.now = datetime(2026, 9, 14, 8, 0, tzinfo=UTC)
        wiki(confluence)
        boards(azure)
        Path(sys.argv[1]).write_text(
            f"HARBORLINE_WIKI={confluence.base}\nHARBORLINE_WIKI_USER={confluence.email}\n"
            f"HARBORLINE_WIKI_TOKEN={confluence.token}\nHARBORLINE_BOARDS={azure.url}\n"
            f"HARBORLINE_BOARDS_PAT={azure.pat}\nHARBORLINE_SERVICES=true\n",
            encoding="utf-8",
        )
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
