"""`glassformer demo TASK`: train a small model on a built-in corpus in minutes, score it and try it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import reporting_truncated, set_threads

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores
    from glassformer.pipelines.trained_pipeline import TrainedPipeline
    from glassformer.tasks.configs.shared import Splits
    from glassformer.tasks.task import Task

Precision = Literal["auto", "fp32", "bf16", "fp16"]
MAX_MINUTES = 3.0
"""The longest default training time of a demo, in minutes."""
SHARE = 0.95
"""Share of `--minutes` that is used for training; the rest is for scoring and showing the results."""
N_SHOWN = 5
"""Number of held-out examples that are shown."""


def demo_task(
    name: str,
    lines: Sequence[str] = (),
    *,
    minutes: float = 0.0,
    out: Path = Path("demo"),
    seed: int = 0,
    device: str = "auto",
    precision: Precision = "auto",
    threads: int = 0,
) -> None:
    """Train a small model for the task `name` into the folder `out/name`, or load it if it is already there.

    Then print its scores next to a baseline, show some held-out examples, and answer `lines` and what the user types.
    """
    from glassformer.pipelines.load import load
    from glassformer.pipelines.trained_pipeline import TrainedPipeline
    from glassformer.runtime.devices import choose_device
    from glassformer.tasks.task_registry import task_named

    if not minutes >= 0:
        raise UsageError(f"--minutes {minutes:g}: expected 0 or more")
    set_threads(threads)
    choose_device(device)  # refuse a missing one before the download
    kind = task_named(name)
    try:
        config = kind.demo()
    except NotImplementedError:
        raise ValueError(f"{name} has no demo: expected your own data, see glassformer train {name} --help") from None
    minutes = minutes or min(config.train.minutes or MAX_MINUTES, MAX_MINUTES)
    computing: Any = {"device": device, "precision": precision, "threads": threads}
    task = kind(replace(config, train=replace(config.train, minutes=minutes * SHARE, seed=seed, **computing)))
    folder = out / name
    if folder.exists():
        print(f"{folder} has been trained already; remove it to train again.")
        scores = None
    else:
        scores = task.train(folder)
    tool = load(folder, device=device)
    assert isinstance(tool, TrainedPipeline)
    with reporting_truncated(tool, truncate=True):
        _present(task, tool, lines, scores)


def _present(
    task: "Task[Any, Any]", tool: "TrainedPipeline[Any]", lines: Sequence[str], scores: "Scores | None"
) -> None:
    """Print the scores next to a baseline and some held-out examples, then answer `lines` and what the user types."""
    config = task.config
    splits = config.data.splits()
    test = list(splits.test)
    held_out = test or list(splits.valid)
    about = task.scored_on("test" if test else "validation", len(held_out), tool.scoring_method())
    learned = (
        "that are not in the training data" if test else "of the validation, by which the best checkpoint was chosen"
    )
    print(f"\nscores on {about}, examples {learned}:\n")
    print(_beside(scores or tool.score(held_out), _baseline(task, splits)))
    _show(task, tool, held_out)
    for line, answer in zip(lines, tool.run(list(lines)), strict=True):
        print(f"\n  {line}\n  {answer}")
    talk(lambda line: tool.run([line])[0], "Type a line to see the answer of the model; an empty line ends.")


def talk(answer: Callable[[str], str], invitation: str) -> None:
    """On a terminal, print `invitation` and the answer to each line that the user types, until an empty line.

    Without a terminal, do nothing.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    print(f"\n{invitation}")
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not line.strip():
            return
        try:
            print(answer(line))
        except ValueError as error:  # the model cannot read this line
            print(error)


def _baseline(task: "Task[Any, Any]", splits: "Splits[Any]") -> "tuple[str, Scores] | None":
    try:
        return task.baseline(splits)
    except NotImplementedError:
        return None


def _beside(scores: "Scores", baseline: "tuple[str, Scores] | None") -> str:
    """Return a table with one row for the baseline, if there is one, and one for the model."""
    from glassformer.metrics.number_table import Table
    from glassformer.metrics.scores import title_of

    rows = {} if baseline is None else {baseline[0]: [baseline[1].values.get(name) for name in scores.values]}
    rows["this model"] = list(scores.values.values())
    return str(Table("scores", [title_of(name) for name in scores.values], rows))


def _show(task: "Task[Any, Any]", tool: "TrainedPipeline[Any]", held_out: Sequence[Any]) -> None:
    """Print a few held-out examples: the input, the model's answer, and the correct answer if it differs."""
    try:
        # Spread over all examples, because neighbors are often similar.
        shown = [task.show(example) for example in held_out[:: max(1, len(held_out) // N_SHOWN)][:N_SHOWN]]
    except NotImplementedError:
        return
    for (line, right), answer in zip(shown, tool.run([line for line, _ in shown]), strict=True):
        print(f"\n  {line}\n  {answer}" + (f"\n  ({right})" if right != answer else ""))
