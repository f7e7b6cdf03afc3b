"""Limit how many requests per minute a client may send, by a token bucket per client."""

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_CLIENTS = 10_000
"""The most clients that are remembered. The one that was silent for the longest time is forgotten first."""


class RateLimit:
    """Allows `per_minute` requests per minute of each client, all of which may come at once; 0 is no limit."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic):
        self.per_minute, self._clock = per_minute, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """For each client, how many requests it may send now, and when that was computed."""

    def wait_for(self, client: str) -> float:
        """Count a request of a client. Return 0 if it is allowed, else the seconds until the next one is."""
        if not self.per_minute:
            return 0.0
        now, per_second = self._clock(), self.per_minute / 60
        left, then = self._buckets.pop(client, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - then) * per_second)
        is_allowed = left >= 1
        self._buckets[client] = left - is_allowed, now
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) / per_second
