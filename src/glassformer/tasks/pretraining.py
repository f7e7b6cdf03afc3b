"""Code that the pretraining tasks masking and denoising share: data options, tokenized texts, checks of settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from glassformer.data.batching.text_rows import TextRows, write_text_rows
from glassformer.data.batching.token_files import EncodeBatch
from glassformer.data.corpora.docstrings import docstrings
from glassformer.data.readers.plain_texts import PlainText, TextReader
from glassformer.data.readers.splits import split_examples
from glassformer.tasks.configs.shared import FileData, Splits
from glassformer.text import TokenizerConfig

if TYPE_CHECKING:
    from glassformer.training.run_folder import RunFolder

MAX_VALID = 2000
"""Largest number of texts that each validation scores."""


@dataclass(frozen=True, kw_only=True)
class TextData(FileData[PlainText]):
    """Options that choose the data for pretraining: plain texts from files or a named corpus."""

    CORPORA = ("docstrings",)
    NO_FILES = "no data: expected files with one text per line, or a corpus"

    data: tuple[Path, ...] = ()
    """Files with texts: text files with one text per line, or .jsonl, .tsv, .csv with a column of texts (.gz too)."""
    text_column: str = "text"
    """Column of the texts in .jsonl, .tsv and .csv files."""
    corpus: str = ""
    """Use a named corpus instead of files: docstrings, those of Python's standard library."""

    @override
    def corpus_splits(self) -> Splits[PlainText]:
        # By the text that is summarized, as `train summarization --corpus docstrings` splits: its test texts are not
        # seen here.
        split = split_examples(docstrings(), lambda one: one.source)
        return Splits(*([PlainText(f"{one.summary} {one.source}") for one in side] for side in split.values()))

    @override
    def split_key(self, example: PlainText) -> str:
        return example.text

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[PlainText]:
        return TextReader(paths, self.text_column, self.on_bad)


def token_rows(run: "RunFolder", examples: Iterable[PlainText], encode: EncodeBatch, longest: int) -> TextRows:
    """Tokenize the texts, cut them into sequences of at most `longest` tokens, and store these in the run folder.

    A resumed run returns the sequences that it stored.
    """
    folder = run.tokens / "rows"
    if run.has_tokens(folder.name):
        return TextRows(folder)
    return write_text_rows(folder, (example.text for example in examples), encode, longest=longest)


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raise ValueError if BPE-dropout is on: pretraining varies which tokens are hidden, not the tokenization."""
    if config.bpe_dropout:
        raise ValueError(f"bpe_dropout={config.bpe_dropout}: expected 0, because this task hides tokens instead")


def check_noise(share: float, mean_span: float = 1.0) -> None:
    """Raise ValueError unless the `share` of hidden tokens is between 0 and 1, and the mean span at least one token."""
    if not 0 < share < 1:
        raise ValueError(f"share={share}: expected more than 0 and less than 1")
    if not mean_span >= 1:
        raise ValueError(f"mean_span={mean_span}: expected at least 1")
