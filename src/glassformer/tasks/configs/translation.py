"""Data and config of translation."""

from dataclasses import dataclass, field
from pathlib import Path

from glassformer.data.corpora import open_corpus
from glassformer.data.pairs import Pair, PairReader
from glassformer.data.records import OnBad
from glassformer.data.splits import split_pairs
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Where sentence pairs come from: files of your own, or a named corpus."""

    source: tuple[Path, ...] = ()
    """Text files, aligned with `target`; or .tsv, .csv, .jsonl with both sides; .gz too."""
    target: tuple[Path, ...] = ()
    valid_source: tuple[Path, ...] = ()
    """For validation. Without it, a twenty-fifth of the training pairs, chosen by a hash of their sources."""
    valid_target: tuple[Path, ...] = ()
    source_column: str = "source"
    target_column: str = "target"
    on_bad: OnBad = "error"
    """What to do with a bad record: stop and name its file and line, or count and skip it."""
    corpus: str = ""
    """interface-texts, multi30k or tatoeba, instead of files."""
    folder: Path | None = None
    """Where multi30k or tatoeba lie."""
    source_language: str = "en"
    target_language: str = "de"

    def splits(self) -> Splits[Pair]:
        """The pairs of each side; there is no test where the files are the user's own."""
        if self.corpus:
            sides = open_corpus(
                self.corpus, folder=self.folder, source=self.source_language, target=self.target_language
            )
            return Splits(sides["train"], sides["valid"], sides["test"])
        train = self._read(self.source, self.target)
        if self.valid_source:
            return Splits(train, self._read(self.valid_source, self.valid_target))
        halves = split_pairs(train, test=0.0)
        return Splits(halves["train"], halves["valid"])

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
    """Its vocab_size is the most tokens the tokenizer may learn; with a source_vocab_size each side has its own."""
