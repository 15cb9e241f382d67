"""Servers of vector stores on 127.0.0.1, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def server_of(name: str) -> Iterator[str]:
    """The address of a running server; empty for stores that need none."""
    yield ""
