"""The result of `Task.prepare`, which a training run starts from: pipeline, batches, evaluation. Imports no torch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from glassformer.base.plurals import counted
from glassformer.tasks.card import in_short
from glassformer.tasks.configs.shared import Example, TaskData
from glassformer.text import Tokenizer

if TYPE_CHECKING:
    from glassformer.training.run_folder import RunFolder
    from glassformer.training.trainer import Batches

Batch = TypeVar("Batch")
SplitName = Literal["validation", "test"]
MORE_DATA = "expected files for it (--valid), or more data: one example in 25 is held out for it"
"""End of the error message about missing validation data."""


class Initialized(NamedTuple):
    """The result of `Task.initialize`: a pipeline whose model is ready for its first update."""

    pipeline: Any
    """The task's pipeline, with model and tokenizer."""
    new_parameters: Collection[str] = ()
    """Names of the parameters of a head, which learn fully beside adapters."""
    notes: Sequence[str] = ()
    """Sentences about the model, which are printed before training."""


class Prepared(NamedTuple, Generic[Example, Batch]):
    """The result of `Task.prepare`: the pipeline with its model, the training batches and the evaluation."""

    pipeline: Any
    """The task's pipeline, with the model to train."""
    batches: "Batches[Any]"
    """The training batches, by step number."""
    evaluate: Callable[[], dict[str, float]]
    """Scores the model on the validation examples and returns the scores by name."""
    test: Sequence[Example]
    """The examples that the final scores are computed on."""
    notes: Sequence[str] = ()
    """Lines to print before the first update, about the number of examples, their balance and cut texts."""
    new_parameters: Collection[str] = ()
    """Names of the parameters of a new head, which the checkpoint of `--from` does not have."""
    n_train: int = 0
    """Number of training examples."""
    is_test: bool = False
    """Whether `test` holds test examples. Otherwise it holds the validation examples again."""
    validation: str = ""
    """Decoding method and data of `evaluate`: "greedy, 500 validation pairs"."""
    finish: Callable[[], None] = lambda: None
    """Called when the model has its trained weights, before the final scores, to choose a threshold for example."""


def check_texts(data: TaskData[Any], train: Iterable[Any], valid: Sequence[Any]) -> None:
    """Raise ValueError if there is no text to learn from or to validate on. It names the files if they hold no text."""
    if next(iter(train), None) is None:
        if files := data.training_files() if not valid or data.validation_files() else []:
            _refuse_empty(data, files)
        raise ValueError("no text is left to learn from: expected more data")
    if not valid:
        _refuse_empty(data, data.validation_files())
        raise ValueError(f"no text is left for validation: {MORE_DATA}")


def _refuse_empty(data: TaskData[Any], files: Sequence[Path]) -> None:
    """Raise ValueError, which names the files that gave no text, unless skipped bad records may be the reason."""
    is_empty = not any(path.is_dir() or path.stat().st_size for path in files)
    if files and (is_empty or data.on_bad == "error"):
        are_empty = "are empty" if is_empty else "have no text"
        is_one = "is empty" if is_empty else "has no text"
        raise ValueError(f"{in_short(map(str, files))} {is_one if len(files) == 1 else are_empty}: expected text")


def stored_tokenizer(
    run: "RunFolder | None", train: Callable[[], Tokenizer], name: str = "tokenizer.json"
) -> Tokenizer:
    """Return the tokenizer that the run stored as `name`. A new run calls `train` and stores the tokenizer.

    If `run` is None, the tokenizer is trained and not stored.
    """
    if run is None:
        return train()
    return Tokenizer.from_json(run.keep(name, lambda: train().to_json()), where=str(run.path / name))


def skipped_of(examples: Any) -> Counter[str]:
    """Return how many bad records were skipped while examples were read, by problem."""
    return Counter(getattr(examples, "skipped", ()))


def skipped_note(skipped: Counter[str]) -> list[str]:
    """Return a list with one note about the skipped bad records, counted by problem; empty if there are none."""
    reasons = ", ".join(f"{count:,} with {problem}" for problem, count in skipped.most_common())
    return [f"skipped {counted(skipped.total(), 'bad records')}: {reasons}"] if skipped else []
