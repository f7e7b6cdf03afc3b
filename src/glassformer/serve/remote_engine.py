"""The server's side of an engine in a separate process (`engine_process.py`).

A `RemoteEngine` is used like an `Engine`: requests are submitted, canceled and read in the same way. Its `step` does
not compute: it applies the reports of the process to the requests. Without reports there is nothing to do.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from glassformer.decoding import Engine, EngineRequest
from glassformer.decoding.open_batch import GeneratedText, generated_text_of, sequences_of
from glassformer.decoding.step_loop import SequenceState
from glassformer.serve.api_errors import ApiError
from glassformer.serve.engine_frames import (
    EngineFaultError,
    FrameSocket,
    RequestReport,
    RowReport,
    as_error,
    decode_report,
)

_START = "from glassformer.serve.engine_process import main; main()"
END_SECONDS = 10.0
"""How long a process may take to end after its socket was closed."""


def start_engine(path: Path, load: Mapping[str, Any], sizes: Mapping[str, Any]) -> "EngineLink":
    """Start a process with the engine of a model, and wait until it is ready.

    Args:
        path: The model's folder or file, which the process loads.
        load: The options of loading it (`engine_process.load_engine`).
        sizes: The sizes of the engine.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # The process finds modules where this one does, and none in the current folder that this one does not.
        places = os.pathsep.join(place or os.getcwd() for place in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": places},
        )
    link = EngineLink(FrameSocket(ours), process)
    try:
        link.frames.send({"path": str(path), "load": dict(load), "sizes": dict(sizes)})
        link.frames.receive(waits=True)  # it is ready
    except (EOFError, OSError) as error:
        link.close()
        reason = f"the process of the engine ended with code {process.returncode}"
        raise RuntimeError(f"{reason} while it loaded {path}; its messages are above") from error
    return link


class EngineLink:
    """The socket to the process of an engine. Frames are sent and received in separate threads."""

    def __init__(self, frames: FrameSocket, process: "subprocess.Popen[bytes] | None" = None):
        self.frames, self._process = frames, process
        self._outgoing: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self.arrived: deque[Any] = deque()
        """The frames that have arrived. They are taken from the left."""
        self.has_ended = False

    def listen(self, on_report: Callable[[], None]) -> None:
        """Send and receive. `on_report` is called in another thread when frames arrive, and when the process ends."""
        for name, target in (("send", self._send), ("receive", partial(self._receive, on_report))):
            threading.Thread(target=target, name=f"engine {name}", daemon=True).start()

    def send(self, *frame: Any) -> None:
        """Send a frame soon. It does not wait."""
        self._outgoing.put(list(frame))

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._outgoing.put(None)
        self.frames.close()
        if self._process is None:
            return
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self) -> None:
        with suppress(OSError):  # the process has ended, which the receiving thread reports
            while True:
                frames = [self._outgoing.get()]
                with suppress(queue.Empty):
                    while True:
                        frames.append(self._outgoing.get_nowait())
                if None in frames:  # the socket has been closed
                    return
                self.frames.send(*frames)

    def _receive(self, on_report: Callable[[], None]) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.arrived.extend(self.frames.receive(waits=True))
                on_report()
        self.has_ended = True
        on_report()


