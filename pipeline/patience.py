"""Connections that give up on a server which keeps them open and says nothing."""

from __future__ import annotations

import time
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus


class PatientConnection(psycopg.Connection[Any]):
    """A connection on which no single wait for the server takes longer than `patience` seconds.

    A frozen server, or a network that swallows packets, ends no connection: without this its client waits for ever.
    """

    patience: float | None = None

    @classmethod
    def opened(cls, patience: float, *args: Any, **parameters: Any) -> Self:
        """As `connect`; the server may take `patience` seconds for that, too."""
        made = cls.connect(*args, **{**parameters, "connect_timeout": max(2, round(patience))})
        made.patience = patience
        return made

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """What the driver calls to wait for the server."""
        begun, most = time.monotonic(), self.patience if timeout is None else timeout
        try:
            return super().wait(gen, interval, most)
        except psycopg.OperationalError as error:
            active = self.pgconn.transaction_status == TransactionStatus.ACTIVE
            if most is None or not active or time.monotonic() - begun < most:
                raise
            # Half an answer may still come: nothing can be asked on this connection any more, not even to roll back.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {most:g} seconds") from error
