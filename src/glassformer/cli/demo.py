"""`glassformer demo [TASK]`: run the demo of a task; without a task, that of translation."""

from collections.abc import Callable
from pathlib import Path

from glassformer.base.names import nearest
from glassformer.cli.demo_task import Precision, demo_task
from glassformer.cli.flag_parser import UsageError, call_function
from glassformer.cli.translation_demo import translation_demo

SPECIAL_DEMOS: dict[str, Callable[..., None]] = {"translation": translation_demo}
"""The functions of demos that show more than `demo_task` does, by task."""
DEFAULT_TASK = next(iter(SPECIAL_DEMOS))
"""The task that `glassformer demo` uses if none is given."""


def demos(arguments: list[str]) -> None:
    """Run the demo that the arguments name (`[TASK] [OPTIONS]`), or print the help with the list of tasks."""
    from glassformer.pipelines.pipeline_registry import PIPELINES, demo_tasks

    with_demo = demo_tasks()
    if arguments in (["-h"], ["--help"]):
        print("usage: glassformer demo [TASK] ...\n")
        print(*(f"  {name:16}{entry.about}" for name, entry in with_demo.items()), sep="\n")
        print("\nglassformer demo TASK --help shows the options of a task. Without a task, demo trains a translator:\n")
    if arguments and arguments[0] in PIPELINES.keys() - with_demo.keys():
        help_command = f"glassformer train {arguments[0]} --help"
        raise UsageError(f"{arguments[0]} has no demo, because it needs a pretrained model: see {help_command}")
    near = nearest(arguments[0], with_demo, cutoff=0.75) if arguments else None
    if near and arguments[0] not in with_demo:  # a typo must not start the four-minute default demo
        raise UsageError(f"{arguments[0]!r} is not a task: did you mean {near!r}?")
    task, *rest = arguments if arguments and arguments[0] in with_demo else [DEFAULT_TASK, *arguments]
    call_function(demo_function(task), rest, "demo" if task == DEFAULT_TASK else f"demo {task}")


def demo_function(task: str) -> Callable[..., None]:
    """Return the function that runs a task's demo. Its parameters are the options of `glassformer demo TASK`."""
    if task in SPECIAL_DEMOS:
        return SPECIAL_DEMOS[task]

    def run(
        lines: tuple[str, ...] = (),
        *,
        minutes: float = 0.0,
        out: Path = Path("demo"),
        seed: int = 0,
        device: str = "auto",
        precision: Precision = "auto",
        threads: int = 0,
    ) -> None:
        """Train a small Transformer for this task on a corpus that comes with it, and try it.

        The demo compares the model's scores on examples that it was not trained on with those of a simple baseline.
        Then the model answers LINES, or what you type. Run the command again to resume, or to use the trained model.

        Args:
            lines: Lines for the model to answer, each in quotes. On a terminal you may type more afterwards.
            minutes: Minutes to train; more minutes give better results. 0 takes the default of the task, at most 3.
            out: Folder for the model.
            seed: Seed of the random numbers. Two runs still differ, because the number of updates depends on the
                measured speed.
            device: Device to compute on, such as cpu or cuda; auto is a GPU where there is one.
            precision: Floating-point type to train in; auto is bf16 if the device computes it fast, else fp32.
            threads: Threads to compute with on a CPU; 0 is one per core.
        """
        demo_task(
            task,
            lines,
            minutes=minutes,
            out=out,
            seed=seed,
            device=device,
            precision=precision,
            threads=threads,
        )

    return run
