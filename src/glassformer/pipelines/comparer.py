"""TODO."""

from collections.abc import Sequence
from typing import overload

from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.metrics.correlation import score_correlation
from glassformer.metrics.scores import Scores
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


class Comparer(EncoderPipeline[ScoredPair]):
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

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
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
