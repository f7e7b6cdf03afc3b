"""The process of an engine: it generates the texts of one model, while the server's process answers HTTP.

Python runs one thread of a process at a time. With the engine in a separate process, reading requests and writing
events does not delay the steps of a GPU, which take a millisecond or less for a small model. The server starts this
module (`remote_engine.py`), and both send frames over a socket (`engine_frames.py`). The process ends when the socket
is closed, so it never outlives its server; signals are for the server.
"""

import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from glassformer.decoding import Engine, EngineRequest, GenerationConfig
from glassformer.decoding.step_loop import SequenceState, TokenConstraint
from glassformer.pipelines.load import load as load_pipeline
from glassformer.runtime.step_runner import inference
from glassformer.serve.engine_frames import (
    EngineFaultError,
    EngineReport,
    FrameSocket,
    RequestReport,
    RowReport,
    kind_of,
)
from glassformer.serve.openai_schemas import ResponseFormat
from glassformer.serve.served_models import ServedModel, engine_marks
from glassformer.serve.structured_output import constraint_maker
from glassformer.serve.token_bytes import TokenBytes
from glassformer.serve.warm_up import warm_up

_LOG = logging.getLogger(__name__)
REPORT_SHARE = 0.03
"""The largest share of the time that is spent on reports of requests that continue. The end of a request is reported at
once."""


class _ReportedRequest:
    """A request, and how much of its progress has been reported."""

    def __init__(self, request: EngineRequest):
        self.request = request
        self.n_tokens: list[int] = []
        self.n_log_probs: list[int] = []
        self.has_ended: list[bool] = []

    def report(self, number: int) -> RequestReport | None:
        """Return the progress since the last call; None if there is none."""
        request = self.request
        rows = [] if request.config.num_beams > 1 else request.rows
        if len(self.n_tokens) < len(rows):
            self.n_tokens, self.n_log_probs = [0] * len(rows), [0] * len(rows)
            self.has_ended = [False] * len(rows)
        reports = [self._row_report(sample, row) for sample, row in enumerate(rows)]
        found = [report for report in reports if report is not None]
        if not found and not request.is_done:
            return None
        error = None if request.error is None else (kind_of(request.error), str(request.error))
        beams = None
        if request.config.num_beams > 1 and request.is_done:
            beams = [(text.tokens, text.score) for text in request.texts]
        return RequestReport(number, request.n_reused, found, request.is_done, error, beams)

    def _row_report(self, sample: int, row: SequenceState) -> RowReport | None:
        first, last = self.n_tokens[sample], len(row.written)
        has_ended = row.reason is not None
        if first == last and has_ended == self.has_ended[sample]:
            return None
        self.n_tokens[sample], self.has_ended[sample] = last, has_ended
        if not row.with_log_probs:
            return RowReport(sample, row.written[first:last], [], [], row.reason)
        begin, self.n_log_probs[sample] = self.n_log_probs[sample], len(row.log_probs)
        return RowReport(sample, row.written[first:last], row.log_probs[begin:], row.top_log_probs[begin:], row.reason)


