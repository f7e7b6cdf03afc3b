"""The best settings known for training an encoder for one task, from which its default options come."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from glassformer.tasks.configs.corpus_size import CorpusSize


class EncoderRule(NamedTuple):
    """The model and training settings from which the defaults of an encoder task, such as tagging, are computed.

    They are the best ones found in the training runs of docs/defaults.md. "The time" below is the training time that
    the user asked for.
    """

    width: int
    """`d_model`; wider if there is more time and more data."""
    layers: int
    """Number of encoder layers; a multiple of it if there is more time."""
    batch_tokens: Callable[[CorpusSize], int]
    """Returns the number of tokens of a batch for a corpus."""
    others: Mapping[str, Any]
    """Values of further options, by dotted name."""
    vocabulary: Callable[[CorpusSize], int] | None = None
    """Returns the vocabulary size for a corpus; None uses the rule of encoder-decoders."""
    max_updates: int = 0
    """Largest number of updates, because more did not help; 0 is no limit."""
    max_epochs: float = 0.0
    """Limit for a large corpus: if this many epochs are more updates than `max_updates`, it replaces that limit."""
    enough_updates: int = 0
    """Number of updates that should fit into the time; see `cheaper`."""
    cheaper: tuple[Mapping[str, Any], ...] = ()
    """Sets of options, by dotted name, that make an update cheaper. If fewer than `enough_updates` fit into the time,
    the first set with which they fit is used; if there is none, the last set."""
