"""Folders that several processes use: one writes at a time, and readers notice writes of others."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StoreUnavailable

POLL_SECONDS = 0.02


class SharedFolder:
    """A folder with a lock file, whose content is the number of writes; the lock ends with its process."""

    def __init__(self, folder: Path, timeout: float) -> None:
        """`timeout`: seconds to wait for the lock."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder
        self._file = os.open(folder / "larder.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._timeout = timeout
        self._threads = threading.RLock()
        """A lock of a file holds for the whole process."""

    @contextmanager
    def locked(self, *, writes: bool) -> Iterator[int]:
        """The number of writes so far, one more after a block that writes.

        Raises:
            StoreUnavailable: another process keeps the folder.
        """
        end = time.monotonic() + self._timeout
        if not self._threads.acquire(timeout=self._timeout):
            raise _busy(self.path)
        try:
            self._lock(fcntl.LOCK_EX if writes else fcntl.LOCK_SH, end)
            try:
                number = int(os.pread(self._file, 32, 0) or b"0")
                try:
                    yield number
                finally:
                    if writes:  # also after an error, since a part may be written
                        os.pwrite(self._file, b"%d" % (number + 1), 0)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _lock(self, kind: int, end: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise _busy(self.path) from None
                time.sleep(POLL_SECONDS)
            else:
                return


def _busy(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"another process keeps the folder {path.name}", fix="try again")
