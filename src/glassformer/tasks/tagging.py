"""Tagging: train an encoder to find entities in sentences, such as names, and label them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from glassformer.base.fields import Probability
from glassformer.base.plurals import counted
from glassformer.data.batching.entity_swaps import swap_entities
from glassformer.data.corpora.synthetic_sentences import generate_sentences
from glassformer.data.readers.tagged_sentences import TaggedReader, TaggedSentence
from glassformer.metrics.scores import Scores
from glassformer.models import ModelConfig
from glassformer.tasks.configs.encoder_rule import EncoderRule
from glassformer.tasks.configs.shared import FileData, Splits, TaskConfig, train_on_rare_labels
from glassformer.tasks.configs.small_models import small_tagger
from glassformer.tasks.encoder_task import EncoderTask, Texts
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.tag_viterbi import TagPaths
from glassformer.text.tags import Entity, entities_of, tags_of
from glassformer.text.tokenizer import END
from glassformer.text.word_windows import joined
from glassformer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
    from glassformer.pipelines.tagger import Tagger


@dataclass(frozen=True, kw_only=True)
class TaggedData(FileData[TaggedSentence]):
    """Options that choose the data for tagging: sentences with tagged entities from files or a named corpus."""

    CORPORA = ("made-sentences",)
    NO_FILES = "no data: expected at least one file of CoNLL's columns, or a .jsonl"

    data: tuple[Path, ...] = ()
    """Files with tagged sentences: CoNLL columns with one word per line and a blank line after each sentence, or .jsonl
    with spans of characters (.gz too)."""
    corpus: str = ""
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
    """Field of the entities in .jsonl files: a list of [begin, end, label], in characters, or of objects with start,
    end and label; if the field spans is missing, entities is read, as run --json writes it."""

    @override
    def splits(self) -> Splits[TaggedSentence]:
        found = super().splits()
        return train_on_rare_labels(
            found,
            lambda sentence: [entity.label for entity in sentence.entities],
            keep=bool(self.corpus or self.valid),
        )

    @override
    def corpus_splits(self) -> Splits[TaggedSentence]:
        return Splits(generate_sentences("train"), generate_sentences("valid"), generate_sentences("test"))

    @override
    def split_key(self, example: TaggedSentence) -> str:
        return joined(example.words)

    @override
    def read(self, paths: tuple[Path, ...]) -> Iterable[TaggedSentence]:
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
class TaggingConfig(TaskConfig):
    """The complete config of training a tagger."""

    FIRST_OPTIONS = ("data", "valid", "word_column", "tag_column")
    ENCODER_RULE = EncoderRule(
        width=128,
        layers=2,
        batch_tokens=lambda corpus: 512,
        enough_updates=4000,
        cheaper=({"train.adversarial": 0.0},),
        others={
            "model.dropout": 0.1,
            "model.embedding_dropout": 0.1,
            "train.label_smoothing": 0.1,
            "train.word_dropout": 0.1,
            "train.adversarial": 1.0,
            "tokenizer.bpe_dropout": 0.03,
            "swap_entities": 0.2,
        },
    )

    data: TaggedData = field(default_factory=TaggedData)
    swap_entities: Probability = 0.0
    """Probability that an entity of the training text is replaced by another one of its label, drawn anew for each of
    --bpe-versions versions of the text."""
    model: ModelConfig = field(default_factory=small_tagger)
    """The architecture of a new model. Its vocab_size is the most tokens the tokenizer may learn."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            updates=3000, lr=1e-3, warmup=200, schedule="linear", label_smoothing=0.1, word_dropout=0.1, eval_every=500
        )
    )


