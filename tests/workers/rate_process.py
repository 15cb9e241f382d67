"""A worker that calls as often as it may for a while, and tells between which times each grant was given."""

from __future__ import annotations

import json
import sys
import time

from pipeline.embedding.budget import Cost
from pipeline.errors import BudgetSpent
from workers.limits.limiters import ProviderRateLimiter, RateLimits


def main(broker: str, name: str, limits: dict[str, float], texts: int, seconds: float) -> None:
    rate = ProviderRateLimiter(broker, name, RateLimits(**limits), chance=lambda: 0.5)  # type: ignore[arg-type]
    granted, end = [], time.time() + seconds
    while time.time() < end:
        before = time.time()
        try:
            rate.take(Cost(texts=texts, tokens=0))
            granted.append((before, time.time()))
        except BudgetSpent as error:
            time.sleep(error.retry_after or 0)
    print(json.dumps(granted))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
