"""What one HTTP request lets the engine write, and how its coroutine hears of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.step_loop import Reason


class WrittenPiece(NamedTuple):
    """The tokens that a step has added to one text."""

    prompt: int
    """The index of the prompt among those of the HTTP request."""
    sample: int
    """The index of the text among the samples of the prompt."""
    text: str
    """The text that has become final; empty while a character is incomplete or may begin a stop string."""
    tokens: list[int]
    log_probs: list[float]
    """The log-probability of each of `tokens`; empty unless the request asked for them."""
    top_log_probs: list[list[tuple[int, float]]]
    reason: Reason | None
    """Why the text ended; None if it continues."""


@dataclass(eq=False)
class _Delivered:
    """How much of a text has been delivered."""

    n_characters: int = 0
    n_tokens: int = 0
    is_over: bool = False


@dataclass(eq=False)
class EngineRun:
    """The engine's requests of one HTTP request, one per prompt.

    The computing thread calls `collect` after each step and hands the result to the event loop, which calls `deliver`.
    A coroutine awaits `wait`, or iterates over `pieces` if the run was made with `streams`.
    """

    requests: Sequence[EngineRequest]
    streams: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    """When the first token was written, by the clock of `started`."""
    n_tokens: int = 0
    """How many tokens have been written so far."""

    def __post_init__(self) -> None:
        self._delivered: dict[tuple[int, int], _Delivered] = {}
        self._pending: list[WrittenPiece] = []
        self._is_over = False
        self._changed = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether every request is done: complete, failed or canceled."""
        return all(request.is_done for request in self.requests)

    @property
    def has_ended(self) -> bool:
        """Whether the run is over without an error, and nothing is left for `pieces` to yield."""
        return self._is_over and not self._pending and all(request.error is None for request in self.requests)

    def cancel(self) -> None:
        """Stop all requests. Their rows in the batch are free after the next step."""
        for request in self.requests:
            if not request.is_done:
                request.cancel()

    def collect(self) -> tuple[list[WrittenPiece], bool]:
        """Return the pieces written since the last call, and whether the run is over. For the computing thread."""
        is_done = self.is_done  # before the texts are read: nothing is added to them afterwards
        count = sum(len(row.written) for request in self.requests for row in request.rows)
        if count and self.first_token is None:
            self.first_token = time.monotonic()
        self.n_tokens = count
        found = [] if not self.streams else list(filter(None, map(self._piece_of, *self._rows())))
        return found, is_done

    def deliver(self, pieces: list[WrittenPiece], is_over: bool) -> None:
        """Take what `collect` returned. For the event loop."""
        self._pending += pieces
        self._is_over = self._is_over or is_over
        self._changed.set()

    async def wait(self) -> None:
        """Wait until the run is over. Raises the error of a request that failed."""
        while not self._is_over:
            await self._changed.wait()
            self._changed.clear()
        self._raise()

    async def pieces(self) -> AsyncIterator[list[WrittenPiece]]:
        """Yield the pieces of texts while they are written. Raises the error of a request that failed."""
        while True:
            found, self._pending = self._pending, []
            if found:
                yield found
            elif self._is_over:
                break
            else:
                await self._changed.wait()
                self._changed.clear()
        self._raise()

    def _raise(self) -> None:
        error = next((request.error for request in self.requests if request.error is not None), None)
        if error is not None:
            raise error

    def _rows(self) -> tuple[list[int], list[int]]:
        places = [(number, row) for number, request in enumerate(self.requests) for row in range(len(request.rows))]
        return [number for number, _ in places], [row for _, row in places]

    def _piece_of(self, number: int, sample: int) -> WrittenPiece | None:
        row = self.requests[number].rows[sample]
        delivered = self._delivered.setdefault((number, sample), _Delivered())
        if delivered.is_over or (len(row.written) == delivered.n_tokens and row.reason is None):
            return None
        first, last = delivered.n_tokens, len(row.written)
        text = row.text[delivered.n_characters :]
        delivered.n_characters, delivered.n_tokens, delivered.is_over = len(row.text), last, row.reason is not None
        with_log_probs = row.with_log_probs
        return WrittenPiece(
            number,
            sample,
            text,
            row.written[first:last],
            row.log_probs[first:last] if with_log_probs else [],
            row.top_log_probs[first:last] if with_log_probs else [],
            row.reason,
        )
