"""Classify texts, or pairs of texts, with a trained encoder."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor

from glassformer.models import DecoderModel, EncoderModel
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader, Texts, unknown_label
from glassformer.pipelines.examples import LabeledExample
from glassformer.pipelines.pipeline import (
    LineAnswer,
    LineRequest,
    ManyInputs,
    answer_lines_with_text,
    as_json_number,
    check_inputs,
)

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

InputKind = Literal["texts", "pairs", "any"]


class Prediction(NamedTuple):
    """A label and the probability that the classifier gives it."""

    label: str
    probability: float


class Classifier(EncoderPipeline[LabeledExample]):
    """An encoder that assigns one label to a text or a pair of texts, or with `multi_label` any number of labels.

    `inputs` says what it was trained on, which decides what a line of `run` must be: "texts", "pairs" with a tab
    between the two, or "any" if that is unknown.
    """

    task, head, accepts_decoder = "classification", "sequence_class", True

    def __init__(
        self,
        model: EncoderModel | DecoderModel,
        reader: Reader,
        *,
        labels: Sequence[str],
        multi_label: bool = False,
        inputs: InputKind = "any",
    ):
        if len(labels) != model.config.n_labels:
            raise ValueError(f"{len(labels)} labels for a model of {model.config.n_labels} classes: expected as many")
        kind = {} if inputs == "any" else {"inputs": inputs}
        super().__init__(model, reader, labels=list(labels), multi_label=multi_label, **kind)
        self.labels, self.multi_label, self.inputs = list(labels), multi_label, inputs

    def probabilities(self, texts: str | ManyInputs, *, batch_tokens: int | None = None) -> Tensor:
        """Return the probability of each label, in the order of `labels`.

        A list of N texts or pairs of texts gives a tensor (N, labels), and one string gives a tensor (labels,).
        """
        if isinstance(texts, str):
            return self.probabilities([texts], batch_tokens=batch_tokens)[0]
        inputs = check_inputs(texts)
        if not inputs:
            return torch.empty(0, len(self.labels))
        rows = self._read_inputs(inputs)
        scores = torch.stack(self.answers(rows, batch_tokens=batch_tokens))
        return scores.sigmoid() if self.multi_label else scores.softmax(-1)

    @overload
    def classify(self, texts: str) -> list[Prediction]: ...
    @overload
    def classify(self, texts: ManyInputs) -> list[list[Prediction]]: ...
    def classify(self, texts: str | ManyInputs) -> list[Prediction] | list[list[Prediction]]:
        """Return the most likely label of each text; with `multi_label`, all labels with a probability above 0.5.

        One string gives one list of predictions; a list of texts gives a list of lists. A pair of texts is a tuple
        inside a list: `[("one", "two")]`.
        """
        if isinstance(texts, str):
            return self._chosen(self.probabilities(texts))
        return [self._chosen(row) for row in self.probabilities(texts)]

    def _chosen(self, row: Tensor) -> list[Prediction]:
        chosen = (row > 0.5).nonzero()[:, 0].tolist() if self.multi_label else [int(row.argmax())]
        return [Prediction(self.labels[index], float(row[index])) for index in chosen]

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the predicted labels of each line, separated by commas. A tab in a line separates a pair of texts."""
        blank = LineAnswer("", {"labels": []})
        return answer_lines_with_text(lines, blank, lambda texts: self._label_lines(texts, request.n_best))

    def _label_lines(self, lines: list[str], n_best: int | None) -> list[LineAnswer]:
        answers = []
        for row in self.probabilities([self._texts(line) for line in lines]):
            chosen = self._chosen(row)
            ranked = [Prediction(self.labels[i], float(row[i])) for i in row.argsort(descending=True, stable=True)]
            shown = chosen if n_best is None else ranked[:n_best]
            names = [prediction.label for prediction in chosen]
            first = {"predicted": names} if self.multi_label else {"label": names[0]}
            labels = [{"label": one.label, "probability": as_json_number(one.probability)} for one in ranked[:n_best]]
            texts, scores = tuple(one.label for one in shown), tuple(one.probability for one in shown)
            answers.append(LineAnswer(",".join(names), {**first, "labels": labels}, texts, scores))
        return answers

    def _texts(self, line: str) -> Texts:
        """Return the text or the two texts of a line. Raise ValueError if the model was trained on the other kind."""
        first, tab, second = line.partition("\t")
        if tab and self.inputs == "texts":
            raise ValueError(f"{line[:200]!r} is two texts, by its tab: expected one text, as in the training data")
        if not tab and self.inputs == "pairs":
            raise ValueError(f"{line[:200]!r} is one text: expected two texts with a tab between them")
        return (first, second) if tab else (line, None)

    def score(self, examples: Sequence[LabeledExample]) -> "Scores":
        """Classify the examples and return accuracy and macro-F1; with `multi_label` micro-F1, macro-F1 and accuracy.

        Without `multi_label`, the confusion matrix is added unless there are too many classes to show.
        """
        from glassformer.metrics.accuracy import confusion_tables, score_classes, score_label_sets

        found, true = self._compare(examples)
        if self.multi_label:
            return score_label_sets(found, true)
        one, other = [labels[0] for labels in found], [labels[0] for labels in true]
        return replace(score_classes(one, other), tables=confusion_tables(one, other, self.labels))

    def confusion(self, examples: Sequence[LabeledExample]) -> list[list[int]]:
        """Classify the examples and return how often each true class (rows) was predicted as each class (columns).

        Rows and columns are in the order of `labels`.
        """
        from glassformer.metrics.accuracy import confusion

        found, true = self._compare(examples)
        return confusion([labels[0] for labels in found], [labels[0] for labels in true], self.labels)

    def numbers(self, example: LabeledExample) -> list[int]:
        """Return the index in `labels` of each label of an example. Raise ValueError for an unknown label."""
        for label in example.labels:
            if label not in self.labels:
                raise unknown_label(label, self.labels, example.where)
        return [self.labels.index(label) for label in example.labels]

    def _compare(self, examples: Sequence[LabeledExample]) -> tuple[list[list[str]], list[tuple[str, ...]]]:
        for example in examples:
            self.numbers(example)
        found = self.classify([(example.text, example.second) for example in examples])
        return [[p.label for p in predictions] for predictions in found], [example.labels for example in examples]
