"""Language modeling: train a decoder on plain texts, so that it continues a text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from glassformer.base.fields import Count, Probability
from glassformer.data.corpora.standard_library import standard_library
from glassformer.data.readers.file_parts import FilePart, divide_file
from glassformer.data.readers.records import kind_of
from glassformer.data.readers.text_documents import (
    BLANK,
    Document,
    DocumentPiece,
    DocumentReader,
    SplitDocuments,
    split_documents,
)
from glassformer.data.readers.text_files import Span
from glassformer.models import ModelConfig
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.decoder_task import DecoderTask
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TextFileData(FileData[Document]):
    """Options that choose documents from files, folders or a corpus."""

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


MAX_PIECE = 1 << 20
"""Number of characters of a long text that are tokenized at a time."""
HELD_OUT_BYTES = 1 << 20
"""Most bytes at the end of a single large text that are held out for validation."""


@dataclass(frozen=True, kw_only=True)
class DocumentData(DividedData[Document], TextFileData):
    """Options that choose the data for language modeling, which may be larger than memory."""

    SOURCE_FIELDS = TextFileData.SOURCE_FIELDS | DividedData.SOURCE_FIELDS
    TOKENS = "stream"

    @override
    def splits(self) -> Splits[Document]:
        if self.prepared is None:
            return super().splits()
        from glassformer.tasks.tokenized_corpus import TokenizedCorpus

        return Splits((), TokenizedCorpus(self.prepared).valid_examples(self))

    @override
    def examples(self) -> list[Document]:
        return super().examples() if self.prepared is None else list(self.splits().valid)

    @override
    def parts(self, n_bytes: int) -> list[FilePart]:
        if self.valid_share:
            raise ValueError(f"--valid-share {self.valid_share} with large data: expected --valid with files")
        wanted = "" if self.document_separator == BLANK else self.document_separator.strip()
        separator = wanted if self.document_separator else None
        return [
            FilePart(part.files, () if self._is_whole_document(part) else part.spans, part.n_examples)
            for path in self.read(self.data).files
            for part in divide_file(path, n_bytes, separator=separator if kind_of(path) == "text" else None)
        ]

    def _is_whole_document(self, part: FilePart) -> bool:
        is_text = kind_of(part.files[0]) == "text" and not self.document_separator
        return is_text and bool(part.spans) and part.n_bytes() == part.files[0].stat().st_size

    @override
    def read_part(self, part: FilePart) -> "_PartReader":
        return _PartReader(self.read(part.files), part)

    def is_one_text(self, parts: list[FilePart]) -> bool:
        """Whether the parts are one long text without separators."""
        files = {part.files[0] for part in parts}
        return len(files) == 1 and kind_of(parts[0].files[0]) == "text" and not self.document_separator

    def held_out_end(self, parts: list[FilePart], n_texts: int = 1) -> tuple[list[FilePart], list[FilePart]]:
        """Return the parts without the end of a single text, and its end, for validation. Others are not changed.

        `n_texts` is the number of texts whose ends are held out, which share `HELD_OUT_BYTES`.
        """
        path = parts[0].files[0]
        if not self.is_one_text(parts) or path.name.endswith(".gz"):
            return parts, []
        size = path.stat().st_size
        spans = [part.spans[0] if part.spans else Span(0, size, 1) for part in parts]
        ends = list(divide_file(path, max(1, size - min(size // 10, HELD_OUT_BYTES // n_texts))))
        border = ends[-1].spans[0]
        if len(ends) < 2:
            return parts, []
        kept = [Span(one.begin, min(one.end, border.begin), one.line) for one in spans if one.begin < border.begin]
        return [FilePart((path,), (span,)) for span in kept], [FilePart((path,), (border,))]

    @override
    def held_out_text(self, example: DocumentPiece) -> str | None:
        return example.text if example.is_whole else None

    @override
    def example_of(self, record: Mapping[str, Any]) -> Document:
        return Document(record["text"])

    @override
    def record_of(self, example: Document | DocumentPiece) -> dict[str, str]:
        return {"text": example.text}


class _PartReader:
    def __init__(self, reader: DocumentReader, part: FilePart):
        self._reader, self._part, self.skipped = reader, part, reader.skipped

    def __iter__(self) -> Iterator[DocumentPiece]:
        span = self._part.spans[0] if self._part.spans else None
        yield from self._reader.read_part(self._part.files[0], span, max_piece=MAX_PIECE)


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
