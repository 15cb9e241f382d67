"""Workers are killed while stories are stored: every accepted story is there once, and none of a job without the others.

`LARDER_DRILL=10` stores 1,000 with ten kills.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet import Fleet
from tests.pipeline.stories.storyteller import story

SCALE = int(os.environ.get("LARDER_DRILL", "1"))
BATCH, JOBS, KILLS = 25, 8 + 3 * SCALE + 2 * (SCALE // 10), 1 + SCALE
CONFIG = """
rag:
  embedding: {provider: hashing}
  queue: {tickSeconds: 0.5}
  enrichment: {leaseSeconds: 2, resendSeconds: 2}
"""


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    root = Path(tempfile.mkdtemp(prefix="larder-stories-"))
    (root / "larder.yaml").write_text(CONFIG)
    made = Fleet.started(root, Path(__file__).with_name("story_process.py"))
    yield made
    made.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.timeout(600)
@pytest.mark.req("000-035", "000-036", "000-037")
def test_killing_workers_loses_doubles_and_halves_no_story(fleet: Fleet) -> None:
    chance = random.Random(7)
    per_job = f"select count(*) from clarifai_user_story_embeddings group by source_doc_id having count(*) <> {BATCH}"

    with fleet.client() as client:
        for job in range(JOBS):
            made = [story(f"story {n} of job {job}", source_doc_id=f"job {job}") for n in range(BATCH)]
            assert client.store_stories(made).accepted == BATCH
            # Somebody else sends the same at the same time.
            if job % 4 == 0:
                client.store_stories(made)
        fleet.revive()
        kills, end = 0, time.monotonic() + 300
        while not {"queued", "running"}.isdisjoint(fleet.ledger.jobs.values("state")):
            assert time.monotonic() < end, fleet.ledger.jobs.values("state", "crash_count", "error")
            assert fleet.sql(per_job) == []
            time.sleep(chance.uniform(0.02, 0.3))
            held = fleet.ledger.jobs.values("crash_count", state="running")
            # Whose worker died three times is given up, and says so: that is for stories that kill.
            if held and max(held) < 3 and kills < KILLS:
                fleet.kill("enrich")
                kills += 1
                fleet.revive()
        assert kills == KILLS
    assert set(fleet.ledger.jobs.values("state")) == {"done"}
    table = "clarifai_user_story_embeddings"
    counted = fleet.sql(f"select count(*), count(distinct user_story_text), count(embedding) from {table}")
    assert counted == [(JOBS * BATCH,) * 3]
