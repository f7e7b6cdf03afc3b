"""Data and config of translation."""

from dataclasses import dataclass, field
from pathlib import Path

from glassformer.base.fields import Checked
from glassformer.data.corpora import CORPORA, open_corpus
from glassformer.data.pairs import Pair, PairReader
from glassformer.data.records import OnBad
from glassformer.data.splits import split_pairs
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig, check_corpus
from glassformer.tasks.configs.small_models import small_encoder_decoder


@dataclass(frozen=True, kw_only=True)
class PairData(Checked):
    """Where sentence pairs come from: files of your own, or a named corpus."""

    source: tuple[Path, ...] = ()
    """Files to translate from: text files with one sentence per line, or .tsv, .csv, .jsonl files that hold both sides
    (.gz too)."""
    target: tuple[Path, ...] = ()
    """Files to translate into, line by line the translations of --source."""
    valid_source: tuple[Path, ...] = ()
    """Source files for validation; without them, one training pair in twenty-five is kept for it."""
    valid_target: tuple[Path, ...] = ()
    """Target files for validation."""
    source_column: str = "source"
    """Column of the source sentences in .tsv, .csv and .jsonl files."""
    target_column: str = "target"
    """Column of the target sentences in .tsv, .csv and .jsonl files."""
    on_bad: OnBad = "error"
    """What to do with a bad record: stop with its file and line (error), or count and skip it (skip)."""
    corpus: str = ""
    """Use a named corpus instead of files: interface-texts, multi30k or tatoeba."""
    folder: Path | None = None
    """Folder that holds multi30k or tatoeba."""
    source_language: str = ""
    """Language to translate from (default: en for a named corpus; of files it is the ending of their names, such as
    .en, and is only for the model card)."""
    target_language: str = ""
    """Language to translate into (default: de for a named corpus, where interface-texts has some 60; of files it is the
    ending of their names)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, CORPORA)

    def splits(self) -> Splits[Pair]:
        """The pairs of each side; there is no test where the files are the user's own."""
        if self.corpus:
            source, target = self.corpus_languages()
            sides = open_corpus(self.corpus, folder=self.folder, source=source, target=target)
            return Splits(sides["train"], sides["valid"], sides["test"])
        train = self._read(self.source, self.target)
        if self.valid_source:
            return Splits(train, self._read(self.valid_source, self.valid_target))
        halves = split_pairs(train, test=0.0)
        return Splits(halves["train"], halves["valid"])

    def corpus_languages(self) -> tuple[str, str]:
        """The languages of a named corpus: as given, else English and German."""
        return self.source_language or "en", self.target_language or "de"

    def examples(self) -> list[Pair]:
        """Everything in `source` and `target`; of a corpus what is kept for testing."""
        return list(self.splits().test if self.corpus else self._read(self.source, self.target))

    def _read(self, source: tuple[Path, ...], target: tuple[Path, ...]) -> PairReader:
        if not source:
            raise ValueError("no data: expected source and target files, or a corpus")
        return PairReader(source, target, self.source_column, self.target_column, self.on_bad)


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(TaskConfig):
    """A whole recipe."""

    data: PairData = field(default_factory=PairData)
    model: ModelConfig = field(default_factory=small_encoder_decoder)
    """The architecture. Its vocab_size is the most tokens the tokenizer may learn; with a source_vocab_size each side
    has a tokenizer of its own."""
