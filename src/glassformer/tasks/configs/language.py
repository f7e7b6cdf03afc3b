"""Data and configs of language and code models."""

from dataclasses import dataclass, field
from pathlib import Path

from glassformer.base.fields import Checked, Count, Probability
from glassformer.data.corpora.standard_library import standard_library
from glassformer.data.readers.records import OnBad
from glassformer.data.readers.text_documents import Document, DocumentReader, TwoSides, split_documents
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig, check_corpus
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class DocumentData(Checked):
    """Where texts come from."""

    data: tuple[Path, ...] = ()
    """Texts: text files with one document each; .jsonl, .tsv or .csv files with one per record; or folders of text
    files (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Texts for validation; without them, one document in twenty-five is kept for it, or the last tenth of a single
    text."""
    valid_share: Probability = 0.0
    """Validate on this last share of the text instead: 0.1 is its last tenth."""
    text_column: str = "text"
    """Column of the texts in .jsonl, .tsv and .csv files."""
    suffixes: tuple[str, ...] = (".txt", ".md", ".rst")
    """Endings of the files that are read in a folder."""
    document_separator: str = ""
    """Line between two documents of a text file; blank is an empty line."""
    on_bad: OnBad = "error"
    """What to do with a bad document: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: standard-library, the documentation in Python's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, ["standard-library"])

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
            optimizer="muon",
            momentum=0.9,
            beta2=0.99,
            eps=1e-8,
            weight_decay=0.1,
            label_smoothing=0.0,
        )
    )
    context: Count = 128
    """Tokens that the model reads at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer.bpe_dropout:
            raise ValueError(f"bpe_dropout={self.tokenizer.bpe_dropout}: expected 0, for a decoder learns one cut")


@dataclass(frozen=True, kw_only=True)
class CodeData(DocumentData):
    """Where source code comes from."""

    suffixes: tuple[str, ...] = (".py",)
    """Endings of the files that are read in a folder."""
    corpus: str = ""
    """Use a named corpus instead of files: standard-library, the source of Python's own."""

    def _corpus(self) -> TwoSides:
        return standard_library("code")


@dataclass(frozen=True, kw_only=True)
class CodeConfig(LanguageConfig):
    """A whole recipe."""

    data: CodeData = field(default_factory=CodeData)
    context: Count = 256
    """Tokens that the model reads at once."""
    fim: Probability = 0.5
    """Probability that a piece of code is learned with its middle last, so that the model can fill in gaps."""
