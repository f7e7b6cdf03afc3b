"""Prepare and end the process of a command: UTF-8 streams, signals and exit codes."""

import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from glassformer.base.freed_memory import keep_freed_memory

SIGNAL_SECONDS = 10.0
"""Seconds after a signal until the process is ended, if it has not ended by itself."""


def fail(reason: object, exit_code: int) -> NoReturn:
    """Print `glassformer: REASON` on stderr and exit with this code."""
    print(f"glassformer: {reason}", file=sys.stderr)
    sys.exit(exit_code)


def prepare_streams() -> None:
    """Make stdin, stdout and stderr UTF-8 in every locale.

    A closed stderr is replaced by the null device. A closed stdout ends the process with an error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, so that no file of ours gets it
    if sys.stderr is None:
        # print(file=None) would write to stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        fail("stdout is closed: expected a terminal, a file or a pipe; >/dev/null discards the output", 1)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(newline="\n")


def discard_output() -> None:
    """Redirect stdout to the null device, so that Python does not fail to write buffered output when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def computing_for_long() -> Iterator[None]:
    """Context manager for the part of a command in which a loaded model answers many texts.

    The garbage collector then skips what exists already: the modules and the model, which it would read again and
    again. Freed memory stays in the process where the C library allows it.
    """
    keep_freed_memory()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Context manager in which SIGTERM and SIGINT raise exceptions, so that incomplete files are removed.

    A second signal ends the process at once. An exception inside an import may be lost, so a timer ends the process
    after SIGNAL_SECONDS. Training installs its own signal handler, which saves a checkpoint first.
    """
    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    handled = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    timers: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        timers.append(threading.Timer(SIGNAL_SECONDS, os._exit, [128 + number]))
        timers[-1].daemon = True
        timers[-1].start()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, usual[number])
        for timer in timers:
            timer.cancel()
