"""Data and config of tagging."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from glassformer.base.fields import Checked, Probability
from glassformer.data.corpora.synthetic_sentences import made_sentences
from glassformer.data.readers.records import Examples, OnBad
from glassformer.data.readers.splits import split_examples
from glassformer.data.readers.tagged_sentences import TaggedReader, TaggedSentence
from glassformer.models import ModelConfig
from glassformer.tasks.configs.shared import EncoderConfig, Splits, check_corpus
from glassformer.tasks.configs.small_models import small_tagger
from glassformer.text.word_windows import joined
from glassformer.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TaggedData(Checked):
    """Where tagged sentences come from."""

    data: tuple[Path, ...] = ()
    """Files with tagged sentences: CoNLL columns with one word per line and a blank line after each sentence, or .jsonl
    with spans of characters (.gz too)."""
    valid: tuple[Path, ...] = ()
    """Files for validation; without them, one sentence in twenty-five of the training data is kept for it."""
    corpus: Literal["", "made-sentences"] = ""
    """Use a named corpus instead of files: made-sentences, which are generated."""
    word_column: int = 1
    """Column of the words, counted from 1, or from the last one, which is -1."""
    tag_column: int = -1
    """Column of the tags, counted in the same way."""
    scheme: Literal["auto", "iob1", "iob2", "bioes"] = "auto"
    """How entities are tagged in columns; auto looks at the tags."""
    text_column: str = "text"
    """Field of the text in .jsonl files."""
    spans_column: str = "spans"
    """Field of the entities in .jsonl files: a list of [begin, end, label], in characters."""
    on_bad: OnBad = "error"
    """What to do with a bad sentence: stop with its file and line (error), or count and skip it (skip)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corpus(self, ["made-sentences"])

    def splits(self) -> Splits[TaggedSentence]:
        """To learn from, and to validate on."""
        if self.corpus:
            return Splits(made_sentences("train"), made_sentences("valid"), made_sentences("test"))
        found = self._read(self.data)
        if self.valid:
            return Splits(found, self._read(self.valid))
        sides = split_examples(found, lambda sentence: joined(sentence.words), test=0.0)
        learned, kept = list(sides["train"]), list(sides["valid"])
        labels = {entity.label for sentence in learned for entity in sentence.entities}
        # A rare label may fall wholly on the other side, where nobody could learn it.
        strange = [one for one in kept if not labels.issuperset(entity.label for entity in one.entities)]
        return Splits(Examples([*learned, *strange], found.skipped), [one for one in kept if one not in strange])

    def examples(self) -> list[TaggedSentence]:
        """Everything in `data`."""
        return made_sentences("test") if self.corpus else self._read(self.data)

    def _read(self, paths: tuple[Path, ...]) -> Examples[TaggedSentence]:
        if not paths:
            raise ValueError("no data: expected at least one file of CoNLL's columns, or a .jsonl")
        reader = TaggedReader(
            word_column=self.word_column,
            tag_column=self.tag_column,
            scheme=self.scheme,
            text_column=self.text_column,
            spans_column=self.spans_column,
            on_bad=self.on_bad,
        )
        return reader.read(paths)


@dataclass(frozen=True, kw_only=True)
class TaggingConfig(EncoderConfig):
    """A whole recipe."""

    data: TaggedData = field(default_factory=TaggedData)
    swap_entities: Probability = 0.0
    """Probability that an entity of the training text is replaced by another one of its label; see bpe_versions."""
    model: ModelConfig = field(default_factory=small_tagger)
    """Of a model from scratch. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=3000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.1, word_dropout=0.1, eval_every=500
        )
    )
