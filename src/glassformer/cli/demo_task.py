"""`glassformer demo TASK`: train a task on what comes with it, in minutes, and try it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.options import UsageError

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores
    from glassformer.pipelines.trained_pipeline import TrainedPipeline
    from glassformer.tasks.configs.shared import Splits
    from glassformer.tasks.task import Task

MAX_MINUTES = 3.0
"""How long a demo trains unless it is told otherwise."""
SHARE = 0.95
"""Of the minutes asked for, this much is for the training; the rest is for showing what was learned."""
N_SHOWN = 5
"""Held-out examples that are shown."""


def demo_task(
    name: str,
    lines: Sequence[str] = (),
    *,
    minutes: float = 0.0,
    out: Path = Path("demo"),
    seed: int = 0,
) -> None:
    """Train a task's demo into `out/name`, or take what stands there; score it, show it, let the user try it."""
    from glassformer.pipelines.load import load
    from glassformer.pipelines.trained_pipeline import TrainedPipeline
    from glassformer.tasks.registry import task_named

    if not minutes >= 0:
        raise UsageError(f"--minutes {minutes:g}: expected 0 or more")
    kind = task_named(name)
    try:
        config = kind.demo()
    except NotImplementedError:
        raise ValueError(
            f"{name} has no demo: expected data of your own, see glassformer train {name} --help"
        ) from None
    minutes = minutes or min(config.train.minutes or MAX_MINUTES, MAX_MINUTES)
    task = kind(replace(config, train=replace(config.train, minutes=minutes * SHARE, seed=seed)))
    folder = out / name
    if folder.exists():
        print(f"{folder} has been trained already; remove it to train again.")
        scores = None
    else:
        scores = task.train(folder)
    tool = load(folder)
    assert isinstance(tool, TrainedPipeline)
    splits = config.data.splits()
    test = list(splits.test)
    held_out = test or list(splits.valid)
    about = task.scored_on("test" if test else "validation", len(held_out), tool.scoring_method())
    learned = "it has never seen" if test else "it has not learned from; the best checkpoint was chosen by them"
    print(f"\nscores on {about}, examples {learned}:\n")
    print(_beside(scores or tool.score(held_out), _baseline(task, splits)))
    _show(task, tool, held_out)
    for line, answer in zip(lines, tool.run(list(lines)), strict=True):
        print(f"\n  {line}\n  {answer}")
    talk(lambda line: tool.run([line])[0], "Type a line to see what it makes of it; an empty one ends.")


def talk(answer: Callable[[str], str], invitation: str) -> None:
    """On a terminal: answer what the user types, until an empty line."""
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
        except ValueError as error:  # a line that this model cannot read; the next may be better
            print(error)


def _baseline(task: "Task[Any, Any]", splits: "Splits[Any]") -> "tuple[str, Scores] | None":
    try:
        return task.baseline(splits)
    except NotImplementedError:
        return None


def _beside(scores: "Scores", baseline: "tuple[str, Scores] | None") -> str:
    """The scores under those of the baseline, a column each."""
    from glassformer.metrics.number_table import Table
    from glassformer.metrics.scores import title_of

    rows = {} if baseline is None else {baseline[0]: [baseline[1].values.get(name) for name in scores.values]}
    rows["this model"] = list(scores.values.values())
    return str(Table("scores", [title_of(name) for name in scores.values], rows))


def _show(task: "Task[Any, Any]", tool: "TrainedPipeline[Any]", held_out: Sequence[Any]) -> None:
    """A few held-out examples: what the model reads, what it answers, and what is right where that is not the same."""
    try:
        # From all over them: neighbours are often alike.
        shown = [task.show(example) for example in held_out[:: max(1, len(held_out) // N_SHOWN)][:N_SHOWN]]
    except NotImplementedError:
        return
    for (line, right), answer in zip(shown, tool.run([line for line, _ in shown]), strict=True):
        print(f"\n  {line}\n  {answer}" + (f"\n  ({right})" if right != answer else ""))
