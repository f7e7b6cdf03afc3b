"""The interface between `glassformer eval` and a task: the task's options and its scores. Imports no torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.base.plurals import counted
from glassformer.tasks.card import in_short

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Base class of options that `glassformer eval` has for models of one task only; most tasks have none."""

    @property
    def needs_data(self) -> bool:
        """Whether `eval` needs example data; False if another option names what to score."""
        return True


class ScoreReport(NamedTuple):
    """The scores of a model, with a description of the data that they were computed on."""

    scores: "Mapping[str, Scores]"
    """Scores by decoding method, such as "greedy" and "beam 4"; the key is "" if there is only one method."""
    scored_on: str
    """The decoding method and the data: "beam 4, 1,000 texts from test.tsv"."""


def describe_scored(data: Any, examples: Sequence[Any], unit: str, method: str = "") -> str:
    """Return a description of the scored data: "beam 4, 1,000 pairs from test.tsv (3 bad records skipped)".

    Raises ValueError if there are no examples.

    Args:
        data: The data options, with the corpus or the files.
        examples: The examples. Their attribute `skipped`, if they have one, counts bad records by problem.
        unit: Name of the examples, such as "pairs".
        method: The decoding method; left out if empty.
    """
    origin = f"of {data.corpus}" if data.corpus else f"from {in_short(str(path) for path in data.training_files())}"
    n_skipped = Counter[str](getattr(examples, "skipped", ())).total()
    skipped = f" ({counted(n_skipped, 'bad records')} skipped)" if n_skipped else ""
    if not examples:
        raise ValueError(f"no {unit} {origin}{skipped}: expected at least one to score on")
    return f"{method}, " * bool(method) + f"{counted(len(examples), unit)} {origin}{skipped}"
