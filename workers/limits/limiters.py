"""Limiters in Valkey, shared by all workers: requests to a host, and calls of an embedding provider."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from connectors.web.limiter import BUSY_SECONDS, TICKET_SECONDS, RequestLimits, refusal
from pipeline.embedding.budget import Cost
from pipeline.errors import BudgetSpent, SourceUnavailable
from workers.queue.broker import AWAY, CLOSING, FIX, Scripts

HOST_PREFIX = "larder:requests:"

# KEYS: bucket, tickets, closed. ARGV: tokens per second (0: no limit), burst, resume_tokens, at once, this ticket, its
# life in seconds. Returns {why, seconds}; why is "in" for a ticket.
ENTER = (
    CLOSING
    + """
local rate, burst, resume_tokens = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local at_once, life = tonumber(ARGV[4]), tonumber(ARGV[6])

if closed(KEYS[3]) > 0 then return answer('closed', closed(KEYS[3])) end

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now))
-- Tickets further in the future come from a clock that was set back meanwhile; so does such a bucket below.
redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.6f', now + 2 * life), '+inf')
if redis.call('ZCARD', KEYS[2]) >= at_once then return answer('busy', 0) end

if rate > 0 then
  local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
  local since = now - (tonumber(bucket[2]) or now)
  if since < 0 then
    since = 0
    redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now))
  end
  local tokens = math.min(burst, (tonumber(bucket[1]) or burst) + since * rate)
  if tokens < 1 then
    return answer('empty', math.max(0.1, (resume_tokens - tokens) / rate))
  end
  redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens - 1), 'at', string.format('%.6f', now))
  -- Expires when it would be full again.
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
    """A `connectors.web.RequestLimiter` shared by all processes with the same broker; connects on first use.

    A key is the name of a host and not secret: it is readable in Valkey.
    """

    def __init__(self, broker_url: str) -> None:
        self._scripts = Scripts(broker_url, HOST_PREFIX)
        self.disconnect = self._scripts.disconnect

    def acquire(self, key: str, limits: RequestLimits) -> str:
        """A ticket for one request.

        Raises:
            RateLimited: no ticket now; `retry_after` is in seconds.
            SourceUnavailable: Valkey cannot be reached, so that the limits are unknown.
        """
        ticket, rate = uuid4().hex, (limits.per_minute or 0) / 60
        arguments = (rate, limits.burst, limits.resume_tokens, limits.at_once, ticket, TICKET_SECONDS)
        with _counted():
            why, seconds = self._scripts.run(ENTER, key, "bucket tickets closed", *arguments)
        if why == b"in":
            return ticket
        raise refusal(key, why.decode(), BUSY_SECONDS if why == b"busy" else float(seconds))

    def release(self, key: str, ticket: str) -> None:
        """Return a ticket. Never raises; a lost ticket expires."""
        with suppress(*AWAY):
            self._scripts.run(LEAVE, key, "tickets", ticket)

    def pause(self, key: str, seconds: float) -> None:
        """Refuse all requests for `seconds`; a shorter pause never shortens a longer one.

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
        # No cause: a client's error may contain the address with its password.
        message = f"the request limiter in Valkey cannot be reached ({type(error).__name__})"
        raise SourceUnavailable(message, fix=FIX) from None


PROVIDER_PREFIX = "larder:embed:"
AWAY_SECONDS = 5.0
"""Seconds to wait for an unreachable Valkey."""
SLOTS = 60
"""Slots of a window; a grant counts until its slot ends, so that more slots waste less."""
PROBE_SECONDS = 60.0
"""Seconds that one caller may probe a provider before another may."""
LONGEST_SECONDS = 86_400.0
"""Longest pause of a provider, whatever it asks for."""

# KEYS: slots, closed, failures, probing. ARGV: window, slot, guard, requests, texts, tokens, their limits (0: none),
# failures in a row that mean an outage, seconds of a probe. Returns {why, seconds}; {"in", slot} for a grant.
TAKE = (
    CLOSING
    + """
local window, slot, guard = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

if closed(KEYS[2]) > 0 then return answer('closed', closed(KEYS[2])) end
local doubtful = tonumber(redis.call('GET', KEYS[3]) or '0') >= tonumber(ARGV[10])
if doubtful and redis.call('EXISTS', KEYS[4]) == 1 then return answer('probing', 1) end

