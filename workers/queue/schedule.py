"""When a source is due next: its cron text in its time zone, told in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from croniter import croniter


def next_time(schedule: str | None, timezone: str, after: datetime) -> datetime | None:
    """The first time after `after` that the cron text names; None without a schedule.

    The text was checked when the configuration was loaded.
    """
    if not schedule:
        return None
    local = after.astimezone(ZoneInfo(timezone))
    found: datetime = croniter(schedule, local).get_next(datetime)
    return found.astimezone(UTC)
