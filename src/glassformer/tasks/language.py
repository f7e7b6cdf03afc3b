"""Language modeling: train a decoder on plain texts, so that it continues a text."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from glassformer.base.fields import Count, Probability
from glassformer.data.corpora.standard_library import standard_library
from glassformer.data.readers.text_documents import Document, DocumentReader, SplitDocuments, split_documents
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.decoder_task import DecoderTask
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class DocumentData(FileData[Document]):
    """Options that choose the data for language modeling: documents from files, folders or a corpus."""

    CORPORA = ("standard-library",)
    NO_FILES = "no data: expected at least one text file, .jsonl file or folder, or a corpus"
    SOURCE_FIELDS = FileData.SOURCE_FIELDS | {"valid_share"}

    data: tuple[Path, ...] = ()
    """Texts: text files with one document each; .jsonl, .tsv or .csv files with one per record; or folders of text
    files (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Texts for validation; without them, one document in 25 is held out for it, or the last tenth of a single
    text."""
    valid_share: Probability = 0.0
    """Validate on this last share of the text instead: 0.1 is its last tenth."""
    text_column: str = "text"
    """Column of the texts in .jsonl, .tsv and .csv files."""
    suffixes: tuple[str, ...] = (".txt", ".md", ".rst")
    """Endings of the files that are read in a folder."""
    document_separator: str = ""
    """Line between two documents of a text file; blank is an empty line."""
    corpus: str = ""
    """Use a named corpus instead of files: standard-library, the docstrings of Python's standard library."""

    @override
    def splits(self) -> Splits[Document]:
        if self.corpus:
            return self.corpus_splits()
        if self.valid:
            return Splits(self._read(self.data), list(self._read(self.valid)))
        sides = split_documents(self.read(self.data), self.valid_share)
        return Splits(sides.train, list(sides.valid))

    @override
    def corpus_splits(self) -> Splits[Document]:
        return Splits(*self._corpus())

    @override
    def split_key(self, example: Document) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> DocumentReader:
        if not paths:
            raise ValueError(self.NO_FILES)
        return DocumentReader(paths, self.suffixes, self.text_column, self.document_separator, self.on_bad)

    def _corpus(self) -> SplitDocuments:
        return standard_library("docstrings")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TaskConfig):
    """The complete config of training a language model."""

    FIRST_OPTIONS = ("data", "valid", "text_column")

    data: DocumentData = field(default_factory=DocumentData)
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(prefix_space=False))
    model: ModelConfig = field(default_factory=small_decoder)
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn; its max_len is set to
    `context`."""
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
    """Number of tokens that the model reads at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer.bpe_dropout:
            raise ValueError(
                f"bpe_dropout={self.tokenizer.bpe_dropout}: expected 0, a decoder is trained on one tokenization"
            )


class Language(DecoderTask):
    """Train a decoder that continues a text."""

    name, title = "language", "A language model"
    Config: ClassVar[type[TaskConfig]] = LanguageConfig

    @override
    @classmethod
    def demo(cls) -> LanguageConfig:
        """Return the config of a model that is trained on the docstrings of Python's standard library."""
        config = LanguageConfig(data=DocumentData(corpus="standard-library"))
        return replace(config, train=replace(config.train, minutes=2.0, eval_every=1000, save_every=1000))
