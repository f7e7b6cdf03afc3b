"""Data and configs of masking and denoising: texts alone."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from glassformer.base.fields import Checked
from glassformer.data.corpora.docstrings import docstrings
from glassformer.data.readers.plain_texts import PlainText, TextReader
from glassformer.data.readers.records import OnBad
from glassformer.data.readers.splits import split_examples
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import EncoderConfig, Splits, TaskConfig, check_corpus
from glassformer.tasks.configs.small_models import small_encoder_decoder, small_language_encoder
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TextData(Checked):
    """Where texts come from."""

    data: tuple[Path, ...] = ()
    """Files with texts: text files with one text per line, or .jsonl, .tsv, .csv with a column of texts (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one text in twenty-five of the training data is kept for it."""
    text_column: str = "text"
    """Column of the texts in .jsonl, .tsv and .csv files."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: docstrings, those of Python's standard library."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, ["docstrings"])

    def splits(self) -> Splits[PlainText]:
        """The texts of each side, read anew in each pass; there is a test where the corpus is a named one."""
        if self.corpus:
            # By what is summarised, as summaries are learned from them: what is kept for testing there is unseen here.
            split = split_examples(docstrings(), lambda one: one.source)
            return Splits(*([PlainText(f"{one.summary} {one.source}") for one in side] for side in split.values()))
        if self.valid:
            return Splits(self._read(self.data), self._read(self.valid))
        sides = split_examples(self._read(self.data), lambda example: example.text, test=0.0)
        return Splits(sides["train"], sides["valid"])

    def examples(self) -> list[PlainText]:
        """Everything that was named; of a corpus what is kept for testing."""
        return list(self.splits().test if self.corpus else self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> TextReader:
        if not paths:
            raise ValueError("no data: expected files with a text a line, or a corpus")
        return TextReader(paths, self.text_column, self.on_bad)


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raise where texts are to be cut in more than one way: what is hidden varies here, not the cuts."""
    if config.bpe_dropout:
        raise ValueError(f"bpe_dropout={config.bpe_dropout}: expected 0, for texts are cut in one way alone here")


def check_noise(share: float, mean_span: float = 1.0) -> None:
    """Raise unless some tokens are hidden, and some are not."""
    if not 0 < share < 1:
        raise ValueError(f"share={share}: expected more than 0 and less than 1")
    if not mean_span >= 1:
        raise ValueError(f"mean_span={mean_span}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(EncoderConfig):
    """A whole recipe. A model to begin with keeps its own masked-word head, where it has one."""

    data: TextData = field(default_factory=TextData)
    model: ModelConfig = field(default_factory=small_language_encoder)
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=10_000, lr=1e-3, warmup=500, schedule="linear", label_smoothing=0.0, eval_every=500
        )
    )
    share: float = 0.15
    """Share of the tokens that the model must predict; 80 % of them are masked, 10 % replaced, 10 % shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.share)
        check_tokenizer(self.tokenizer)


NoiseName = Literal["spans", "infilling"]


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(TaskConfig):
    """A whole recipe."""

    data: TextData = field(default_factory=TextData)
    model: ModelConfig = field(default_factory=lambda: small_encoder_decoder(dropout=0.1, embedding_dropout=0.1))
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(updates=10_000, label_smoothing=0.0))
    noise: NoiseName = "spans"
    """What the model restores: spans writes only the hidden spans, as T5; infilling writes the whole text, whose
    sentences were also shuffled, as BART."""
    share: float = 0.0
    """Share of the tokens that is hidden; 0 takes the papers' values, 0.15 for spans and 0.3 for infilling."""
    mean_span: float = 3.0
    """Mean number of tokens of a hidden span."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.hidden_share, self.mean_span)
        check_tokenizer(self.tokenizer)

    @property
    def hidden_share(self) -> float:
        """How many of the tokens are hidden."""
        return self.share or {"spans": 0.15, "infilling": 0.3}[self.noise]
