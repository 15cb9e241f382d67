"""Upkeep as tasks: statistics, deferred indexes, trimming, canaries."""

from __future__ import annotations

from workers import runtime
from workers.admin import index_switch
from workers.control import maintenance
from workers.queue.app import app


@app.task(name="larder.upkeep.statistics")  # type: ignore[untyped-decorator]
def statistics(**_later: object) -> None:
    """Count lexemes anew where they have changed."""
    maintenance.refresh_statistics(runtime.current())


@app.task(name="larder.upkeep.build", soft_time_limit=7000, time_limit=7200)  # type: ignore[untyped-decorator]
def build(**_later: object) -> None:
    """Build the indexes that were put off until the first load is in."""
    maintenance.build_indexes(runtime.current())


@app.task(name="larder.upkeep.trim")  # type: ignore[untyped-decorator]
def trim(**_later: object) -> None:
    """Keep caches, runs, dead letters and tombstones within their limits, and the indexes built."""
    maintenance.trim(runtime.current())
    index_switch.drop_old(runtime.current())
    maintenance.build_indexes(runtime.current())


@app.task(name="larder.upkeep.canary")  # type: ignore[untyped-decorator]
def canary(queue: str, **_later: object) -> None:
    """Show that this queue is served: the time of the last one done is on the status screen."""
    maintenance.sing(runtime.current(), queue)
