"""Answers to commands that have workers sync sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipeline.documents import Json
from workers.app.ingestion import sync_now
from workers.app.ingestion.temporary_workers import unserved
from workers.app.questions import Tell
from workers.local.embedded.locating import START_SECONDS, ping
from workers.monitoring import tracing
from workers.runtime import Runtime


def index(runtime: Runtime, tell: Tell, *, names: Sequence[str], force: bool, wait: bool) -> Json | None:
    """The document of `larder index --json` and its `exit_code`; None if there are workers to be started first."""
    chosen = sync_now.sources_to_index(runtime.settings, names)
    ping(runtime.addresses.database, start_timeout=START_SECONDS)
    if unserved(runtime):
        return None
    able, not_begun = sync_now.doable(runtime, chosen, partial(tell, "notice"), wait=wait)
    with tracing.span("larder index"):
        started = sync_now.start(runtime, able, force=force)
        if not wait:
            return sync_now.queued(started, not_begun)
        return sync_now.finish(runtime, started, not_begun, tell, force=force)
