"""Score pairs of texts, such as a question and a passage, with a pretrained cross-encoder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import torch
from typing_extensions import override

from glassformer.checkpoint.hf.sentence_folder import SETTINGS
from glassformer.checkpoint.hf.values import UnsupportedModelError, shown
from glassformer.checkpoint.safe_files import read_json_object
from glassformer.models import EncoderModel
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader
from glassformer.pipelines.pipeline import (
    LineAnswer,
    LineRequest,
    ManyPairs,
    Pair,
    answer_lines_with_text,
    as_json_number,
    check_inputs,
    check_text,
    check_texts,
)

ScoreActivation = Literal["sigmoid", "identity"]
ACTIVATIONS: dict[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity"}
"""torch's names of the function on the score of a cross-encoder -> ours."""


class RankedText(NamedTuple):
    """A text, its place in the list that was given, and its score."""

    text: str
    place: int
    score: float


class PairScorer(EncoderPipeline[Any]):
    """A pretrained encoder that reads two texts at once and gives the pair one score (a cross-encoder).

    `activation` "sigmoid" gives scores from 0 to 1, "identity" the model's own numbers.
    """

    task, head = "pair scoring", "sequence_class"

    def __init__(self, model: EncoderModel, reader: Reader, *, activation: ScoreActivation = "sigmoid"):
        if model.config.n_labels != 1:
            raise ValueError(f"the model has {model.config.n_labels} classes: expected 1, the score of a pair")
        super().__init__(model, reader)
        self.activation = activation

    @overload
    def score_pairs(self, pairs: Pair, *, batch_tokens: int | None = None) -> float: ...
    @overload
    def score_pairs(self, pairs: ManyPairs, *, batch_tokens: int | None = None) -> list[float]: ...
    def score_pairs(self, pairs: Pair | ManyPairs, *, batch_tokens: int | None = None) -> float | list[float]:
        """Return the score of each pair of texts. One tuple of two strings gives one number."""
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs):
            return self.score_pairs([(str(pairs[0]), str(pairs[1]))], batch_tokens=batch_tokens)[0]
        inputs = check_inputs(pairs, "pairs")
        rows = self._read_inputs(inputs)
        found = self.answers(rows, batch_tokens=batch_tokens)
        if not found:
            return []
        scores = torch.stack(found)[:, 0]
        return (scores.sigmoid() if self.activation == "sigmoid" else scores).tolist()

    def rank(self, query: str, texts: Sequence[str]) -> list[RankedText]:
        """Return the texts with their scores for a query, the best first."""
        check_text(query, "query")
        found = check_texts(texts)
        scores = self.score_pairs([(query, text) for text in found])
        ranked = [RankedText(text, place, score) for place, (text, score) in enumerate(zip(found, scores, strict=True))]
        return sorted(ranked, key=lambda one: -one.score)

    @override
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the score of each line, which is two texts separated by a tab, or one text."""
        return answer_lines_with_text(lines, LineAnswer("", {"score": None}), self._score_lines)

    def _score_lines(self, lines: list[str]) -> list[LineAnswer]:
        parts = [line.partition("\t") for line in lines]
        rows = self._read_inputs([(first, second if tab else None) for first, tab, second in parts])
        scores = torch.stack(self.answers(rows))[:, 0]
        scores = scores.sigmoid() if self.activation == "sigmoid" else scores
        return [LineAnswer(f"{score:.4f}", {"score": as_json_number(score)}) for score in scores.tolist()]

    @override
    def score(self, examples: Sequence[Any]) -> Any:
        """Raise ValueError: a pretrained cross-encoder belongs to no task of Glassformer."""
        raise ValueError("a pretrained cross-encoder cannot be scored on a task: expected a model trained for one")


def read_activation(origin: Mapping[str, Any], folder: Path) -> ScoreActivation:
    """Return the function on the score that sentence-transformers stores, or sigmoid if it stores none.

    Version 6 stores it in `SETTINGS`, older ones in HF's `config.json`, whose values are `origin`.
    Raises UnsupportedModelError for a function other than sigmoid and the identity.
    """
    table = origin.get("sentence_transformers")
    if (folder / SETTINGS).is_file():
        found = read_json_object(folder / SETTINGS, strict=False)
        table = found if found.get("activation_fn") else table
    name = table.get("activation_fn") if isinstance(table, Mapping) else None
    name = name or origin.get("sbert_ce_default_activation_function")
    if name is None:
        return "sigmoid"
    kind = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.nn.modules.") or kind not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json has activation_fn={shown(name)}, which is not supported: expected one of "
            f"{', '.join(ACTIVATIONS)} in torch.nn.modules"
        )
    return ACTIVATIONS[kind]
