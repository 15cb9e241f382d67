"""The limiter of requests to foreign hosts that all workers share, in Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from connectors.web.limiter import BUSY_SECONDS, TICKET_SECONDS, RequestLimits, refusal
from pipeline.errors import SourceUnavailable
from workers.queue.broker import AWAY, CLOSING, FIX, Scripts

PREFIX = "larder:requests:"

# KEYS: bucket, tickets, closed. ARGV: tokens per second (0: no limit), burst, handful, at once, this ticket, its life
# in seconds. Returns {why, seconds}; why is "in" for a ticket.
ENTER = (
    CLOSING
    + """
local rate, burst, handful = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local at_once, life = tonumber(ARGV[4]), tonumber(ARGV[6])

if closed(KEYS[3]) > 0 then return answer('closed', closed(KEYS[3])) end

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now))
if redis.call('ZCARD', KEYS[2]) >= at_once then return answer('busy', 0) end

if rate > 0 then
  local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
  local since = math.max(0, now - (tonumber(bucket[2]) or now))
  local tokens = math.min(burst, (tonumber(bucket[1]) or burst) + since * rate)
  if tokens < 1 then
    return answer('empty', math.max(0.1, (handful - tokens) / rate))
  end
  redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens - 1), 'at', string.format('%.6f', now))
  -- Forgotten when it would be full again.
  redis.call('PEXPIRE', KEYS[1], math.ceil((burst / rate + 60) * 1000))
end

redis.call('ZADD', KEYS[2], string.format('%.6f', now + life), ARGV[5])
redis.call('PEXPIRE', KEYS[2], math.ceil(life * 1000) + 60000)
return answer('in', 0)
"""
)

# KEYS: closed. ARGV: seconds.
CLOSE = (
    CLOSING
    + """
close(KEYS[1], tonumber(ARGV[1]))
return 0
"""
)

LEAVE = "return redis.call('ZREM', KEYS[1], ARGV[1])"


class ValkeyRequestLimiter:
    """A connectors.web.RequestLimiter for all processes with the same broker; connects at the first use.

    A key is the name of a host, never anything secret: it is readable in Valkey.
    """

    def __init__(self, broker_url: str) -> None:
        self._scripts = Scripts(broker_url, PREFIX)
        self.disconnect = self._scripts.disconnect

    def acquire(self, key: str, limits: RequestLimits) -> str:
        """A ticket for one request.

        Raises:
            RateLimited: not now; `retry_after` says in how many seconds.
            SourceUnavailable: Valkey cannot be reached, and who does not know the limits does not ask.
        """
        ticket, rate = uuid4().hex, (limits.per_minute or 0) / 60
        asked = (rate, limits.burst, limits.handful, limits.at_once, ticket, TICKET_SECONDS)
        with _counted():
            why, seconds = self._scripts.run(ENTER, key, "bucket tickets closed", *asked)
        if why == b"in":
            return ticket
        raise refusal(key, why.decode(), BUSY_SECONDS if why == b"busy" else float(seconds))

    def release(self, key: str, ticket: str) -> None:
        """The request is over. Never raises: a lost ticket dies by itself."""
        with suppress(*AWAY):
            self._scripts.run(LEAVE, key, "tickets", ticket)

    def pause(self, key: str, seconds: float) -> None:
        """Nobody enters before that time is over; a shorter close never shortens a longer one.

        Raises:
            SourceUnavailable: Valkey cannot be reached.
        """
        with _counted():
            self._scripts.run(CLOSE, key, "closed", max(0.001, seconds))


@contextmanager
def _counted() -> Iterator[None]:
    try:
        yield
    except AWAY as error:
        # No cause: a client's error may repeat the address, which holds the password.
        said = f"the limiter of requests cannot be reached in Valkey ({type(error).__name__})"
        raise SourceUnavailable(said, fix=FIX) from None
