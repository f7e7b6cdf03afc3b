"""What the configs of all tasks share: splits, the data protocol, and the parts of a recipe. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from glassformer.base.checks import shown
from glassformer.base.fields import Checked
from glassformer.base.names import suggestion
from glassformer.models import ModelConfig
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig

Example = TypeVar("Example")
FILE_FIELDS = ("source", "target", "data", "valid_source", "valid_target", "valid")
"""Fields of a task's data that name files to read."""


class Splits(NamedTuple, Generic[Example]):
    """Examples to learn from, to choose by, and to score with at the end; the last may be missing."""

    train: Iterable[Example]
    valid: Iterable[Example]
    test: Iterable[Example] = ()


class TaskData(Protocol[Example]):
    """Where a task's examples come from: a frozen dataclass, whose fields are flags of `train` and `eval`."""

    def splits(self) -> Splits[Example]:
        """To train with."""

    def examples(self) -> Sequence[Example]:
        """Everything that was named, to score with."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Checked):
    """A whole recipe: each part is a table of a TOML file, and its fields are flags. Tasks add `data` and more."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How the tokenizer of a model from scratch is trained."""
    model: ModelConfig
    """The architecture of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(default_factory=TrainConfig)
    start_from: Path | None = None
    """Initialize from a trained model (a folder of ours or a Hugging Face folder): its architecture, weights and
    tokenizer are taken, and a head that it lacks is created."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TaskConfig):
    """A whole recipe. The model to begin with may be in HF's folder: its body is taken, under a fresh head."""


def check_corpus(data: Any, known: Iterable[str]) -> None:
    """Raise if the corpus of a task's data is unknown, or if files are named beside it: they would not be read."""
    if not data.corpus:
        return
    if data.corpus not in known:
        raise ValueError(f"unknown corpus {shown(data.corpus)}: {suggestion(data.corpus, known)}")
    for name in FILE_FIELDS:
        if files := getattr(data, name, ()):
            raise ValueError(
                f"corpus {shown(data.corpus)} and {name.replace('_', '-')} {shown(str(files[0]))}: expected a named "
                "corpus or files, not both (an empty --corpus= overrides that of a recipe)"
            )
