"""Show the progress of a command on stderr: live bars on a terminal, occasional lines elsewhere.

A command enables the display with `reporting()`. Any code may use `Step` or `track`; they print nothing unless a
`reporting()` block is active in the same thread. `reporting(quiet=True)` disables the display.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

PLAIN_EVERY = 20.0
"""Minimum number of seconds between two progress lines where stderr is not a terminal."""
TRACK_EVERY = 500
"""`track` updates the progress after this many items."""

Item = TypeVar("Item")


class Reporter:
    """Writes the progress of one command to stderr, as live bars or as plain lines."""

    def __init__(self) -> None:
        self._last_line: float | None = None
        self._console: Any = None
        self.bars: Any = None
        """The live display of the `rich` package; None if stderr is not a terminal or rich is not installed."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return
        self._console = Console(stderr=True, highlight=False, markup=False)
        if self._console.is_terminal:
            columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TimeRemainingColumn()
            self.bars = Progress(*columns, console=self._console, transient=True, redirect_stdout=False)
            self.bars.start()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen, unlike the live bars."""
        if self._console is not None:
            self._console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr)

    def say_sometimes(self, text: str) -> None:
        """Print a line, unless this method printed one less than `PLAIN_EVERY` seconds ago."""
        now = time.monotonic()
        if self._last_line is None or now - self._last_line >= PLAIN_EVERY:
            self._last_line = now
            self.say(text)

    def stop(self) -> None:
        """Stop the live display, if there is one, and remove its bars."""
        if self.bars is not None:
            self.bars.stop()


_REPORTER: ContextVar[Reporter | None] = ContextVar("reporter", default=None)
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[None]:
    """Context manager: show the progress of every `Step` inside the block.

    A nested block uses the display of the outer one. With `quiet` (the flag `--quiet`), nothing is shown inside the
    block, whatever blocks it is nested in and are nested in it.
    """
    if quiet or _QUIET.get():
        was_quiet, reporter_before = _QUIET.set(True), _REPORTER.set(None)
        try:
            yield
        finally:
            _QUIET.reset(was_quiet)
            _REPORTER.reset(reporter_before)
        return
    if _REPORTER.get() is not None:
        yield
        return
    reporter = Reporter()
    token = _REPORTER.set(reporter)
    try:
        yield
    finally:
        _REPORTER.reset(token)
        reporter.stop()


def say(text: str) -> None:
    """Print a line on stderr, above any live bars, unless a `reporting(quiet=True)` block is active."""
    reporter = _REPORTER.get()
    if reporter is not None:
        reporter.say(text)
    elif not _QUIET.get():
        print(text, file=sys.stderr)


class Step:
    """Context manager for a part of a command that takes time, such as tokenizing: one bar, or occasional lines.

    `label` names it in the display. `total` is the expected number of items; None if it is unknown.
    """

    def __init__(self, label: str, total: int | None = None):
        self.label, self.total, self.done = label, total, 0
        self._reporter = _REPORTER.get()
        self._bar: Any = None
        if self._reporter is None:
            return
        if self._reporter.bars is not None:
            self._bar = self._reporter.bars.add_task(self._text(), total=total)
        else:
            self._reporter.say_sometimes(self._text())

    def _text(self) -> str:
        if self.total is not None:
            return f"{self.label}: {self.done:,} of {self.total:,}"
        return f"{self.label}: {self.done:,}" if self.done else f"{self.label} ..."

    def advance(self, count: int = 1) -> None:
        """Add `count` to the number of items done and update the display."""
        self.show(self.done + count)

    def show(self, done: int, *, text: str = "", total: int | None = None) -> None:
        """Set the number of items done and update the display.

        If given, `total` replaces the expected number of items, and `text` is shown instead of the usual description.
        """
        self.done, self.total = done, self.total if total is None else total
        if self._reporter is None:
            return
        text = text or self._text()
        if self._bar is not None:
            self._reporter.bars.update(self._bar, completed=done, total=self.total, description=text)
        else:
            self._reporter.say_sometimes(text)

    def close(self) -> None:
        """Remove the bar of this step from the live display."""
        if self._bar is not None and self._reporter is not None:
            self._reporter.bars.remove_task(self._bar)
            self._bar = None

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def track(items: Iterable[Item], label: str) -> Iterator[Item]:
    """Yield the items, and show in a step named `label` how many of them the caller has processed."""
    with Step(label, size_of(items)) as step:
        waiting = 0
        for item in items:
            yield item
            waiting += 1
            if waiting == TRACK_EVERY:
                step.advance(waiting)
                waiting = 0


def size_of(items: Iterable[Any]) -> int | None:
    """Return `len(items)`, or else `items.n_read`, which readers set after a complete pass, or else None."""
    return len(items) if isinstance(items, Sized) else getattr(items, "n_read", None)
