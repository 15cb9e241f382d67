"""An HTTP transport whose answers come whole within their time, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import httpx2


class Timely(httpx2.BaseTransport):
    """Bounds a whole call by its read timeout; httpx2 itself starts that clock anew with every few bytes.

    A server that drips for a while and then falls silent may take up to twice as long.
    """

    def __init__(
        self,
        inner: httpx2.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `inner` the host is contacted directly, whatever proxies the environment names."""
        self.inner = inner or httpx2.HTTPTransport()
        self.clock = clock

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it on; connecting, sending and waiting share the time.

        Raises:
            httpx2.ReadTimeout: the time is up and the answer is not whole.
        """
        wanted = request.extensions.get("timeout", {})
        seconds = wanted.get("read")
        if seconds is None:
            return self.inner.handle_request(request)
        ends = self.clock() + seconds
        request.extensions = {**request.extensions, "timeout": _Left(ends, self.clock, wanted)}
        response = self.inner.handle_request(request)
        return httpx2.Response(
            status_code=response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, ends, self.clock),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Let go of the connections."""
        self.inner.close()


class _Left(dict[str, float]):
    """Timeouts that are asked for as each part of a call begins: what is left by then, or the part's own."""

    def __init__(self, ends: float, clock: Callable[[], float], wanted: Mapping[str, float | None]) -> None:
        super().__init__()
        self._ends, self._clock, self._wanted = ends, clock, wanted

    def get(self, part: str, _default: object = None) -> float:
        left = max(self._ends - self._clock(), 0.001)
        return min(self._wanted.get(part) or left, left)


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: object, ends: float, clock: Callable[[], float]) -> None:
        assert isinstance(stream, httpx2.SyncByteStream)  # noqa: S101 (a synchronous transport has no other)
        self._stream, self._ends, self._clock = stream, ends, clock

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            if self._clock() > self._ends:
                raise httpx2.ReadTimeout("the answer is not whole in time")
            yield part

    def close(self) -> None:
        self._stream.close()
