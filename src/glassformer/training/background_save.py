"""Write checkpoints in a thread while training continues, one at a time.

The trainer copies the tensors to the memory of the CPU first (`state.py`), so that the next update may change them. A
checkpoint is written to a temporary folder, which gets its manifest and then its name last. If the process is killed
before that, the checkpoint before it is the newest one.

A second checkpoint in the middle of each interval keeps the loss of a kill at `save_every` updates or fewer, as without
a thread. The reason: a save starts only after the save before it is complete. So when a checkpoint is due, the one
before the last, which is at most `save_every` updates old, is complete.
"""

from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Self

import torch

from glassformer.training.stop_signals import StoppedAtOnceError
from glassformer.training.train_config import TrainConfig

LAST_WAIT = 60.0
"""Seconds that a run that fails waits for its last checkpoint. Another process, whose part of it is missing, may have
ended."""


def saves_in_background(config: TrainConfig, device: torch.device) -> bool:
    """Return whether a run on `device` writes its checkpoints in a thread; with one after every update it does not."""
    is_wanted = config.async_save == "on" or (config.async_save == "auto" and device.type != "cpu")
    return is_wanted and config.save_every > 1


def is_save_due(config: TrainConfig, device: torch.device, position: int) -> bool:
    """Return whether a run saves after `position` updates: at the end and, in a thread, in the middle of intervals."""
    in_interval = position % config.save_every
    is_middle = in_interval == config.save_every // 2 and saves_in_background(config, device)
    return position > 0 and (in_interval == 0 or is_middle)


class BackgroundSave:
    """The writing of a checkpoint. As a context manager it waits at the end, so that no checkpoint is lost."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._then: Callable[[], None] = lambda: None

    @property
    def has_failed(self) -> bool:
        """Whether the last checkpoint could not be written; `wait` raises the reason."""
        return self._error is not None

    def start(self, write: Callable[[], None], then: Callable[[], None], *, in_thread: bool = True) -> None:
        """Call `write` after the previous one has ended, in a thread or at once.

        `then` is called when it has ended: after a thread, by `wait` or `poll`. Raises the error of the previous one.
        """
        self.wait()
        if not in_thread:
            write()
            then()
            return

        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._then = then
        self._thread = Thread(target=run, name="save a checkpoint", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """If a checkpoint was written since the last call, do what comes after it. Never waits and never raises."""
        if self._thread is not None and not self._thread.is_alive() and self._error is None:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is written. Raises the error if it could not be."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._then()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None and not isinstance(error, StoppedAtOnceError):
            self._thread.join(LAST_WAIT)
