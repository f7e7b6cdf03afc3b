"""How often the computing thread hands new tokens to the event loop.

Python runs one thread at a time: while the event loop writes events for many clients, the steps of the model wait. So
the loop rests between deliveries in proportion to the time that a delivery took. In the meantime tokens gather, and the
next event of each client carries several of them. On a CPU a step takes longer than that, and nothing gathers.
"""

import asyncio
import time
from collections.abc import Callable

REST = 9.0
"""The loop rests this many times as long as a delivery took, so deliveries take at most a tenth of the time. With 64
clients that is an event about every 50 ms for each; the rest of the time is for new requests."""
MAX_REST = 0.05
"""The longest rest in seconds. The time of a delivery includes requests that the loop reads in between, and after 64 of
them the clients would wait for half a second."""


class DeliveryPace:
    """Says when the next delivery is due. The computing thread and the event loop share it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._due: float | None = 0.0
        """When the next delivery may start; None while the loop works on one."""

    @property
    def is_due(self) -> bool:
        """Whether the loop has finished the last delivery and has rested after it."""
        return self._due is not None and self._clock() >= self._due

    def start(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
        """Let the loop call `deliver`, and time it. Raises RuntimeError if the loop is closed."""
        self._due = None
        try:
            loop.call_soon_threadsafe(self._deliver, loop, deliver)
        except RuntimeError:
            self._due = 0.0
            raise

    def _deliver(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
        began = self._clock()
        try:
            deliver()  # wakes the coroutines that send
        finally:
            loop.call_soon(self._finish, began)  # they run before this, because they were woken before

    def _finish(self, began: float) -> None:
        now = self._clock()
        self._due = now + min(MAX_REST, REST * (now - began))
