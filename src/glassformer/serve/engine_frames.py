"""Messages between the server and the process of an engine: frames of JSON over a socket.

Nothing is unpickled: a request holds what a client sent, and JSON can only become plain values.
"""

import json
import socket
from contextlib import suppress
from typing import Any, NamedTuple

from glassformer.decoding.engine_request import EngineFullError

FAULT = "fault"
"""The kind of an `EngineFaultError`."""
_KINDS = (ValueError, FloatingPointError, EngineFullError)
"""Errors of a request that keep their kind. The first that fits is named."""
_SIZE_BYTES = 4
_CHUNK = 1 << 18


class EngineFaultError(RuntimeError):
    """A step of the engine failed, and with it every request that was in the batch."""


class RowReport(NamedTuple):
    """The tokens that were added to one text of a request since the last report."""

    sample: int
    tokens: list[int]
    log_probs: list[float]
    """Empty unless the request asked for them. There may be one more than tokens: that of END."""
    top_log_probs: list[list[tuple[int, float]]]
    reason: str | None
    """Why the text ended; None while it continues."""


class RequestReport(NamedTuple):
    """The progress of a request since the last report of it."""

    number: int
    n_reused: int
    rows: list[RowReport]
    is_done: bool
    error: tuple[str, str] | None = None
    """The kind and the message of the error that ended the request."""
    beams: list[tuple[list[int], float | None]] | None = None
    """The tokens and scores that a beam search has found."""


class EngineReport(NamedTuple):
    """The progress of an engine since the last report."""

    n_rows: int
    """How many texts run."""
    n_steps: int
    requests: list[RequestReport]


class FrameSocket:
    """Sends and receives frames over a connected socket. One thread may send while another receives."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._buffer = bytearray()

    def send(self, *values: Any) -> None:
        """Send JSON values, one frame each. Raises OSError if the other side has closed its socket."""
        frames = [json.dumps(value, separators=(",", ":")).encode() for value in values]
        self._connection.sendall(b"".join(len(frame).to_bytes(_SIZE_BYTES, "big") + frame for frame in frames))

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the values that have arrived. With `waits` there is at least one.

        Raises EOFError if the other side has closed its socket.
        """
        found: list[Any] = []
        while True:
            try:
                data = self._connection.recv(_CHUNK, 0 if waits and not found else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except ConnectionError as error:
                raise EOFError("the other process has ended") from error
            if not data:
                raise EOFError("the other process has closed its socket")
            self._buffer += data
            found += self._complete()
            if found and len(data) < _CHUNK:
                return found

    def _complete(self) -> list[Any]:
        """Remove the complete frames from the buffer, and return their values."""
        found, place, buffer = [], 0, self._buffer
        while len(buffer) >= (begin := place + _SIZE_BYTES):
            end = begin + int.from_bytes(buffer[place:begin], "big")
            if len(buffer) < end:
                break
            found.append(json.loads(buffer[begin:end]))
            place = end
        del buffer[:place]
        return found

    def close(self) -> None:
        """Close the socket, also for a thread that waits for a frame."""
        with suppress(OSError):  # the other side may have closed its own before
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def decode_report(value: Any) -> EngineReport:
    """Return the `EngineReport` that was sent, given its JSON form, in which all tuples are lists."""
    n_rows, n_steps, requests = value
    return EngineReport(
        n_rows,
        n_steps,
        [
            RequestReport(number, n_reused, [RowReport(*row) for row in rows], is_done, error, beams)
            for number, n_reused, rows, is_done, error, beams in requests
        ],
    )


def kind_of(error: Exception) -> str:
    """Return the kind of an error, from which `as_error` makes one like it."""
    if isinstance(error, EngineFaultError):
        return FAULT
    return next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "RuntimeError")


def as_error(kind: str, message: str) -> Exception:
    """Return the error of a request from its kind and message, as `RequestReport` has them."""
    if kind == FAULT:
        return EngineFaultError(message)
    return next((found for found in _KINDS if found.__name__ == kind), RuntimeError)(message)
