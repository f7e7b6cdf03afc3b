"""The best settings known for training an encoder for one task, from which its default options come."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from glassformer.tasks.configs.corpus_size import CorpusSize


class EncoderRule(NamedTuple):
    """The best settings found for one task of an encoder. docs/defaults.md shows the runs behind them."""

    width: int
    layers: int
    batch_tokens: Callable[[CorpusSize], int]
    others: Mapping[str, Any]
    """Values of further options, by dotted name."""
    vocabulary: Callable[[CorpusSize], int] | None = None
    """The size of the vocabulary; None takes the one of other tasks, which also depends on the time."""
    max_updates: int = 0
    """More updates than this, and more epochs than `max_epochs`, did not help; 0 has no limit."""
    max_epochs: float = 0.0
    enough_updates: int = 0
    cheaper: tuple[Mapping[str, Any], ...] = ()
    """Values that make an update cheaper, by dotted name. If fewer than `enough_updates` fit into the time, the first
    of these with which they fit is taken, else the last."""
