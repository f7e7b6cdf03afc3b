"""Base classes of every task's config and data options, and the splits of a data set. Imports no torch."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from typing_extensions import override

from glassformer.base.checks import shown
from glassformer.base.fields import Checked
from glassformer.base.names import suggestion
from glassformer.data.readers.records import Examples, OnBad
from glassformer.data.readers.splits import split_examples
from glassformer.models import ModelConfig
from glassformer.tasks.configs.encoder_rule import EncoderRule
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig

Example = TypeVar("Example")


class Splits(NamedTuple, Generic[Example]):
    """Examples for training, validation and test. The test split is empty if the data comes from the user's files."""

    train: Iterable[Example]
    valid: Iterable[Example]
    test: Iterable[Example] = ()


@dataclass(frozen=True, kw_only=True)
class TaskData(Checked, Generic[Example]):
    """Base class of a task's data options: files or a named corpus. The fields are flags of `train` and `eval`."""

    FILE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that hold paths of files to read; fields of training files come first."""
    SOURCE_FIELDS: ClassVar[frozenset[str]] = frozenset({"on_bad", "corpus"})
    """Names of the fields that say which data is read, not how. They are not stored in the model folder."""
    CORPORA: ClassVar[Collection[str]] = ()
    """Names that `corpus` may have."""
    NO_FILES: ClassVar[str] = "no data: expected at least one .tsv, .csv or .jsonl file, or a corpus"
    """Error message if neither files nor a corpus are given."""

    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corpus:
            return
        if self.corpus not in self.CORPORA:
            raise ValueError(f"unknown corpus {shown(self.corpus)}: {suggestion(self.corpus, self.CORPORA)}")
        for name in self.FILE_FIELDS:
            if files := getattr(self, name):
                raise ValueError(
                    f"corpus {shown(self.corpus)} and {name.replace('_', '-')} {shown(str(files[0]))}: expected a "
                    "named corpus or files, not both (an empty --corpus= overrides that of a recipe)"
                )

    @abstractmethod
    def splits(self) -> Splits[Example]:
        """Return the examples for training, validation and test."""

    @abstractmethod
    def examples(self) -> list[Example]:
        """Return the examples that `eval` scores: all examples of the files, or the test split of a corpus."""

    def settings(self) -> dict[str, Any]:
        """Return the data options that `task.json` stores, so that `eval` reads other files in the same way."""
        return {"data": {name: value for name, value in asdict(self).items() if name not in self.SOURCE_FIELDS}}

    @classmethod
    def changed_settings(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data options in `about`, the contents of a `task.json`, that differ from the default."""
        data = about.get("data")
        if not isinstance(data, dict):
            return {}
        usual = cls()
        return {name: value for name, value in data.items() if value != getattr(usual, name, None)}

    @classmethod
    def stored_languages(cls, about: Mapping[str, Any]) -> dict[str, dict[str, str] | None] | None:
        """Return the languages in `about`, the contents of a `task.json`, by side ("source" and "target").

        A language is a dictionary of code and origin, or None if it is unknown. The result is None for a task whose
        data has no languages.
        """
        return None

    def is_given(self) -> bool:
        """Whether training files or a corpus are given."""
        return bool(self.corpus or getattr(self, self.FILE_FIELDS[0]))

    def training_files(self) -> list[Path]:
        """Return the files that the model is trained on."""
        return [path for name in self.FILE_FIELDS if not name.startswith("valid") for path in getattr(self, name)]

    def validation_files(self) -> list[Path]:
        """Return the files for validation; empty if part of the training data is held out instead."""
        return [path for name in self.FILE_FIELDS if name.startswith("valid") for path in getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class FileData(TaskData[Example]):
    """Base class of data options with one list of files for training, `--data`, and one for validation, `--valid`."""

    FILE_FIELDS = ("data", "valid")
    SOURCE_FIELDS = TaskData.SOURCE_FIELDS | {"data", "valid"}

    data: tuple[Path, ...] = ()
    """Files with examples."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one example in 25 of the training data is held out for it."""

    @override
    def splits(self) -> Splits[Example]:
        if self.corpus:
            return self.corpus_splits()
        train = self._read(self.data)
        if self.valid:
            return Splits(train, self._read(self.valid))
        sides = split_examples(train, self.split_key, test=0.0)
        return Splits(sides["train"], sides["valid"])

    @override
    def examples(self) -> list[Example]:
        if not self.corpus:
            return Examples.of(self._read(self.data))
        splits = self.corpus_splits()
        return list(splits.test) or list(splits.valid)

    def corpus_splits(self) -> Splits[Example]:
        """Return the training, validation and test examples of the corpus that `corpus` names."""
        raise NotImplementedError

    @abstractmethod
    def split_key(self, example: Example) -> str:
        """Return the text whose hash decides whether an example is held out for validation.

        Examples with the same text are therefore in the same split.
        """

    @abstractmethod
    def read(self, paths: tuple[Path, ...]) -> Iterable[Example]:
        """Return the examples of some files, as an iterable that may read the files again in each pass.

        Its attribute `skipped`, if it has one, counts the bad records.
        """

    def _read(self, paths: tuple[Path, ...]) -> Iterable[Example]:
        if not paths:
            raise ValueError(self.NO_FILES)
        return self.read(paths)


def train_on_rare_labels(
    splits: Splits[Example], labels_of: Callable[[Example], Collection[str]], keep: bool = False
) -> Splits[Example]:
    """Return the splits with validation examples moved to training if they have a label that training lacks.

    This happens if all examples of a rare label were held out for validation. With `keep`, for validation examples that
    the user chose, nothing is moved. Training and validation examples become lists in memory.
    """
    train, valid = list(splits.train), list(splits.valid)
    skipped = Counter(getattr(splits.train, "skipped", ()))
    if not keep:
        learned = {label for example in train for label in labels_of(example)}
        train += [example for example in valid if not learned.issuperset(labels_of(example))]
        valid = [example for example in valid if learned.issuperset(labels_of(example))]
    return Splits(Examples(train, skipped), valid, splits.test)


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Checked):
    """Base class of a task's complete config. A task adds `data` and its own options.

    Each part is a table of a TOML recipe, and the fields of the parts are command-line flags.
    """

    FIRST_OPTIONS: ClassVar[tuple[str, ...]] = ("data", "valid")
    """Names of the options that `--help` shows first."""
    NEEDS_MODEL: ClassVar[bool] = False
    """Whether the task trains a given model only: `--from` is required."""
    ENCODER_RULE: ClassVar[EncoderRule | None] = None
    """Rule for the default options of a task that trains an encoder; None uses the defaults of the config."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How the tokenizer of a new model is trained."""
    model: ModelConfig
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(default_factory=TrainConfig)
    start_from: Path | None = None
    """Initialize from a trained model (a folder that Glassformer wrote, a Hugging Face folder or a GGUF file): its
    architecture, weights and tokenizer are taken, and a head that it lacks is created."""
    grow_from: Path | None = None
    """Start with a larger model with the outputs of a smaller one that Glassformer trained: its tokenizer and
    architecture are taken, and the sizes that are given, such as --n-decoder-layers or --d-ff, grow."""

    @property
    def base_model(self) -> Path | None:
        """The trained model whose weights and tokenizer the training starts with: of `start_from` or `grow_from`."""
        return self.start_from if self.grow_from is None else self.grow_from

    @property
    def base_flag(self) -> str:
        """The option that names `base_model`, for error messages."""
        return "--from" if self.grow_from is None else "--grow-from"
