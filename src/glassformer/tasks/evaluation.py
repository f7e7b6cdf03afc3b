"""The interface between `glassformer eval` and a task: the task's options and its scores. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.tasks.card import in_short

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options that `eval` has for models of one task alone. A task that has some declares a subclass."""

    @property
    def needs_data(self) -> bool:
        """Whether examples must be given. False if other options name what is scored."""
        return True


class ScoreReport(NamedTuple):
    """The scores of a model, and what they were computed on."""

    scores: "Mapping[str, Scores]"
    """The scores by the name of the search. If there is only one search, its name is empty."""
    scored_on: str
    """The decoding method and the data: "beam 4, 1,000 texts from test.tsv"."""


def describe_scored(data: Any, count: int, unit: str, method: str = "") -> str:
    """Describe `count` examples of the files or the corpus of `data`, after the decoding method."""
    origin = f"of {data.corpus}" if data.corpus else f"from {in_short(str(path) for path in data.training_files())}"
    return f"{method}, " * bool(method) + f"{count:,} {unit} {origin}"
