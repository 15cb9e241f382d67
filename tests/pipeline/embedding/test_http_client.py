"""A call is over when its time is, however its parts come."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from pipeline.embedding.http_client import DeadlineTransport
from pipeline.errors import EmbedderRefused


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(httpx2.BaseTransport):
    """Takes four seconds to the first byte, and then one for each part."""

    def __init__(self, clock: Clock, parts: int) -> None:
        self.clock = clock
        self.parts = parts
        self.left: list[float] = []
        self.closed = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        timeouts = request.extensions["timeout"]
        self.left.append(timeouts.get("connect"))
        self.clock.now += 4
        self.left.append(timeouts.get("read"))
        return httpx2.Response(200, stream=Parts(self.clock, self.parts), headers={"x-kept": "yes"})

    def close(self) -> None:
        self.closed = True


class Parts(httpx2.SyncByteStream):
    def __init__(self, clock: Clock, parts: int) -> None:
        self.clock = clock
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.parts):
            self.clock.now += 1
            yield b"x"


def call(slow: Slow, seconds: float = 10) -> httpx2.Response:
    with httpx2.Client(transport=DeadlineTransport(slow, slow.clock)) as client:
        return client.get("http://127.0.0.1/", timeout=seconds)


def test_connecting_and_waiting_share_the_time() -> None:
    slow = Slow(Clock(), parts=6)
    answer = call(slow)
    assert (answer.text, answer.headers["x-kept"]) == ("xxxxxx", "yes")
    assert slow.left == [10, 6]
    assert slow.closed


def test_an_answer_that_drips_beyond_the_time_is_given_up() -> None:
    slow = Slow(Clock(), parts=1000)
    with pytest.raises(httpx2.ReadTimeout):
        call(slow)
    assert slow.clock.now == 111


def test_when_the_time_is_up_no_part_is_waited_for() -> None:
    slow = Slow(Clock(), parts=1)
    with pytest.raises(httpx2.ReadTimeout):
        call(slow, seconds=3)
    assert slow.left == [3, 0.001]


@pytest.mark.parametrize("name", ["2852039166", "0xa9fea9fe", "[::ffff:a9fe:a9fe]"])
def test_a_name_that_leads_to_where_clouds_hand_out_keys_is_not_followed(name: str) -> None:
    """As the resolver of this machine reads these names."""
    with (
        httpx2.Client(transport=DeadlineTransport(), timeout=0.2) as client,
        pytest.raises(EmbedderRefused, match="hands out keys"),
    ):
        client.get(f"http://{name}/latest/meta-data/")
