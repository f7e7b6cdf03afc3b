"""A server whose model is divided among processes: `serve --parallel tensor=N`.

Every process has an engine. The first process answers HTTP. Before each step it sends the new and the canceled requests
to all others, and then all make the step. So every engine has the same batch and chooses the same tokens: they depend
on the requests, on their seeds and on the logits, which are the same in all processes.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from typing_extensions import override

from glassformer.decoding import Engine, EngineRequest, GenerationConfig
from glassformer.serve.api_errors import ApiError
from glassformer.training.processes import Processes, SharedError

_LOG = logging.getLogger(__name__)
NO_LIMIT = timedelta(days=3650)
"""Longest wait for the next request."""
ALONE = "the server was started with --parallel, which generates text only"


class NewRequest(NamedTuple):
    """A request as the first process sends it to all other processes."""

    number: int
    tokens: list[int]
    config: GenerationConfig
    with_log_probs: bool
    n_top_log_probs: int


class StepChanges(NamedTuple):
    """Changes since the step before: requests that start, and the numbers of those that were canceled."""

    requests: list[NewRequest]
    canceled: list[int]


class MirroredEngine:
    """An engine that makes the same steps in every process. It knows requests by their number."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.requests: dict[int, EngineRequest] = {}

    def step(self, changes: StepChanges, on_token: Callable[[int], Any] = lambda number: None) -> None:
        """Start and cancel requests, then make a step.

        `on_token` returns the function to call for each token of a request.
        """
        self.requests = {number: request for number, request in self.requests.items() if not request.is_done}
        for number in changes.canceled:
            if number in self.requests:
                self.requests[number].cancel()
        started = {
            new.number: EngineRequest(
                new.tokens, new.config, on_token(new.number), new.with_log_probs, new.n_top_log_probs
            )
            for new in changes.requests
        }
        self.requests |= started
        self.engine.enqueue([*started.values()])
        self.engine.step()


class LeadingEngine(Engine):
    """The engine of the first process. Its requests are those of clients; `send` gets them before each step.

    Each request has a twin in a `MirroredEngine`, because a client may submit or cancel at any time, but all processes
    have to hear of it before the same step. If a step fails, `on_fault` is called, because the others may have made it.
    """

    def __init__(
        self, model: Any, *, send: Callable[[StepChanges], None], on_fault: Callable[[str], None], **options: Any
    ):
        super().__init__(model, **options)
        self._send, self._on_fault = send, on_fault
        self._mirror = MirroredEngine(Engine(model, **options))
        self._pending: dict[int, EngineRequest] = {}
        """The requests that all processes know of, until they are done."""
        self._canceled: set[int] = set()
        self._count = 0

    @override
    def submit(self, *arguments: Any, **options: Any) -> EngineRequest:
        if options.get("make_constraint") is not None:
            raise ApiError(400, f"response_format needs one process: {ALONE}", param="response_format")
        return super().submit(*arguments, **options)

    @property
    @override
    def is_idle(self) -> bool:
        return not (self._waiting or self._pending)

    @property
    @override
    def n_rows(self) -> int:
        return self._mirror.engine.n_rows

    @override
    def close(self) -> None:
        super().close()
        self._mirror.engine.close()

    @override
    def _step(self) -> None:
        try:
            changes = self._changes()
            self._send(changes)
            self._mirror.step(changes, lambda number: self._pending[number].on_token)
        except Exception as error:
            _LOG.exception("a step failed")
            self._on_fault(f"a step failed: {str(error).strip() or type(error).__name__}")
            raise
        self._copy_progress()

    def _changes(self) -> StepChanges:
        """Return the requests that begin now. While some of them wait for free rows of the batch, none follow."""
        begun: list[EngineRequest] = []
        if not self._mirror.engine._waiting:
            with self._lock:
                begun.extend(self._waiting)
                self._waiting.clear()
        new = []
        for request in begun:
            self._count += 1
            self._pending[self._count] = request
            new.append(
                NewRequest(self._count, request.tokens, request.config, request.with_log_probs, request.n_top_log_probs)
            )
        canceled = [number for number, request in self._pending.items() if request.is_canceled]
        fresh = [number for number in canceled if number not in self._canceled]
        self._canceled = set(canceled)
        return StepChanges(new, fresh)

    def _copy_progress(self) -> None:
        """Copy the progress of each twin to the request of the client."""
        for number, request in list(self._pending.items()):
            twin = self._mirror.requests[number]
            request.rows, request.texts, request.n_reused, request.error = (
                twin.rows,
                twin.texts,
                twin.n_reused,
                twin.error,
            )
            if twin.is_done:
                del self._pending[number]
                request.done.set()


class ServerProcesses:
    """The processes of one server. All of them create it, after they have loaded the model, and wait for each other."""

    def __init__(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.processes = Processes(rank, size, dist.new_group(backend="gloo", timeout=NO_LIMIT))
        self._watching = dist.new_group(backend="gloo", timeout=NO_LIMIT)
        self._lock, self._is_stopping = threading.Lock(), False
        self.processes.barrier()

    @property
    def is_leader(self) -> bool:
        """Whether this process answers HTTP."""
        return self.processes.is_leader

    def send(self, changes: StepChanges) -> None:
        """Send the changes before a step to all other processes."""
        self.processes.broadcast(changes)

    def follow(self, engine: Engine) -> None:
        """Make the steps of the first process until it stops. A signal to stop is for the first process."""
        mirror, nothing = MirroredEngine(engine), cast(StepChanges | None, None)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while (changes := self.processes.broadcast(nothing)) is not None:
                mirror.step(changes)
        except RuntimeError as error:
            raise SharedError(f"the first process of the server has ended: {error}") from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch(self) -> None:
        """End the server with a sentence when another process ends, which the first one may not notice by itself."""
        for rank in range(1, self.processes.size):
            threading.Thread(target=self._watch, args=(rank,), name=f"watch {rank}", daemon=True).start()

    def _watch(self, rank: int) -> None:
        with suppress(RuntimeError):
            dist.recv(torch.zeros(1), src=rank, group=self._watching)  # never sent: it fails when the process ends
        self.end(f"process {rank} of {self.processes.size} has ended")

    def end(self, reason: str) -> None:
        """End this process with a sentence, unless it is stopping or ending."""
        with self._lock:
            is_first, self._is_stopping = not self._is_stopping, True
        if is_first:
            sentence = f"{reason}. The server ends, because each process has a part of the model"
            print(f"glassformer: {sentence}", file=sys.stderr, flush=True)
            os._exit(1)

    def stop(self) -> None:
        """End all other processes."""
        with self._lock:
            self._is_stopping = True
        with suppress(RuntimeError):
            self.processes.broadcast(None)
