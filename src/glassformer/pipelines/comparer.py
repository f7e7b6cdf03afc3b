"""Compare two texts by the cosine of their vectors, to score their similarity or to detect paraphrases."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import override

from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.models import EncoderModel
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader
from glassformer.pipelines.pipeline import (
    LineAnswer,
    LineRequest,
    Pair,
    answer_lines_with_text,
    as_json_number,
    check_text,
    each_pair,
)

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class PairPipeline(EncoderPipeline[ScoredPair]):
    """The base class of `Comparer` and `ParaphraseDetector`: an encoder that turns each of two texts into a vector."""

    head = "embedding"

    @overload
    def cosines(self, pairs: Pair) -> float: ...
    @overload
    def cosines(self, pairs: list[Pair]) -> list[float]: ...
    def cosines(self, pairs: Pair | list[Pair]) -> float | list[float]:
        """Return the cosine of the two vectors of each pair of texts, from -1 to 1. One tuple gives one number."""
        return each_pair(pairs, self._cosines)

    def _cosines(self, pairs: list[Pair]) -> list[float]:
        both = self.embed([text for pair in pairs for text in pair])
        return (both[::2] * both[1::2]).sum(-1).tolist()

    def _line_cosines(self, lines: list[str]) -> list[float]:
        """Return the cosine of each line's two texts, which are separated by a tab."""
        for line in lines:
            texts = line.split("\t")
            if len(texts) == 1:
                raise ValueError(f"{line!r} is one text: expected two texts with a tab between them")
            if len(texts) > 2:
                raise ValueError(f"{line[:200]!r} is {len(texts)} texts: expected two texts with a tab between them")
            if not all(text.strip() for text in texts):
                raise ValueError(f"{line[:200]!r} has an empty text: expected two texts with a tab between them")
        return self.cosines([(first, second) for first, _, second in (line.partition("\t") for line in lines)])


class Comparer(PairPipeline):
    """Scores how similar two texts are, on the scale of the training data, which goes from `lowest` to `highest`."""

    task = "similarity"

    def __init__(self, model: EncoderModel, reader: Reader, *, lowest: float = 0.0, highest: float = 1.0):
        super().__init__(model, reader, lowest=lowest, highest=highest)
        self.lowest, self.highest = lowest, highest

    def similarity(self, first: str, second: str) -> float:
        """Return how similar two texts are: `lowest` for a cosine of 0, `highest` for a cosine of 1.

        A negative cosine gives a score below `lowest`.
        """
        return self._on_scale(self.cosines((check_text(first, "first"), check_text(second, "second"))))

    @override
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the similarity for each line, which is two texts separated by a tab."""
        return answer_lines_with_text(lines, LineAnswer("", {"similarity": None, "cosine": None}), self._compare_lines)

    def _compare_lines(self, lines: list[str]) -> list[LineAnswer]:
        answers = []
        for cosine in self._line_cosines(lines):
            similarity = self._on_scale(cosine)
            record = {"similarity": as_json_number(similarity), "cosine": as_json_number(cosine)}
            answers.append(LineAnswer(f"{similarity:.3f}", record))
        return answers

    @override
    def score(self, examples: Sequence[ScoredPair]) -> "Scores":
        """Return Spearman's and Pearson's correlation of the cosines with the examples' scores, in percent."""
        from glassformer.metrics.correlation import score_correlation

        return score_correlation(self.cosines([pair[:2] for pair in examples]), [pair.score for pair in examples])

    def _on_scale(self, cosine: float) -> float:
        return self.lowest + cosine * (self.highest - self.lowest)


class ParaphraseDetector(PairPipeline):
    """Decides whether two texts mean the same: whether the cosine of their vectors is at least `threshold`.

    `choose_threshold` sets the threshold from examples, whose `score` is 1 for paraphrases and 0 otherwise.
    """

    task = "paraphrase"

    def __init__(self, model: EncoderModel, reader: Reader, *, threshold: float = 0.5):
        super().__init__(model, reader)
        self.threshold = threshold

    @override
    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "threshold": self.threshold}

    def is_paraphrase(self, first: str, second: str) -> bool:
        """Return whether two texts mean the same, that is, whether their cosine is at least the threshold."""
        return self.cosines((check_text(first, "first"), check_text(second, "second"))) >= self.threshold

    def choose_threshold(self, examples: Sequence[ScoredPair]) -> None:
        """Set `threshold` to the value that gives the highest F1 on these examples.

        The examples are sorted by their cosine, and the threshold is halfway between the cosines of two neighbors. If
        it is best to accept all examples, it is halfway between the lowest cosine and -1.
        """
        cosines = self.cosines([pair[:2] for pair in examples])
        ranked = sorted(zip(cosines, (pair.score > 0.5 for pair in examples), strict=True), reverse=True)
        n_same, hits, best = sum(is_same for _, is_same in ranked), 0, -1.0
        for place, (cosine, is_same) in enumerate(ranked, start=1):
            hits += is_same
            below = ranked[place][0] if place < len(ranked) else -1.0
            f1 = 2 * hits / (place + n_same)
            if f1 > best and below < cosine:  # pairs with the same cosine are on the same side
                best, self.threshold = f1, (cosine + below) / 2

    @override
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return "same" or "different" for each line, which is two texts separated by a tab."""
        return answer_lines_with_text(lines, LineAnswer("", {"label": None, "cosine": None}), self._decide_lines)

    def _decide_lines(self, lines: list[str]) -> list[LineAnswer]:
        answers = []
        for cosine in self._line_cosines(lines):
            label = "same" if cosine >= self.threshold else "different"
            answers.append(LineAnswer(label, {"label": label, "cosine": as_json_number(cosine)}))
        return answers

    @override
    def score(self, examples: Sequence[ScoredPair]) -> "Scores":
        """Decide for each example whether it is a paraphrase, and return F1 and accuracy in percent.

        F1 is that of the class of paraphrases. The decisions use the current `threshold`.
        """
        from glassformer.metrics.accuracy import score_binary

        found = [cosine >= self.threshold for cosine in self.cosines([pair[:2] for pair in examples])]
        return score_binary(found, [pair.score > 0.5 for pair in examples])
