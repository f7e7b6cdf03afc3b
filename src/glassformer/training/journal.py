"""What a run tells: a line of `log.jsonl` for every update and validation, TensorBoard beside it, and the terminal.

On a terminal there is a live line with a bar; elsewhere plain lines, now and then. All of it goes to stderr.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.metrics.scores import title_of
from glassformer.training.config import TrainConfig
from glassformer.training.state import Evaluation
from glassformer.training.trainer import Update
from glassformer.write_errors import naming_write_errors

LOG, EVENTS = "log.jsonl", "events.out.tfevents.*"
PLAIN_EVERY = 20.0
"""Seconds between two plain lines."""


class Journal:
    """Use as a context manager around a run."""

    def __init__(self, folder: Path, config: TrainConfig):
        self.config, self.folder = config, folder
        with naming_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._log = (folder / LOG).open("a", encoding="utf-8")
            self._board = _tensorboard(folder)
        self._last_line = time.perf_counter()
        self._best = ""
        self._tokens = self._seconds = 0.0
        self._console: Any = None
        self._progress: Any = None

    def __enter__(self) -> "Journal":
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return self
        self._console = Console(stderr=True, highlight=False)
        if self._console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn()
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task("training", total=self.config.updates)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        with naming_write_errors(self.folder / LOG):
            self._log.close()
        if self._board is not None:
            with naming_write_errors(self.folder / EVENTS):
                self._board.close()

    def say(self, text: str) -> None:
        """A line for the user."""
        if self._console is not None:
            self._console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr)

    def update(self, update: Update) -> None:
        """Note one update."""
        self._write({"kind": "update", **update._asdict()})
        for name in ("loss", "lr", "gradient_norm"):
            self._chart(f"train/{name}", getattr(update, name), update.update)
        # A mean that forgets: speed over about the last hundred updates.
        self._tokens = 0.99 * self._tokens + update.tokens
        self._seconds = 0.99 * self._seconds + update.seconds
        speed = self._tokens / max(self._seconds, 1e-9)
        text = (
            f"update {update.update}/{self.config.updates}  loss {update.loss:.3f}  {speed:,.0f} tokens/s  "
            f"lr {update.lr:.2e}  |g| {update.gradient_norm:.2f}{self._best}"
        )
        if self._progress is not None:
            self._progress.update(self._task, completed=update.update, description=text)
        elif time.perf_counter() - self._last_line > PLAIN_EVERY:
            self._last_line = time.perf_counter()
            self.say(text)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Note one validation."""
        self._write({"kind": "evaluation", "update": evaluation.update, **evaluation.scores})
        for name, value in evaluation.scores.items():
            self._chart(f"valid/{name}", value, evaluation.update)
        scores = "  ".join(f"{name} {value:.3f}" for name, value in evaluation.scores.items())
        self._best = f"  valid {scores}"
        self.say(f"validation after {evaluation.update} updates:  {scores}")

    def _write(self, record: dict[str, Any]) -> None:
        with naming_write_errors(self.folder / LOG):
            self._log.write(json.dumps(record) + "\n")
            self._log.flush()

    def _chart(self, name: str, value: float, step: int) -> None:
        if self._board is not None:
            with naming_write_errors(self.folder / EVENTS):
                self._board.add_scalar(name, value, step)


class LogEntry(NamedTuple):
    """What a run noted at one update."""

    update: int
    seconds: float
    """Of training, since its first update."""
    values: dict[str, float]


def read_log(folder: Path) -> list[LogEntry]:
    """Losses and scores of a run, oldest first. Updates that were made again after a stop are told once."""
    entries: dict[tuple[str, int], LogEntry] = {}
    seconds: dict[int, float] = {}
    path = folder / LOG
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the run was killed while it wrote this
        kind, update = record.pop("kind"), record.pop("update")
        if kind == "update":
            seconds[update] = seconds.get(update - 1, 0.0) + record["seconds"]
            values = {"training loss": record["loss"]}
        else:
            values = {f"validation {title_of(name)}": value for name, value in record.items()}
        entries[kind, update] = LogEntry(update, seconds.get(update, 0.0), values)
    return sorted(entries.values(), key=lambda entry: entry.update)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # the extra `track` is not installed; log.jsonl has everything
    return SummaryWriter(folder)