local entries = redis.call('HGETALL', KEYS[1])
local slots, used = {}, {0, 0, 0}
for i = 1, #entries, 2 do
  local at = tonumber(entries[i])
  local free_at = (at + 1) * slot + window + guard
  if free_at <= now or at * slot > now + window then  -- or from a clock that was set back
    redis.call('HDEL', KEYS[1], entries[i])
  else
    local a, b, c = string.match(entries[i + 1], '(%d+) (%d+) (%d+)')
    local amounts = {tonumber(a), tonumber(b), tonumber(c)}
    for n = 1, 3 do used[n] = used[n] + amounts[n] end
    slots[#slots + 1] = {free_at, amounts}
  end
end
table.sort(slots, function(a, b) return a[1] < b[1] end)

local function full(cost)
  for n = 1, 3 do
    local limit = tonumber(ARGV[6 + n])
    -- A cost above the whole limit is admitted when nothing else is in the window.
    if limit > 0 and used[n] + math.min(cost[n], limit) > limit then return true end
  end
  return false
end

local cost = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local wait = 0
for _, one in ipairs(slots) do
  if not full(cost) then break end
  for n = 1, 3 do used[n] = used[n] - one[2][n] end
  wait = one[1] - now
end
if wait > 0 then return answer('spent', wait) end

local at = string.format('%.0f', math.floor(now / slot))
local a, b, c = string.match(redis.call('HGET', KEYS[1], at) or '0 0 0', '(%d+) (%d+) (%d+)')
redis.call('HSET', KEYS[1], at, string.format('%.0f %.0f %.0f', a + cost[1], b + cost[2], c + cost[3]))
redis.call('PEXPIRE', KEYS[1], math.ceil((window + guard + 2 * slot) * 1000))
if doubtful then redis.call('SET', KEYS[4], '1', 'PX', math.ceil(tonumber(ARGV[11]) * 1000)) end
return {'in', at}
"""
)

# KEYS: closed, failures, probing. ARGV: requested seconds (-1: none), base, longest, chance, failures in a row that
# mean an outage. Returns the seconds for which calls are closed.
FAILED = (
    CLOSING
    + """
local requested = tonumber(ARGV[1])
redis.call('DEL', KEYS[3])
local seconds = requested
if requested < 0 then
  -- Failures of calls already under way are no news and must not lengthen the wait.
  if closed(KEYS[1]) > 0 then return tostring(closed(KEYS[1])) end
  local failures = redis.call('INCR', KEYS[2])
  redis.call('PEXPIRE', KEYS[2], 86400000)
  local over = failures - tonumber(ARGV[5])
  if over < 0 then return '0' end
  local step = math.min(tonumber(ARGV[3]), tonumber(ARGV[2]) * 2 ^ math.min(over, 30))
  seconds = step / 2 + step / 2 * tonumber(ARGV[4])
end
close(KEYS[1], seconds)
return tostring(closed(KEYS[1]))
"""
)

# KEYS: slots, failures, probing. ARGV: slot of the grant, tokens to add. Corrects the tokens of the grant up or down.
ANSWERED = """
redis.call('DEL', KEYS[2], KEYS[3])
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if entry and ARGV[2] ~= '0' then
  local a, b, c = string.match(entry, '(%d+) (%d+) (%d+)')
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %s %.0f', a, b, math.max(0, c + ARGV[2])))
end
return 0
"""

# KEYS: closed, failures, probing. Returns {seconds closed, failures in a row, 1 during a probe}.
LOOK = (
    CLOSING
    + """
return {tostring(closed(KEYS[1])), redis.call('GET', KEYS[2]) or '0', redis.call('EXISTS', KEYS[3])}
"""
)


@dataclass(frozen=True, kw_only=True)
class RateLimits:
    """Limits of one provider per window; None means no limit."""

    requests: int | None = None
    texts: int | None = None
    tokens: int | None = None
    query_share: float = 0.1
    """Share of each limit reserved for queries."""
    window: float = 60.0
    """Seconds of the provider's window."""
    failures: int = 3
    """Failures in a row, of any workers, that mean an outage."""
    base: float = 2.0
    """Seconds of the first pause after an outage; doubled with each further failure."""
    longest: float = 600.0

    def most(self, limit: int | None, *, query: bool) -> int:
        """The limit for queries or documents; 0 without a limit."""
        if limit is None:
            return 0
        return limit if query else max(1, int(limit * (1 - self.query_share)))


@dataclass(frozen=True, kw_only=True)
class ProviderState:
    """State of a provider."""

    closed_seconds: float = 0.0
    failures: int = 0
    doubtful: bool = False
    """True after an outage until the first answer: one caller at a time."""


_REFUSALS = {
    "closed": "calls of the embedding provider are paused for {:.0f} s more",
    "probing": "the embedding provider was away, and another worker is checking whether it is back",
    "spent": "the embedding limit per minute is used up",
}
_GOES_ON = "nothing to do: work continues automatically"
_RAISE = "; raise requestsPerMinute, textsPerMinute or tokensPerMinute if the provider allows more"


class ProviderRateLimiter:
    """Rate limiter of one provider and key, shared by all processes with the same broker; connects on first use."""

    def __init__(
        self, broker_url: str, name: str, limits: RateLimits, *, chance: Callable[[], float] = random.random
    ) -> None:
        """`name` identifies provider and key; it is readable in Valkey and must not contain the key."""
        self._scripts = Scripts(broker_url, PROVIDER_PREFIX)
        self._name = name
        self.disconnect = self._scripts.disconnect
        self.limits = limits
        self._chance = chance

    def take(self, cost: Cost) -> str:
        """Reserve one call; returns its slot, for `answered`.

        Raises:
            BudgetSpent: no call now; `retry_after` is in seconds. Also if Valkey cannot be reached and the call is for
                documents, since the usage of other workers is unknown.
        """
        limit = self.limits
        most = [limit.most(n, query=cost.query) for n in (limit.requests, limit.texts, limit.tokens)]
        # The guard: a later call may reach the provider before an earlier one.
        timing = (limit.window, limit.window / SLOTS, max(limit.window / SLOTS, 0.25))
        arguments = (*timing, 1, cost.texts, cost.tokens, *most, limit.failures, PROBE_SECONDS)
        try:
            why, seconds = self._scripts.run(TAKE, self._name, "slots closed failures probing", *arguments)
        except AWAY as error:
            if cost.query:
                return ""  # one text that a caller waits for
            # No cause: a client's error may contain the address with its password.
            message = f"the embedding budget in Valkey cannot be reached ({type(error).__name__})"
            raise BudgetSpent(message, fix=FIX, retry_after=AWAY_SECONDS) from None
        if why == b"in":
            return str(seconds.decode())
        fix = _GOES_ON + (_RAISE if why == b"spent" else "")
        wait = max(0.05, float(seconds))
        raise BudgetSpent(_REFUSALS[why.decode()].format(float(seconds)), fix=fix, retry_after=wait)

    def failed(self, retry_after: float | None) -> float:
        """Record a failed or refused call; returns for how many seconds calls are paused, 0 if they are not."""
        limit = self.limits
        requested_seconds = -1.0 if retry_after is None else min(max(retry_after, 0.0), LONGEST_SECONDS)
        with suppress(*AWAY):
            arguments = (requested_seconds, limit.base, limit.longest, self._chance(), limit.failures)
            return float(self._scripts.run(FAILED, self._name, "closed failures probing", *arguments))
        return 0.0

    def answered(self, slot: str = "", more_tokens: int = 0) -> None:
        """Record an answer, of any kind, which ends an outage; `more_tokens` corrects the tokens of the grant."""
        with suppress(*AWAY):
            self._scripts.run(ANSWERED, self._name, "slots failures probing", slot, more_tokens)

    def state(self) -> ProviderState:
        """State of the provider; the default state if Valkey is away, since `take` reports that."""
        with suppress(*AWAY):
            closed, failures, probing = self._scripts.run(LOOK, self._name, "closed failures probing")
            doubtful = int(failures) >= self.limits.failures or bool(probing)
            return ProviderState(closed_seconds=float(closed), failures=int(failures), doubtful=doubtful)
        return ProviderState()
