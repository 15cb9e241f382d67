"""The ordinary command line, whose workers take no message while the file `deaf` is there.

Started by the tests of deaf workers in place of `larder`; everything else is the product's own code, with shorter
answer_timeout.
"""

from __future__ import annotations

from pathlib import Path

from workers.cli import main
from workers.processes import heartbeat
from workers.queue import app

DEAF = Path("deaf")


class QoS(app.QoS):
    """As the real one, but for those that are deaf."""

    def can_consume(self) -> bool:
        return not DEAF.exists() and bool(super().can_consume())  # type: ignore[no-untyped-call]


app.QoS = QoS  # type: ignore[misc]
heartbeat.DEAF_LOOKS = 4

if __name__ == "__main__":
    main()
