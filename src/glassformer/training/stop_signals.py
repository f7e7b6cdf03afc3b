"""SIGINT and SIGTERM during training: the first asks the run to save and stop, the second stops it at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818  # not an error: the user asked for it
    """SIGINT or SIGTERM stopped the run, after a checkpoint was saved."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; everything is saved")
        self.exit_code = 128 + signal_number


class StoppedAtOnceError(KeyboardInterrupt):
    """A second SIGINT or SIGTERM stopped the run at once, without saving a checkpoint."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopSignals:
    """Remembers the first SIGINT or SIGTERM that arrives inside `handling`."""

    def __init__(self) -> None:
        self.received: int | None = None
        """Number of the first signal; None before it."""

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Context manager that remembers the first signal and raises StoppedAtOnceError at the second.

        Python allows signal handlers in the main thread only; in other threads the caller's handlers stay.
        """

        def request_stop(number: int, frame: FrameType | None) -> None:
            if self.received is not None:
                raise StoppedAtOnceError(number)
            self.received = number

        if threading.current_thread() is not threading.main_thread():
            yield
            return

        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