class EngineLoop:
    """Steps an engine, takes requests from a socket, and reports their progress.

    Args:
        make_engine: Makes the engine, and another one after a step that failed.
        make_constraint: Returns the function that makes the constraints of a request, given its `response_format`.
    """

    def __init__(
        self,
        frames: FrameSocket,
        make_engine: Callable[[], Engine],
        make_constraint: Callable[[Any], Callable[[], TokenConstraint] | None],
    ):
        self._frames, self._make_engine, self._make_constraint = frames, make_engine, make_constraint
        self.engine = make_engine()
        self._requests: dict[int, _ReportedRequest] = {}
        self._grammars = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._constrained: list[tuple[EngineRequest, Future[Any]]] = []
        """Requests whose grammars are being read in another thread. They join afterwards."""
        self._n_steps, self._due = 0, 0.0

    def run(self) -> None:
        """Generate until the server closes its socket."""
        try:
            with inference(self.engine.model), suppress(EOFError, OSError):
                while True:
                    self._receive(waits=self.engine.is_idle and not self._constrained)
                    self._join_constrained()
                    if not self.engine.is_idle:
                        self._step()
                    elif self._constrained:
                        time.sleep(0.001)
                    self._report()
        finally:
            self._frames.close()
            self._grammars.shutdown(wait=False, cancel_futures=True)

    def _receive(self, *, waits: bool) -> None:
        """Start and cancel the requests that the server asks for. With `waits`, wait for the first message."""
        for kind, number, *rest in self._frames.receive(waits=waits):
            if kind == "submit":
                self._submit(number, *rest)
            elif number in self._requests:
                self._requests[number].request.cancel()

    def _submit(
        self, number: int, tokens: list[int], config: str, with_log_probs: bool, n_top: int, format: Any
    ) -> None:
        request = EngineRequest(tokens, _config_of(config), None, with_log_probs, n_top)
        self._requests[number] = _ReportedRequest(request)
        if format is None:
            self.engine.enqueue([request])
        else:  # reading a grammar takes milliseconds, and the first one a second
            self._constrained.append((request, self._grammars.submit(self._make_constraint, format)))

    def _join_constrained(self) -> None:
        """Queue the requests whose grammars have been read."""
        for request, grammar in [pair for pair in self._constrained if pair[1].done()]:
            self._constrained.remove((request, grammar))
            try:
                request.make_constraint = grammar.result()
            except Exception as error:
                request.fail(error)
            if request.is_canceled:
                request.done.set()
            elif not request.is_done:  # a step may have failed, and with it every request
                self.engine.enqueue([request])

    def _step(self) -> None:
        try:
            self.engine._step()
            self._n_steps += 1
        except Exception as error:
            _LOG.exception("a step failed")
            for reported in self._requests.values():
                if not reported.request.is_done:
                    reported.request.fail(EngineFaultError(str(error).strip() or type(error).__name__))
            with suppress(Exception):
                self.engine.close()
            self.engine = self._make_engine()

    def _report(self) -> None:
        """Report requests that are over, and the progress of all others if it is time for that."""
        begin = time.perf_counter()
        is_due = begin >= self._due
        due = [(number, one) for number, one in self._requests.items() if is_due or one.request.is_done]
        found = [report for number, one in due if (report := one.report(number)) is not None]
        if not found:
            return
        for report in found:
            if report.is_done:
                del self._requests[report.number]
        self._frames.send(EngineReport(self.engine.n_rows, self._n_steps, found))
        self._n_steps = 0
        if is_due:
            end = time.perf_counter()
            self._due = end + (end - begin) / REPORT_SHARE


@lru_cache(maxsize=64)
def _config_of(text: str) -> GenerationConfig:
    """Return the settings that JSON describes. Many requests have the same."""
    return GenerationConfig.from_dict(json.loads(text))


def load_engine(
    path: Path, load: Mapping[str, Any], sizes: Mapping[str, Any]
) -> tuple[Callable[[], Engine], Callable[[Any], Callable[[], TokenConstraint] | None]]:
    """Load a model, and return the functions that make its engine and the constraints of a request.

    Args:
        load: The options of `pipelines.load.load`, and the number of `threads`.
        sizes: The sizes of the engine.
    """
    given = dict(load)
    if threads := given.pop("threads", 0):
        torch.set_num_threads(threads)
    pipeline: Any = load_pipeline(path, **given)
    model = ServedModel(path.name, path, 0, pipeline)
    marks = engine_marks(pipeline)
    assert marks is not None

    def make_constraint(format: Any) -> Callable[[], TokenConstraint] | None:
        if model.token_bytes is None:
            model.token_bytes = TokenBytes(pipeline.tokenizer)
        return constraint_maker(ResponseFormat.model_validate(format), model)

    return lambda: Engine(pipeline.model, **sizes, **marks), make_constraint


def main() -> None:
    """Serve the process that started this one. The only argument is the number of the socket's descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    (order,) = frames.receive(waits=True)
    make_engine, make_constraint = load_engine(Path(order["path"]), order["load"], order["sizes"])
    loop = EngineLoop(frames, make_engine, make_constraint)
    warm_up(loop.engine, _LOG.info)
    frames.send("ready")
    loop.run()
