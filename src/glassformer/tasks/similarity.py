"""How alike two texts are: each becomes a vector, and what is alike lies near each other."""

from collections.abc import Sequence
from typing import Any, overload

from torch import Tensor, nn

from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.metrics.correlation import score_correlation
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderModel
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.similarity import SimilarityConfig, SimilarityData
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoders import EncoderTask, EncoderTool, Reader, Texts, read_batch
from glassformer.tasks.pipeline import (
    LineAnswer,
    Pair,
    Request,
    answer_lines_with_text,
    as_json_number,
    check_text,
    each_pair,
)
from glassformer.training.train_config import TrainConfig


class Comparer(EncoderTool[ScoredPair]):
    """A trained model with its tokenizer, and the range of the scores that it learned."""

    task, head = "similarity", "embedding"

    def __init__(self, model: EncoderModel, reader: Reader, *, lowest: float = 0.0, highest: float = 1.0):
        super().__init__(model, reader, lowest=lowest, highest=highest)
        self.lowest, self.highest = lowest, highest

    @overload
    def cosines(self, pairs: Pair) -> float: ...
    @overload
    def cosines(self, pairs: list[Pair]) -> list[float]: ...
    def cosines(self, pairs: Pair | list[Pair]) -> float | list[float]:
        """The cosine of each pair's two vectors, -1 to 1; one tuple of two texts gives one number."""
        return each_pair(pairs, self._cosines)

    def _cosines(self, pairs: list[Pair]) -> list[float]:
        both = self.embed([text for pair in pairs for text in pair])
        return (both[::2] * both[1::2]).sum(-1).tolist()

    def similarity(self, first: str, second: str) -> float:
        """How alike two texts are, on the scale that was learned; what is very unlike may lie a little below it."""
        return self._on_scale(self.cosines((check_text(first, "first"), check_text(second, "second"))))

    def answer_lines(self, lines: Sequence[str], request: Request) -> list[LineAnswer]:
        """The similarity of each line's two texts, which have a tab between them."""
        return answer_lines_with_text(lines, LineAnswer("", {"similarity": None, "cosine": None}), self._compare_lines)

    def _compare_lines(self, lines: list[str]) -> list[LineAnswer]:
        for line in lines:
            if "\t" not in line:
                raise ValueError(f"{line!r} is one text: expected two, with a tab between them")
        pairs = [(first, second) for first, _, second in (line.partition("\t") for line in lines)]
        answers = []
        for cosine in self.cosines(pairs):
            similarity = self._on_scale(cosine)
            record = {"similarity": as_json_number(similarity), "cosine": as_json_number(cosine)}
            answers.append(LineAnswer(f"{similarity:.3f}", record))
        return answers

    def score(self, examples: Sequence[ScoredPair]) -> Scores:
        """Spearman's and Pearson's correlation of the cosines with the scores, in percent."""
        return score_correlation(self.cosines([pair[:2] for pair in examples]), [pair.score for pair in examples])

    def _on_scale(self, cosine: float) -> float:
        return self.lowest + cosine * (self.highest - self.lowest)


class Similarity(EncoderTask[ScoredPair]):
    """Pairs of texts with scores to a comparer."""

    name, title, apart = "similarity", "A comparer of texts", True
    unit, sample_line = "pairs", "a first text\ta second text"
    Config, Data, Tool = SimilarityConfig, SimilarityData, Comparer

    def unused(self) -> set[str]:
        """As above."""
        return {"r_drop", "word_dropout", "label_smoothing", "bpe_dropout"}

    def texts(self, example: ScoredPair) -> Texts:
        """As above."""
        return example.text, example.second

    def begin(self, train: Sequence[ScoredPair]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As above."""
        if len({pair.score for pair in train}) < 2:
            raise ValueError(f"all pairs have the score {train[0].score:g}: expected different ones")
        return {"pooling": "mean"}, {"lowest": self.config.data.lowest, "highest": self.config.data.highest}

    def rows(self, tool: Comparer, examples: Sequence[ScoredPair]) -> list[LabeledRow]:
        """Two for each pair, with one answer: the cosine that their vectors should have."""
        reads = tool.read([(text, None) for pair in examples for text in pair[:2]])
        goals = [(pair.score - tool.lowest) / (tool.highest - tool.lowest) for pair in examples for _ in range(2)]
        return [LabeledRow(read.ids, read.token_types, goal) for read, goal in zip(reads, goals, strict=True)]

    def loss(self, model: nn.Module, batch: LabeledBatch) -> Tensor:
        """The squared errors of the cosines, summed."""
        first, second = read_batch(model, batch).float().chunk(2)
        return ((first * second).sum(-1) - batch.answers).square().sum()

    def describe(self, splits: Splits[ScoredPair]) -> str:
        """As above."""
        train, valid = list(splits.train), list(splits.valid)
        quarters = sorted(pair.score for pair in train)
        told = ", ".join(f"{quarters[(len(quarters) - 1) * part // 4]:g}" for part in range(5))
        return f"{len(train):,} pairs to learn from, {len(valid):,} to validate on; quartiles of the scores: {told}"

    @classmethod
    def demo(cls) -> SimilarityConfig:
        """Sentences made of synonyms in any order: what two of them share is meant, not spelled."""
        return SimilarityConfig(
            data=SimilarityData(corpus="made-pairs"),
            model=small_encoder(vocab_size=1000, d_model=64, d_ff=128, dropout=0.0, embedding_dropout=0.0),
            train=TrainConfig(
                minutes=1.5,
                label_smoothing=0.0,
                lr=2e-3,
                warmup=100,
                schedule="linear",
                max_tokens=1024,
                eval_every=250,
            ),
        )

    def baseline(self, splits: Splits[ScoredPair]) -> tuple[str, Scores]:
        """The share of words that both texts have."""
        held_out = list(splits.test) or list(splits.valid)
        words = [[set(text.lower().split()) for text in pair[:2]] for pair in held_out]
        overlaps = [len(a & b) / max(len(a | b), 1) for a, b in words]
        return "words in common", score_correlation(overlaps, [pair.score for pair in held_out])

    def show(self, example: ScoredPair) -> tuple[str, str]:
        """As above."""
        return f"{example.text}\t{example.second}", f"{example.score:g}"
