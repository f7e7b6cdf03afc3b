"""The inputs of a training run that a task prepares: pipeline, batches and evaluation. Imports no torch."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from glassformer.tasks.configs.shared import Example
from glassformer.text import Tokenizer

if TYPE_CHECKING:
    from glassformer.training.run_folder import RunFolder
    from glassformer.training.trainer import Batches

Batch = TypeVar("Batch")
SplitName = Literal["validation", "test"]
MORE_DATA = "expected files for it (--valid), or more data: one example in 25 is held out for it"


class Initialized(NamedTuple):
    """A pipeline whose model is ready for its first update."""

    pipeline: Any
    new_parameters: Collection[str] = ()
    """Names of the parameters that the checkpoint of `--from` did not have: those of a new head."""


class Prepared(NamedTuple, Generic[Example, Batch]):
    """Everything that training needs: the model in its pipeline, the batches and the evaluation."""

    pipeline: Any
    batches: "Batches[Any]"
    evaluate: Callable[[], dict[str, float]]
    """Returns the scores of a validation."""
    test: Sequence[Example]
    """The examples that the final scores are computed on."""
    notes: Sequence[str] = ()
    """Printed before the first update: numbers of examples, balance, what was cut."""
    new_parameters: Collection[str] = ()
    """Names of the parameters that the checkpoint of `--from` did not have: those of a new head."""
    n_train: int = 0
    """Number of training examples."""
    is_test: bool = False
    """Whether `test` holds test examples. Otherwise it holds the validation examples again."""
    validation: str = ""
    """On what and how `evaluate` scores: "greedy, 500 validation pairs"."""
    finish: Callable[[], None] = lambda: None
    """Called with the trained weights, before the final scores."""


def stored_tokenizer(
    run: "RunFolder | None", train: Callable[[], Tokenizer], name: str = "tokenizer.json"
) -> Tokenizer:
    """Return the tokenizer that a run stored. A new run trains and stores it; without a run it is only trained."""
    if run is None:
        return train()
    return Tokenizer.from_json(run.keep(name, lambda: train().to_json()), where=str(run.path / name))


def skipped_note(skipped: Counter[str]) -> list[str]:
    """Return a note about the bad records that were skipped, or an empty list if there are none."""
    reasons = ", ".join(f"{count:,} with {problem}" for problem, count in skipped.most_common())
    return [f"skipped {skipped.total():,} bad records: {reasons}"] if skipped else []
