"""Data and configs of language and code models."""

from dataclasses import dataclass, field
from pathlib import Path

from glassformer.base.checks import check_positive, check_probability
from glassformer.data.documents import Document, DocumentReader, TwoSides, split_documents
from glassformer.data.records import OnBad
from glassformer.data.standard_library import standard_library
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.text import TokenizerConfig
from glassformer.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class DocumentData:
    """Where texts come from."""

    data: tuple[Path, ...] = ()
    """Text files, one document each; .jsonl, .tsv or .csv, one a record; folders of texts; .gz too."""
    valid: tuple[Path, ...] = ()
    """For validation. Without it, one document in twenty-five, chosen by a hash of its text; of one long text, its
    last tenth."""
    valid_share: float = 0.0
    """Validate on this last share of the text instead: 0.1 is its last tenth."""
    text_column: str = "text"
    suffixes: tuple[str, ...] = (".txt", ".md", ".rst")
    """Of the files that count in a folder."""
    document_separator: str = ""
    """A line that stands between two documents of a text file; `blank` is an empty one."""
    on_bad: OnBad = "error"
    """What to do with a bad document: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """standard-library, for the documentation in Python's own; instead of files."""

    def splits(self) -> Splits[Document]:
        """To learn from, and to validate on."""
        if self.corpus:
            return Splits(*self._corpus())
        if self.valid:
            return Splits(self._read(self.data), list(self._read(self.valid)))
        sides = split_documents(self._read(self.data), self.valid_share)
        return Splits(sides.train, list(sides.valid))

    def examples(self) -> list[Document]:
        """Everything in `data`; of a corpus, what is held out."""
        return list(self._corpus().valid if self.corpus else self._read(self.data))

    def _read(self, paths: tuple[Path, ...]) -> DocumentReader:
        if not paths:
            raise ValueError("no data: expected at least one text file, .jsonl file or folder, or a corpus")
        return DocumentReader(paths, self.suffixes, self.text_column, self.document_separator, self.on_bad)

    def _corpus(self) -> TwoSides:
        if self.corpus != "standard-library":
            raise ValueError(f"unknown corpus {self.corpus!r}: expected standard-library")
        return standard_library("docstrings")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TaskConfig):
    """A whole recipe."""

    data: DocumentData = field(default_factory=DocumentData)
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(prefix_space=False))
    model: ModelConfig = field(default_factory=small_decoder)
    """Its vocab_size is the most tokens the tokenizer may learn; its max_len is `context`."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=5000,
            max_tokens=1024,
            lr=1e-2,
            warmup=100,
            schedule="linear",
            optimiser="muon",
            momentum=0.9,
            beta2=0.99,
            eps=1e-8,
            weight_decay=0.1,
            label_smoothing=0.0,
        )
    )
    context: int = 128
    """Tokens that the model sees at once."""

    def __post_init__(self) -> None:
        check_positive("context", self.context)
        if self.tokenizer.bpe_dropout:
            raise ValueError(f"bpe_dropout={self.tokenizer.bpe_dropout}: expected 0, for a decoder learns one cut")


@dataclass(frozen=True, kw_only=True)
class CodeData(DocumentData):
    """Where source code comes from."""

    suffixes: tuple[str, ...] = (".py",)
    """Of the files that count in a folder."""
    corpus: str = ""
    """standard-library, for the source of Python's own; instead of files."""

    def _corpus(self) -> TwoSides:
        if self.corpus != "standard-library":
            raise ValueError(f"unknown corpus {self.corpus!r}: expected standard-library")
        return standard_library("code")


@dataclass(frozen=True, kw_only=True)
class CodeConfig(LanguageConfig):
    """A whole recipe."""

    data: CodeData = field(default_factory=CodeData)
    context: int = 256
    """Tokens that the model sees at once."""
    fim: float = 0.5
    """The chance that a piece of a document is learned with its middle last, so that the model can fill in gaps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("fim", self.fim)
