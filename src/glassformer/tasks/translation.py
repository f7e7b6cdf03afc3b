"""Translation: from sentence pairs to a model folder that translates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from glassformer.data.corpora import CORPORA, open_corpus
from glassformer.data.pairs import Pair, PairReader
from glassformer.data.records import OnBad
from glassformer.data.splits import split_pairs
from glassformer.decoding import GenerationConfig
from glassformer.metrics import Scores, score_translations
from glassformer.models import ModelConfig
from glassformer.tasks.pipeline import ManyTexts
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask, small_encoder_decoder
from glassformer.tasks.task import Splits, TaskConfig


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


class Translator(Rewriter[Pair]):
    """A trained model with its tokenizers: a sentence in, its translation out."""

    task = "translation"
    search = GenerationConfig(num_beams=4, max_source_ratio=2.0)

    @overload
    def translate(self, texts: str, *, beam: int | None = None, max_batch_tokens: int = 4096) -> str: ...
    @overload
    def translate(self, texts: ManyTexts, *, beam: int | None = None, max_batch_tokens: int = 4096) -> list[str]: ...
    def translate(
        self, texts: str | ManyTexts, *, beam: int | None = None, max_batch_tokens: int = 4096
    ) -> str | list[str]:
        """Translate one text, or each of a list in the same order; a blank text stays blank.

        Sources longer than the model's limit are cut to it. `beam` is how many sentences are kept at each step; 1 is
        greedy.
        """
        return self.write(texts, beam=beam, max_batch_tokens=max_batch_tokens)

    def score(self, examples: Sequence[Pair], *, beam: int | None = None) -> Scores:
        """BLEU and chrF of the translations of these sources against their targets."""
        found = self.translate([pair.source for pair in examples], beam=beam)
        return score_translations(found, [pair.target for pair in examples])


class Translation(RewritingTask[Pair]):
    """Sentence pairs to a translator."""

    name, title = "translation", "A translator"
    Config, Data, Tool = TranslationConfig, PairData, Translator

    def about_data(self) -> str:
        """As above."""
        data = self.config.data
        languages = f"from {data.source_language} to {data.target_language}"
        if data.corpus in CORPORA:
            corpus = CORPORA[data.corpus]
            return f"{data.corpus}, {languages} ({corpus.about}; licence: {corpus.licence})"
        return ", ".join(str(path) for path in data.source)