class Tagging(EncoderTask[TaggedSentence]):
    """Train a tagger on tagged sentences."""

    name, title, unit = "tagging", "A tagger", "sentences"
    Config = TaggingConfig
    per_token, when_long = True, "are read in windows"

    @override
    def texts(self, example: TaggedSentence) -> Texts:
        return joined(example.words), None

    @override
    def head_settings(self, train: Sequence[TaggedSentence]) -> tuple[dict[str, Any], dict[str, Any]]:
        labels = sorted({entity.label for example in train for entity in example.entities})
        if not labels:
            raise ValueError("no word is tagged: expected sentences with entities to learn from")
        return {"n_labels": len(TagPaths(labels).tags)}, {"labels": labels}

    @override
    def rows(self, pipeline: "Tagger", examples: Sequence[TaggedSentence]) -> "list[LabeledRow]":
        from glassformer.data.batching.labeled_batches import IGNORED, LabeledRow

        rows, numbers = [], [pipeline.numbers(example) for example in examples]
        for sentence, words, encoded, places in pipeline.read_words([example.words for example in examples]):
            answer = [IGNORED] * len(encoded)
            for word, place in zip(words, places, strict=True):
                if place is not None:
                    answer[place] = numbers[sentence][word]
            rows.append(LabeledRow(encoded.ids, encoded.token_types, answer))
        return rows

    @override
    def versions(self, pipeline: "Tagger", train: Sequence[TaggedSentence]) -> "list[Callable[[], list[LabeledRow]]]":
        """Return a list of functions, each of which makes the rows of one version of the training data.

        With BPE-dropout or `swap_entities` there are `bpe_versions` of them, with different tokens or different names;
        otherwise there is one.
        """
        config, tokenizer = self.config, pipeline.reader.tokenizer
        chance, seed = config.tokenizer.bpe_dropout, config.train.seed
        dropper = BpeDropout(tokenizer, chance, seed) if chance and isinstance(tokenizer, Tokenizer) else None

        def make(version: int) -> "list[LabeledRow]":
            sentences = list(swap_entities(train, config.swap_entities, f"{seed} {version}"))
            if dropper is None:
                return _with_answers(self.rows(pipeline, sentences))
            found = (self._rows_with_bpe_dropout(pipeline, sentence, dropper, version) for sentence in sentences)
            return _with_answers([row for rows in found for row in rows])

        count = config.tokenizer.bpe_versions if dropper is not None or config.swap_entities else 1
        return [partial(make, version) for version in range(count)]

    def _rows_with_bpe_dropout(
        self, pipeline: "Tagger", example: TaggedSentence, dropper: BpeDropout, version: int
    ) -> "list[LabeledRow]":
        """Return the rows of a sentence, tokenized by `dropper` in the random way that `version` selects.

        If the sentence is then too long for the model, it is tokenized without BPE-dropout.
        """
        from glassformer.data.batching.labeled_batches import IGNORED, LabeledRow

        ids: list[int] = []
        answer: list[int] = []
        for pieces, number in zip(dropper.encode_batch(example.words, version), pipeline.numbers(example), strict=True):
            ids += pieces
            answer += [number, *[IGNORED] * (len(pieces) - 1)][: len(pieces)]
        limit = pipeline.model.config.max_len
        if limit is not None and len(ids) >= limit:
            return self.rows(pipeline, [example])
        return [LabeledRow([*ids, END], [0] * (len(ids) + 1), [*answer, IGNORED])]

    @override
    def loss(self, model: Any, batch: "LabeledBatch") -> "Tensor":
        return self.class_loss(model, batch)

    @override
    def hidden(self, batch: "LabeledBatch") -> "Tensor":
        """Return a random mask (B, T) for word dropout, True for hidden tokens.

        All tokens of a word are hidden together, so that the context decides its tag.
        """
        import torch

        from glassformer.data.batching.labeled_batches import IGNORED

        number = (batch.answers != IGNORED).cumsum(1)  # index of each token's word; 0 before the first word
        shape = len(number), number.shape[1] + 1
        chosen = torch.rand(shape, device=number.device) < self.config.train.word_dropout
        return chosen.gather(1, number) & (number > 0)

    @override
    def show(self, example: TaggedSentence) -> tuple[str, str]:
        from glassformer.pipelines.tagger import in_brackets

        line, places, begin = " ".join(example.words), [], 0
        for word in example.words:
            places.append((begin, begin + len(word)))
            begin += len(word) + 1
        spans = [(places[one.begin][0], places[one.end - 1][1], one.label) for one in example.entities]
        return line, in_brackets(line, spans)

    @override
    def describe(self, splits: Splits[TaggedSentence]) -> str:
        train, valid = list(splits.train), list(splits.valid)
        counts = Counter(entity.label for example in train for entity in example.entities)
        balance = ", ".join(f"{label} {count / counts.total():.0%}" for label, count in counts.most_common(10))
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        entities = counted(counts.total(), "entities", "entity")
        return (
            f"{counted(len(train), 'sentences')} to learn from, {len(valid):,} to validate on; {entities} of "
            f"{counted(len(counts), 'labels')}: {balance}{more}"
        )

    @override
    @classmethod
    def demo(cls) -> TaggingConfig:
        """Return the config of a tagger for generated sentences. Its test split has other names than training."""
        return TaggingConfig(
            data=TaggedData(corpus="made-sentences"),
            model=small_tagger(vocab_size=600, d_model=64, d_ff=128, dropout=0.1, embedding_dropout=0.1),
            train=TrainConfig(
                minutes=0.5, max_tokens=1024, lr=3e-3, warmup=60, schedule="linear", word_dropout=0.1, eval_every=200
            ),
        )

    @override
    def baseline(self, splits: Splits[TaggedSentence]) -> tuple[str, Scores]:
        """Return the scores of giving each word its most frequent label in the training data."""
        from glassformer.pipelines.tagger import compare

        seen: dict[str, Counter[str]] = {}
        for example in splits.train:
            for word, label in zip(example.words, _labels(example.entities, len(example.words)), strict=True):
                seen.setdefault(word, Counter())[label] += 1
        usual = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        scored = list(splits.test) or list(splits.valid)
        found = []
        for example in scored:
            labels = [usual.get(word, "") for word in example.words]
            # Neighboring words with the same label are one entity, as in IOB1.
            found.append(entities_of([f"I-{label}" if label else "O" for label in labels], "iob1"))
        return "each word as it was tagged most often", compare(found, scored)


def _labels(entities: Sequence[Entity], length: int) -> list[str]:
    """Return the entity label of each of `length` words; empty for words outside of entities."""
    return ["" if tag == "O" else tag[2:] for tag in tags_of(entities, length, "iob2")]


def _with_answers(rows: "Sequence[LabeledRow]") -> "list[LabeledRow]":
    """Return the rows that have at least one target. Sentences without tokens have none."""
    from glassformer.data.batching.labeled_batches import IGNORED

    return [row for row in rows if any(number != IGNORED for number in row.answer)]
