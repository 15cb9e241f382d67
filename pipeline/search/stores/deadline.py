"""Searches of clients that try again by themselves, ended in time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

from pipeline.errors import StoreUnavailable

T = TypeVar("T")

SEARCH_SECONDS = 2.0
"""Most seconds that a search waits for a service."""


def within(timeout: float, store: str, read: Callable[[], T]) -> T:
    """What `read` returns within `timeout` seconds, SEARCH_SECONDS at most; its thread goes on, so it must not write.

    Raises:
        StoreUnavailable: it takes longer.
    """
    seconds = min(SEARCH_SECONDS, timeout)
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(read())
        except BaseException as error:  # noqa: BLE001 (raised by the caller's thread)
            raised.append(error)

    thread = Thread(target=run, name=f"search of {store}", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise StoreUnavailable(f"{store} did not answer in {seconds:g} s", fix="larder stores check")
    return returned[0]
