"""The thread that computes: it steps the engine of each model, runs jobs in between, and reports to the event loop.

Everything that uses a model runs in this one thread, so that two computations do not compete for the cores. A job, such
as the vectors of some texts, runs between two steps. Jobs of the same kind that wait at the same time are joined into
one batch, so that many clients with one text each cost little more than one client with many.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from glassformer.decoding import GenerationConfig
from glassformer.decoding.engine import Engine
from glassformer.decoding.engine_request import EngineRequest
from glassformer.serve.api_errors import ApiError
from glassformer.serve.delivery_pace import DeliveryPace
from glassformer.serve.engine_frames import EngineFaultError
from glassformer.serve.engine_run import EngineRun, WrittenPiece
from glassformer.serve.remote_engine import RemoteEngine
from glassformer.serve.server_metrics import ServerMetrics

_LOG = logging.getLogger(__name__)
_Delivery = tuple[EngineRun, list[WrittenPiece], bool]
"""A run, the pieces that were written for it, and whether it is over."""
RETRY_SECONDS = 10.0
"""How long to wait before another attempt to make an engine, after one that failed."""


@dataclass(eq=False)
class Lane:
    """The engine of one model, and the runs that it works on."""

    make_engine: Callable[[], Engine]
    engine: Engine = field(init=False)
    runs: list[EngineRun] = field(default_factory=list)
    requests: list[EngineRequest] = field(default_factory=list)
    """The requests of runs and others, until they are done."""
    down_until: float | None = None
    """When another engine is made, by the monotonic clock; None if there is one that works."""

    def __post_init__(self) -> None:
        self.engine = self.make_engine()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or runs, or the end of one was not reported."""
        return bool(self.runs) or not self.engine.is_idle

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute or to report now. An engine in another process computes by itself."""
        if self.down_until is not None:
            return time.monotonic() >= self.down_until or any(run.is_done for run in self.runs)
        if isinstance(self.engine, RemoteEngine):
            return self.engine.has_reports or any(run.is_done for run in self.runs)
        return self.is_busy

    def close(self) -> None:
        """End the process of the engine, if it has one."""
        if isinstance(self.engine, RemoteEngine):
            self.engine.close()


@dataclass(eq=False)
class _Job:
    """Texts to answer, and the function that answers a list of them."""

    kind: Hashable
    texts: Sequence[Any]
    answer: Callable[[list[Any]], list[Any]]
    share: float
    """How much it takes of what may be computed between two steps."""
    future: "Future[list[Any]]" = field(default_factory=Future)


class ComputeThread(threading.Thread):
    """The computing thread. Other threads hand it work by `submit`, `open_run` and `answer`, and it wakes up."""

    def __init__(self, metrics: ServerMetrics, no_jobs: str = ""):
        super().__init__(name="compute", daemon=True)
        self.metrics = metrics
        self._no_jobs = no_jobs
        self._wake = threading.Condition()
        self._lanes: list[Lane] = []
        self._jobs: deque[_Job] = deque()
        self._is_closing = False
        self._paces: WeakKeyDictionary[asyncio.AbstractEventLoop, DeliveryPace] = WeakKeyDictionary()

    def add_lane(self, make_engine: Callable[[], Engine]) -> Lane:
        """Start to step the engine of a model."""
        lane = Lane(make_engine)
        with self._wake:
            self._lanes.append(lane)
        return lane

    def remove_lane(self, lane: Lane) -> None:
        """Forget the engine of a model that no request uses."""
        with self._wake:
            self._lanes.remove(lane)
        lane.close()

    def wake(self) -> None:
        """Look for work: an engine in another process has reported something."""
        with self._wake:
            self._wake.notify()

    @property
    def n_jobs(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def open_run(self, lane: Lane, run: EngineRun) -> None:
        """Report the progress of requests that were submitted to the engine of a lane."""
        with self._wake:
            lane.runs.append(run)
            self._wake.notify()

    def submit(
        self, lane: Lane, prompts: Sequence[Sequence[int]], config: GenerationConfig, **options: Any
    ) -> list[EngineRequest]:
        """Submit prompts to the engine of a lane, with the options of `Engine.submit`: all of them, or none.

        Raises ValueError for a prompt that the model cannot read, EngineFullError if its queue is full, and an ApiError
        with status 503 while there is no engine.
        """
        found: list[EngineRequest] = []
        try:
            for tokens in prompts:
                with self._wake:  # no request may reach an engine that is being replaced: it would never be done
                    if lane.down_until is not None:
                        raise ApiError(503, "the model failed and is being prepared again: try again in a minute")
                    found.append(lane.engine.submit(tokens, config, **options))
                    lane.requests.append(found[-1])
        except Exception:
            for request in found:
                request.cancel()
            raise
        finally:
            with self._wake:
                self._wake.notify()
        return found

    def answer(
        self, kind: Hashable, texts: Sequence[Any], answer: Callable[[list[Any]], list[Any]], *, share: float = 1.0
    ) -> "Future[list[Any]]":
        """Call `answer` with the texts in the computing thread; it returns one result per text.

        Jobs of one `kind` are joined while their shares of what may be computed between two steps sum to at most 1:
        then `answer` of the first gets the texts of several.
        Raises an ApiError with the reason `no_jobs`, if the thread was made with one.
        """
        if self._no_jobs:
            raise ApiError(400, self._no_jobs)
        job = _Job(kind, texts, answer, share)
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        return job.future

    def close(self) -> None:
        """End the thread when nothing is left to compute, and wait for that."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self.is_alive():
            self.join()
        for lane in self._lanes:
            lane.close()

    def run(self) -> None:
        """Compute until `close`."""
        while True:
            with self._wake:
                while not self._has_work():
                    if self._is_closing and not any(lane.is_busy for lane in self._lanes):
                        return
                    self._wake.wait(self._seconds_to_retry())
                lanes = list(self._lanes)
            for lane in lanes:
                if lane.has_work:
                    self._step(lane)
            self._run_jobs()

    def _seconds_to_retry(self) -> float | None:
        """Return how long it is until an engine is made again; None if none is down."""
        times = [lane.down_until for lane in self._lanes if lane.down_until is not None]
        return min(RETRY_SECONDS, max(0.0, min(times) - time.monotonic())) if times else None

    def _has_work(self) -> bool:
        return bool(self._jobs) or any(lane.has_work for lane in self._lanes)

    def _step(self, lane: Lane) -> None:
        if lane.down_until is not None:
            self._make_engine(lane)
        else:
            try:
                if not isinstance(lane.engine, RemoteEngine):  # which notes its steps itself
                    self.metrics.note_step(lane.engine.n_rows)
                lane.engine.step()
            except Exception as error:
                _LOG.exception("a step failed")
                self._replace_engine(lane, error)
        self._report(lane)

    def _replace_engine(self, lane: Lane, error: Exception) -> None:
        """Fail every request of an engine whose step failed, and continue with a new engine."""
        with self._wake:
            lane.down_until = time.monotonic()
            lost = [request for request in lane.requests if not request.is_done]
        for request in lost:
            request.fail(EngineFaultError(str(error)))
        self._report(lane)  # before a new engine is made, which may take long
        with suppress(Exception):
            lane.engine.close()
        self._make_engine(lane)

    def _make_engine(self, lane: Lane) -> None:
        """Make another engine if it is time for that, and none if the thread is about to end."""
        assert lane.down_until is not None
        if self._is_closing:
            lane.down_until = float("inf")
        if time.monotonic() < lane.down_until:
            return
        try:
            engine = lane.make_engine()
        except Exception:
            _LOG.exception("no engine could be made; the next attempt is in %g s", RETRY_SECONDS)
            lane.down_until = time.monotonic() + RETRY_SECONDS
            return
        with self._wake:
            is_wanted = lane in self._lanes  # else the model was unloaded in the meantime
            if is_wanted:
                lane.engine, lane.down_until = engine, None
        if not is_wanted:
            engine.close()

    def _report(self, lane: Lane) -> None:
        """Hand what was written to the event loops of the runs, with one call for each loop.

        The end of a run is reported at once, and the progress of others when a delivery is due.
        """
        with self._wake:
            lane.requests = [request for request in lane.requests if not request.is_done]
        deliveries: dict[asyncio.AbstractEventLoop, list[_Delivery]] = {}
        is_due = {loop: self._pace_of(loop).is_due for loop in {run.loop for run in lane.runs}}
        for run in [run for run in lane.runs if is_due[run.loop] or run.is_done]:
            had_tokens, had_first = run.n_tokens, run.first_token is not None
            pieces, is_over = run.collect()
            self.metrics.note_tokens(run.n_tokens - had_tokens)
            if not had_first and run.first_token is not None:
                self.metrics.note_first_token(run.first_token - run.started)
            if is_over:
                with self._wake:
                    lane.runs.remove(run)
            if pieces or is_over:
                deliveries.setdefault(run.loop, []).append((run, pieces, is_over))
        for loop, several in deliveries.items():
            with suppress(RuntimeError):  # the loop has been closed: no request waits
                self._pace_of(loop).start(loop, partial(_deliver, several))

    def _pace_of(self, loop: asyncio.AbstractEventLoop) -> DeliveryPace:
        return self._paces.setdefault(loop, DeliveryPace())

    def _run_jobs(self) -> None:
        """Run the first job, together with others of its kind."""
        with self._wake:
            if not self._jobs:
                return
            first = self._jobs.popleft()
            joined, share = [first], first.share
            for job in list(self._jobs):
                if job.kind == first.kind and share + job.share <= 1:
                    joined.append(job)
                    share += job.share
                    self._jobs.remove(job)
        joined = [job for job in joined if job.future.set_running_or_notify_cancel()]
        if len(joined) > 1:
            with suppress(Exception):  # one of them is wrong: each is run alone below, and the wrong one fails
                answers = iter(joined[0].answer([text for job in joined for text in job.texts]))
                results = [[next(answers) for _ in job.texts] for job in joined]
                for job, result in zip(joined, results, strict=True):
                    job.future.set_result(result)
                return
        for job in joined:
            try:
                job.future.set_result(job.answer(list(job.texts)))
            except Exception as error:
                job.future.set_exception(error)


def _deliver(deliveries: list[_Delivery]) -> None:
    for run, pieces, is_over in deliveries:
        run.deliver(pieces, is_over)
