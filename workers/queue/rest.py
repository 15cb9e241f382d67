"""Servers that do not answer are left alone for a while: not everybody shall wait for one in vain."""

from __future__ import annotations

import time

REST_SECONDS = 5.0


class Rest:
    """Times until which a server, or any of several by address, is not asked."""

    def __init__(self, seconds: float = REST_SECONDS) -> None:
        self.seconds = seconds
        self._until: dict[str, float] = {}

    def holds(self, server: str = "") -> bool:
        """True if it was asked in vain a moment ago."""
        return time.monotonic() < self._until.get(server, float("-inf"))

    def begin(self, server: str = "") -> None:
        """Note that it was asked in vain: its rest begins."""
        self._until[server] = time.monotonic() + self.seconds

    def end(self, server: str = "") -> None:
        """Let it be asked again."""
        self._until.pop(server, None)
