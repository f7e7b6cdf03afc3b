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
    """Examples for training, validation and test. Files of the user have no test split."""

    train: Iterable[Example]
    valid: Iterable[Example]
    test: Iterable[Example] = ()


@dataclass(frozen=True, kw_only=True)
class TaskData(Checked, Generic[Example]):
    """Where a task's examples come from. The fields are flags of `train` and `eval`."""

    FILE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Fields that name files to read; first those of the training files."""
    SOURCE_FIELDS: ClassVar[frozenset[str]] = frozenset({"on_bad", "corpus"})
    """Fields that say which data is read, not how. They are not stored in the model folder."""
    CORPORA: ClassVar[Collection[str]] = ()
    """Names that `corpus` may have."""
    NO_FILES: ClassVar[str] = "no data: expected at least one .tsv, .csv or .jsonl file, or a corpus"
    """The error where neither files nor a corpus are named."""

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
        """Return the examples to train, validate and test with."""

    @abstractmethod
    def examples(self) -> list[Example]:
        """Return all examples of the named files, for `eval`; of a corpus, its test split."""

    def settings(self) -> dict[str, Any]:
        """Return what `task.json` stores about the data: how it was read, so that `eval` reads other files alike."""
        return {"data": {name: value for name, value in asdict(self).items() if name not in self.SOURCE_FIELDS}}

    @classmethod
    def changed_settings(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data options in the contents of a `task.json` that are not the default."""
        data = about.get("data")
        if not isinstance(data, dict):
            return {}
        usual = cls()
        return {name: value for name, value in data.items() if value != getattr(usual, name, None)}

    @classmethod
    def stored_languages(cls, about: Mapping[str, Any]) -> dict[str, dict[str, str] | None] | None:
        """Return the languages that a `task.json` names, by side: code and origin, None for an unknown language.

        None for a task whose data has no languages.
        """
        return None

    def is_given(self) -> bool:
        """Return whether training files or a corpus are named."""
        return bool(self.corpus or getattr(self, self.FILE_FIELDS[0]))

    def training_files(self) -> list[Path]:
        """Return the files that the model is trained on."""
        return [path for name in self.FILE_FIELDS if not name.startswith("valid") for path in getattr(self, name)]

    def validation_files(self) -> list[Path]:
        """Return the files for validation: none if part of the training data is held out."""
        return [path for name in self.FILE_FIELDS if name.startswith("valid") for path in getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class FileData(TaskData[Example]):
    """Data whose files hold whole examples: `--data` for training and `--valid` for validation."""

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
            return list(self._read(self.data))
        splits = self.corpus_splits()
        return list(splits.test) or list(splits.valid)

    def corpus_splits(self) -> Splits[Example]:
        """Return the splits of the named corpus."""
        raise NotImplementedError

    @abstractmethod
    def split_key(self, example: Example) -> str:
        """Return the text by whose hash an example is held out, so that examples with the same text stay together."""

    @abstractmethod
    def read(self, paths: tuple[Path, ...]) -> Iterable[Example]:
        """Return the examples of some files. They may be read again in each pass; `skipped` counts the bad ones."""

    def _read(self, paths: tuple[Path, ...]) -> Iterable[Example]:
        if not paths:
            raise ValueError(self.NO_FILES)
        return self.read(paths)


def train_on_rare_labels(
    splits: Splits[Example], labels_of: Callable[[Example], Collection[str]], keep: bool = False
) -> Splits[Example]:
    """Return the splits in memory, where no validation example has a label that no training example has.

    With `keep` the validation examples are the user's choice and stay. Otherwise such examples, whose label fell into
    the held-out part as a whole, are moved to the training examples.
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
    """A complete recipe: each part is a table of a TOML file, and its fields are flags. Tasks add `data` and more."""

    FIRST_OPTIONS: ClassVar[tuple[str, ...]] = ("data", "valid")
    """The options of the task that `--help` shows first."""
    ENCODER_RULE: ClassVar[EncoderRule | None] = None
    """How an encoder is best trained for this task. Without one, its default options are those of its config."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How the tokenizer of a new model is trained."""
    model: ModelConfig
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(default_factory=TrainConfig)
    start_from: Path | None = None
    """Initialize from a trained model (a folder of ours or a Hugging Face folder): its architecture, weights and
    tokenizer are taken, and a head that it lacks is created."""
