"""From a configured source to its connector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from connectors import open_source
from pipeline.documents import Source
from workers.settings import Settings, SourceSettings

if TYPE_CHECKING:
    from connectors.web import RequestLimiter


def source_of(settings: Settings, source: SourceSettings, limiter: Callable[[], RequestLimiter]) -> Source:
    """The connector of a configured source; nothing is read yet. `limiter` is asked for by services only.

    Raises:
        ConfigurationError: no connector reads this type, or what it is told is wrong.
    """
    return open_source(source.within(settings.context_of(source, limiter)))