class RemoteEngine(Engine):
    """An engine in a separate process.

    Args:
        link: The socket to the process.
        on_report: Called in another thread when there is a report for `step`.
        note_step: Called for each step of the process with the number of texts that it advanced.
        options: The sizes of the engine, the tokens that begin and end texts, and the tokenizer (`Engine`).
    """

    def __init__(
        self,
        model: Any,
        *,
        link: EngineLink,
        on_report: Callable[[], None],
        note_step: Callable[[int], None],
        **options: Any,
    ):
        super().__init__(model, **options)
        self._link, self._note_step = link, note_step
        self._numbers: dict[EngineRequest, int] = {}
        self._pending: dict[int, EngineRequest] = {}
        """The requests that are not done, by number."""
        self._count = self._n_running = 0
        link.listen(on_report)

    @override
    def submit(self, *arguments: Any, **options: Any) -> EngineRequest:
        if self._link.has_ended:
            raise ApiError(503, "the process of the model has ended, and another one starts: try again in a minute")
        request = super().submit(*arguments, **options)
        make: Any = request.make_constraint
        with self._lock:
            self._count += 1
            number = self._numbers[request] = self._count
            self._pending[number] = request
        format = None if make is None else make.format.model_dump(mode="json", by_alias=True)
        config = json.dumps(request.config.to_dict())
        self._link.send(
            "submit", number, request.tokens, config, request.with_log_probs, request.n_top_log_probs, format
        )
        return request

    @property
    def has_reports(self) -> bool:
        """Whether there are reports for `step`, or the process has ended."""
        return bool(self._link.arrived) or self._link.has_ended

    @property
    @override
    def is_idle(self) -> bool:
        return not self._pending

    @property
    @override
    def n_rows(self) -> int:
        return self._n_running

    @override
    def step(self) -> None:
        """Apply the reports of the process to the requests. Raises EngineFaultError if the process has ended."""
        arrived = self._link.arrived
        while arrived:
            report = decode_report(arrived.popleft())
            self._n_running = report.n_rows
            for _ in range(report.n_steps):
                self._note_step(report.n_rows)
            for one in report.requests:
                request = self._pending.get(one.number)
                if request is not None:  # else it was canceled
                    self._take_over(request, one)
        if self._link.has_ended and not arrived:
            raise EngineFaultError("the process of the engine has ended")

    @override
    def run(self) -> None:
        raise NotImplementedError("the process of the engine runs by itself")

    @override
    def close(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._pending.clear()
            self._numbers.clear()
        self._link.close()

    @override
    def _withdraw(self, request: EngineRequest) -> None:
        super()._withdraw(request)
        with self._lock:
            number = self._numbers.get(request)
        if number is not None:
            self._link.send("cancel", number)
            if request.is_done:  # it waited; the process may have started it in the meantime
                self._forget(request, number)

    def _take_over(self, request: EngineRequest, report: RequestReport) -> None:
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
        if report.rows and not request.rows:
            request.n_reused = report.n_reused
            request.rows = self._new_rows(request)
        for row in report.rows:
            self._add(request, row)
        if report.is_done:
            self._finish(request, report)
            self._forget(request, report.number)

    def _new_rows(self, request: EngineRequest) -> list[SequenceState]:
        return sequences_of(
            self.model,
            [request.tokens],
            request.config,
            self.begin,
            [request.max_new_for(self.model)],
            with_log_probs=request.with_log_probs,
            tokenizer=self.tokenizer,
            n_top_log_probs=request.n_top_log_probs,
        )

    def _add(self, request: EngineRequest, report: RowReport) -> None:
        """Add what was written to a text, in the order in which the engine of the process did."""
        row = request.rows[report.sample]
        row.log_probs += report.log_probs
        row.top_log_probs += [[(token, value) for token, value in top] for top in report.top_log_probs]
        if request.config.stop_strings:
            for token in report.tokens:  # a stop string is looked for after each token
                row.written.append(token)
                _ = row.text
        else:
            row.written += report.tokens
        row.reason = report.reason  # type: ignore[assignment]

    def _finish(self, request: EngineRequest, report: RequestReport) -> None:
        if report.beams is not None:
            decode = None if self.tokenizer is None else self.tokenizer.decode
            request.texts = [
                GeneratedText(tokens, score, text=None if decode is None else decode(tokens))
                for tokens, score in report.beams
            ]
        else:
            request.texts = [generated_text_of(row) for row in request.rows]
        if report.error is not None:
            request.error = as_error(*report.error)
        request.done.set()

    def _forget(self, request: EngineRequest, number: int) -> None:
        with self._lock:
            self._pending.pop(number, None)
            self._numbers.pop(request, None)
