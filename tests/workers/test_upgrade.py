"""Workers of two releases at work: messages of the one before are understood, and those of the one after."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any
from uuid import UUID, uuid4

import pytest

from pipeline.database.migrations import STEPS
from workers import tasks
from workers.app.enrichment.job import WORK
from workers.queue.app import app
from workers.remote_actions import stored_job

T, J = str(uuid4()), str(uuid4())
RECORDED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "larder.sync": ([T, J, 7], {}),
    "larder.pump": ([], {"every": 5.0}),
    "larder.chunk": ([T, [[J, 3]]], {}),
    "larder.embed": ([T, [[J, 3]]], {}),
    "larder.upsert": ([T, [[J, 3]]], {}),
    "larder.fill": ([T, 1, [[J, 3]]], {}),
    "larder.enrich": ([T, J], {}),
    "larder.ask": (["vector.query"], {"query": "tide"}),
    "larder.embedding.create": ([T, J], {}),
    "larder.vector.store": ([T, J], {}),
    "larder.vector.query": ([T, J], {}),
    "larder.stories.store": ([T, J], {}),
    "larder.stories.search": ([T, J], {}),
    "larder.mirror": (["chroma"], {}),
    "larder.upkeep.statistics": ([], {"every": 300.0}),
    "larder.upkeep.build": ([], {}),
    "larder.upkeep.trim": ([], {"every": 3600.0}),
    "larder.upkeep.canary": (["embed"], {}),
}
"""What is sent at revision 027, before there was a release. A task that goes stays here, and in the code, for one more release."""


@pytest.mark.parametrize("name", RECORDED)
def test_messages_of_the_release_before_and_after_are_taken(name: str) -> None:
    arguments, named = RECORDED[name]
    taken = inspect.signature(app.tasks[name].run)
    taken.bind(*arguments, **named)
    taken.bind(*arguments, **named, something_new=1)


def test_every_task_is_recorded() -> None:
    ours = {name for name in app.tasks if name.startswith("larder.")}
    assert ours == set(RECORDED)


@pytest.mark.parametrize("name", WORK)
def test_messages_of_jobs_name_tenant_and_id(name: str) -> None:
    arguments, _ = RECORDED[name]
    assert stored_job(arguments) == (UUID(T), UUID(J))
    for other in ([], [T], [J, T, J], ["vector.query"], [T, "tide"], [None, None], [[T], {}]):
        assert stored_job(other) is None


def test_items_may_say_more_one_day() -> None:
    assert [item.to_json() for item in tasks.decode([[J, 3, "more"]])] == [[J, 3]]


NARROWS = re.compile(
    r"\b(drop column|rename (column|to)|drop table|alter column \w+ (set data )?type|set not null|drop default)\b",
    re.IGNORECASE,
)


UNRELEASED = "032"
"""Steps up to this one were made before there was a release, whose workers they might disturb."""


def test_no_step_takes_away_what_the_release_before_uses() -> None:
    """What goes one release after it was last used says so: `-- contract: ...` above it."""
    bare = []
    for path in (path for revision, path in STEPS.items() if revision > UNRELEASED):
        lines = ["", *path.read_text(encoding="utf-8").splitlines()]
        for above, line in itertools.pairwise(lines):
            if NARROWS.search(line.split("--")[0]) and not above.startswith("-- contract: "):
                bare.append(f"{path.name}: {line}")
    assert bare == []
