"""Names in sentences: which words are one, and what of. Any other tags of words too."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.data.batching.entity_swaps import swap_entities
from glassformer.data.batching.labeled_batches import IGNORED, LabeledBatch, LabeledRow
from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.metrics.scores import Scores
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.small_models import small_tagger
from glassformer.tasks.configs.tagging import TaggedData, TaggingConfig
from glassformer.tasks.encoders import EncoderTask, Texts
from glassformer.tasks.tagger import Tagger, compare, in_brackets
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.tag_paths import TagPaths
from glassformer.text.tags import Entity, entities_of, tags_of
from glassformer.text.tokenizer import END
from glassformer.text.word_windows import joined
from glassformer.training.train_config import TrainConfig


class Tagging(EncoderTask[TaggedSentence]):
    """Tagged sentences to a tagger."""

    name, title, unit = "tagging", "A tagger", "sentences"
    Config, Data, Tool = TaggingConfig, TaggedData, Tagger
    per_token, when_long = True, "are read in windows"

    def texts(self, example: TaggedSentence) -> Texts:
        """As above."""
        return joined(example.words), None

    def begin(self, train: Sequence[TaggedSentence]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As above."""
        labels = sorted({entity.label for example in train for entity in example.entities})
        if not labels:
            raise ValueError("no word is tagged: expected sentences with entities to learn from")
        return {"n_labels": len(TagPaths(labels).tags)}, {"labels": labels}

    def rows(self, tool: Tagger, examples: Sequence[TaggedSentence]) -> list[LabeledRow]:
        """As above."""
        rows, numbers = [], [tool.numbers(example) for example in examples]
        for sentence, words, encoded, places in tool.read_words([example.words for example in examples]):
            answer = [IGNORED] * len(encoded)
            for word, place in zip(words, places, strict=True):
                if place is not None:
                    answer[place] = numbers[sentence][word]
            rows.append(LabeledRow(encoded.ids, encoded.token_types, answer))
        return rows

    def versions(self, tool: Tagger, train: Sequence[TaggedSentence]) -> list[Callable[[], list[LabeledRow]]]:
        """With BPE-dropout or swapped entities, `bpe_versions` of them: each differs in its tokens or names."""
        config, tokenizer = self.config, tool.reader.tokenizer
        chance, seed = config.tokenizer.bpe_dropout, config.train.seed
        dropper = BpeDropout(tokenizer, chance, seed) if chance and isinstance(tokenizer, Tokenizer) else None

        def make(version: int) -> list[LabeledRow]:
            sentences = list(swap_entities(train, config.swap_entities, f"{seed} {version}"))
            if dropper is None:
                return _with_answers(self.rows(tool, sentences))
            found = (self._cut_otherwise(tool, sentence, dropper, version) for sentence in sentences)
            return _with_answers([row for rows in found for row in rows])

        count = config.tokenizer.bpe_versions if dropper is not None or config.swap_entities else 1
        return [partial(make, version) for version in range(count)]

    def _cut_otherwise(
        self, tool: Tagger, example: TaggedSentence, dropper: BpeDropout, version: int
    ) -> list[LabeledRow]:
        """A sentence whose words are cut by chance; one that gets too long for it is read as usual."""
        ids: list[int] = []
        answer: list[int] = []
        for pieces, number in zip(dropper.encode_batch(example.words, version), tool.numbers(example), strict=True):
            ids += pieces
            answer += [number, *[IGNORED] * (len(pieces) - 1)][: len(pieces)]
        limit = tool.model.config.max_len
        if limit is not None and len(ids) >= limit:
            return self.rows(tool, [example])
        return [LabeledRow([*ids, END], [0] * (len(ids) + 1), [*answer, IGNORED])]

    def loss(self, model: nn.Module, batch: LabeledBatch) -> Tensor:
        """As above."""
        return self.class_loss(model, batch)

    def hidden(self, batch: LabeledBatch) -> Tensor:
        """As above: some words, all their tokens, which must then be told by the others."""
        number = (batch.answers != IGNORED).cumsum(1)  # of the word that a token belongs to; 0 before the first
        shape = len(number), number.shape[1] + 1
        chosen = torch.rand(shape, device=number.device) < self.config.train.word_dropout
        return chosen.gather(1, number) & (number > 0)

    def show(self, example: TaggedSentence) -> tuple[str, str]:
        """As above."""
        line, places, begin = " ".join(example.words), [], 0
        for word in example.words:
            places.append((begin, begin + len(word)))
            begin += len(word) + 1
        spans = [(places[one.begin][0], places[one.end - 1][1], one.label) for one in example.entities]
        return line, in_brackets(line, spans)

    def describe(self, splits: Splits[TaggedSentence]) -> str:
        """As above."""
        train, valid = list(splits.train), list(splits.valid)
        counts = Counter(entity.label for example in train for entity in example.entities)
        balance = ", ".join(f"{label} {count / counts.total():.0%}" for label, count in counts.most_common(10))
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        return (
            f"{len(train):,} sentences to learn from, {len(valid):,} to validate on; {counts.total():,} entities of "
            f"{len(counts)} labels: {balance}{more}"
        )

    @classmethod
    def demo(cls) -> TaggingConfig:
        """As above: names that do not exist, and others to score with."""
        return TaggingConfig(
            data=TaggedData(corpus="made-sentences"),
            model=small_tagger(vocab_size=600, d_model=64, d_ff=128, dropout=0.1, embedding_dropout=0.1),
            train=TrainConfig(
                minutes=0.5, max_tokens=1024, lr=3e-3, warmup=60, schedule="linear", word_dropout=0.1, eval_every=200
            ),
        )

    def baseline(self, splits: Splits[TaggedSentence]) -> tuple[str, Scores]:
        """As above: each word as it was tagged most often."""
        seen: dict[str, Counter[str]] = {}
        for example in splits.train:
            for word, label in zip(example.words, _labels(example.entities, len(example.words)), strict=True):
                seen.setdefault(word, Counter())[label] += 1
        usual = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        scored = list(splits.test) or list(splits.valid)
        found = []
        for example in scored:
            labels = [usual.get(word, "") for word in example.words]
            # Neighbours of one label are one entity, as IOB1 has it.
            found.append(entities_of([f"I-{label}" if label else "O" for label in labels], "iob1"))
        return "each word as it was tagged most often", compare(found, scored)


def _labels(entities: Sequence[Entity], length: int) -> list[str]:
    """The label of each word; empty outside of entities."""
    return ["" if tag == "O" else tag[2:] for tag in tags_of(entities, length, "iob2")]


def _with_answers(rows: Sequence[LabeledRow]) -> list[LabeledRow]:
    """Without those that teach nothing: sentences of which no word became a token."""
    return [row for row in rows if any(number != IGNORED for number in row.answer)]
