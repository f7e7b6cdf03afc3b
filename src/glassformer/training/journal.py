"""The log of a training run: `log.jsonl`, TensorBoard events, and progress on the terminal."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from glassformer.base.plurals import counted
from glassformer.base.write_errors import naming_write_errors
from glassformer.metrics.scores import title_of
from glassformer.progress import Step, reporting, say
from glassformer.training.schedules import Plan
from glassformer.training.started_update import Update
from glassformer.training.state import Evaluation
from glassformer.training.train_config import TrainConfig

LOG, EVENTS = "log.jsonl", "events.out.tfevents.*"


class Journal:
    """Context manager that logs a training run to `log.jsonl`, TensorBoard and the terminal while it is open."""

    def __init__(self, folder: Path, config: TrainConfig):
        self.config, self.folder = config, folder
        self.updates = config.updates
        """Planned number of updates."""
        with naming_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._log = (folder / LOG).open("a", encoding="utf-8")
            if _ends_inside_a_line(folder / LOG):
                self._log.write("\n")  # otherwise the next record would continue a line that a kill cut off
            self._board = _tensorboard(folder)
        self.validation = ""
        """Decoding method and data of validations, such as "greedy, 500 validation pairs", printed with scores."""
        self._best = ""
        self._tokens = self._seconds = 0.0
        self._cleanup = ExitStack()

    def __enter__(self) -> "Journal":
        self._cleanup.enter_context(reporting())
        self._step = self._cleanup.enter_context(Step("training", self.updates))
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()
        with naming_write_errors(self.folder / LOG):
            self._log.close()
        if self._board is not None:
            with naming_write_errors(self.folder / EVENTS):
                self._board.close()

    def say(self, text: str) -> None:
        """Print a line of text on the terminal, above the progress line."""
        say(text)

    def update(self, update: Update) -> None:
        """Write the loss, learning rate and gradient norm of one update to the log, and show the progress."""
        self._write({"kind": "update", **update._asdict()})
        for name in ("loss", "lr", "gradient_norm"):
            self._chart(f"train/{name}", getattr(update, name), update.update)
        # Exponential moving average of the speed, over about 100 updates.
        self._tokens = 0.99 * self._tokens + update.tokens
        self._seconds = 0.99 * self._seconds + update.seconds
        speed = self._tokens / max(self._seconds, 1e-9)
        text = (
            f"update {update.update}/{self.updates}  loss {update.loss:.3f}  {speed:,.0f} tokens/s  "
            f"lr {update.lr:.2e}  |g| {update.gradient_norm:.2f}{self._best}"
        )
        self._step.show(update.update, text=text, total=self.updates)

    def correction(self, plan: Plan, *, tell_from: float) -> None:
        """From now on, show progress towards the number of updates in the corrected plan.

        Print a line if it differs from the old number by more than `tell_from`, a fraction of the old number.
        """
        change = plan.end / self.updates - 1
        if abs(change) > tell_from:
            why = "that is what the time allows" if plan.end > self.updates else "to end in time"
            self.say(f"{counted(plan.end, 'updates')} instead of {self.updates:,}: {why}")
        self.updates = plan.end

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores of one validation to the log, and print them."""
        kind = "average" if evaluation.is_average else "evaluation"  # an average is no point of the learning curve
        self._write({"kind": kind, "update": evaluation.update, **evaluation.scores})
        for name, value in evaluation.scores.items() if not evaluation.is_average else ():
            self._chart(f"valid/{name}", value, evaluation.update)
        scores = "  ".join(f"{name} {value:.3f}" for name, value in evaluation.scores.items())
        self._best = f"  valid {scores}"
        how = f" ({self.validation})" if self.validation else ""
        at = f"after {counted(evaluation.update, 'updates')}"
        what = "of the average of the last checkpoints" if evaluation.is_average else at
        self.say(f"validation {what}{how}:  {scores}")

    def _write(self, record: dict[str, Any]) -> None:
        with naming_write_errors(self.folder / LOG):
            self._log.write(json.dumps(record) + "\n")
            self._log.flush()

    def _chart(self, name: str, value: float, step: int) -> None:
        if self._board is not None:
            with naming_write_errors(self.folder / EVENTS):
                self._board.add_scalar(name, value, step)


class SilentJournal(Journal):
    """The journal of a process that is not the leader of its run: it logs nothing."""

    def __init__(self, folder: Path, config: TrainConfig):
        self.config, self.folder, self.validation = config, folder, ""

    @override
    def __enter__(self) -> "Journal":
        return self

    @override
    def __exit__(self, *_: object) -> None: ...

    @override
    def say(self, text: str) -> None: ...

    @override
    def update(self, update: Update) -> None: ...

    @override
    def correction(self, plan: Plan, *, tell_from: float) -> None: ...

    @override
    def evaluation(self, evaluation: Evaluation) -> None: ...


class LogEntry(NamedTuple):
    """The values that a run logged for one update or one validation."""

    update: int
    seconds: float
    """Time of all updates up to this one, without validations and saves."""
    values: dict[str, float]
    """Values by title, such as "training loss"."""


def _ends_inside_a_line(path: Path) -> bool:
    with path.open("rb") as stream:
        if not stream.seek(0, 2):
            return False
        stream.seek(-1, 2)
        return stream.read(1) != b"\n"


def read_log(folder: Path) -> list[LogEntry]:
    """Return the losses and scores in the log of the run folder `folder`, oldest first; empty without a log.

    Updates that a resumed run repeated appear once.
    """
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
        elif kind == "average":
            continue
        else:
            values = {f"validation {title_of(name)}": value for name, value in record.items()}
        entries[kind, update] = LogEntry(update, seconds.get(update, 0.0), values)
    return sorted(entries.values(), key=lambda entry: entry.update)


def prepare_tensorboard() -> Any:
    """Return TensorBoard's `SummaryWriter` class; None if the optional dependencies `track` are not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter


def _tensorboard(folder: Path) -> Any:
    writer = prepare_tensorboard()
    return None if writer is None else writer(folder)
