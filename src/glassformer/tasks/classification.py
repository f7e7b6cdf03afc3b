"""Texts to classes, one or several each; pairs of texts too."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.data.batching.labeled_batches import LabeledBatch, LabeledRow
from glassformer.metrics.accuracy import confusion, confusion_tables, score_classes, score_label_sets
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderModel
from glassformer.tasks.configs.classification import ClassificationConfig, LabelledData, LabelledText
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.small_models import small_encoder
from glassformer.tasks.encoders import EncoderTask, EncoderTool, Reader, Texts, read_batch, unknown_label
from glassformer.tasks.pipeline import (
    LineAnswer,
    ManyInputs,
    Request,
    answer_lines_with_text,
    as_json_number,
    check_inputs,
)
from glassformer.training.train_config import TrainConfig


class Prediction(NamedTuple):
    """A class, and how likely the model finds it."""

    label: str
    probability: float


class Classifier(EncoderTool[LabelledText]):
    """A trained model with its tokenizer and the names of its classes."""

    task, head = "classification", "sequence_class"

    def __init__(self, model: EncoderModel, reader: Reader, *, labels: Sequence[str], multi_label: bool = False):
        if len(labels) != model.config.n_labels:
            raise ValueError(f"{len(labels)} labels for a model of {model.config.n_labels} classes: expected as many")
        super().__init__(model, reader, labels=list(labels), multi_label=multi_label)
        self.labels, self.multi_label = list(labels), multi_label

    def probabilities(self, texts: str | ManyInputs, *, max_batch_tokens: int = 8192) -> Tensor:
        """The probability of each class for each text, or tuple of two texts: (N, classes). One string: (classes,)."""
        if isinstance(texts, str):
            return self.probabilities([texts], max_batch_tokens=max_batch_tokens)[0]
        inputs = check_inputs(texts)
        if not inputs:
            return torch.empty(0, len(self.labels))
        rows = self.read(inputs)
        scores = torch.stack(self.answers(rows, max_batch_tokens=max_batch_tokens))
        return scores.sigmoid() if self.multi_label else scores.softmax(-1)

    @overload
    def classify(self, texts: str) -> list[Prediction]: ...
    @overload
    def classify(self, texts: ManyInputs) -> list[list[Prediction]]: ...
    def classify(self, texts: str | ManyInputs) -> list[Prediction] | list[list[Prediction]]:
        """The most likely class of each text; with several labels per text, all above a probability of 0.5.

        One string gives one list of predictions. An input of two texts is a tuple, in a list: `[("one", "two")]`.
        """
        if isinstance(texts, str):
            return self._chosen(self.probabilities(texts))
        return [self._chosen(row) for row in self.probabilities(texts)]

    def _chosen(self, row: Tensor) -> list[Prediction]:
        chosen = (row > 0.5).nonzero()[:, 0].tolist() if self.multi_label else [int(row.argmax())]
        return [Prediction(self.labels[index], float(row[index])) for index in chosen]

    def answer_lines(self, lines: Sequence[str], request: Request) -> list[LineAnswer]:
        """The labels of each line, with commas between them; a pair of texts has a tab between them."""
        blank = LineAnswer("", {"labels": []})
        return answer_lines_with_text(lines, blank, lambda told: self._label_lines(told, request.n_best))

    def _label_lines(self, lines: list[str], n_best: int | None) -> list[LineAnswer]:
        answers = []
        for row in self.probabilities([_texts(line) for line in lines]):
            chosen = self._chosen(row)
            ranked = [Prediction(self.labels[i], float(row[i])) for i in row.argsort(descending=True, stable=True)]
            shown = chosen if n_best is None else ranked[:n_best]
            names = [prediction.label for prediction in chosen]
            first = {"predicted": names} if self.multi_label else {"label": names[0]}
            labels = [{"label": one.label, "probability": as_json_number(one.probability)} for one in ranked[:n_best]]
            texts, scores = tuple(one.label for one in shown), tuple(one.probability for one in shown)
            answers.append(LineAnswer(",".join(names), {**first, "labels": labels}, texts, scores))
        return answers

    def score(self, examples: Sequence[LabelledText]) -> Scores:
        """Accuracy and macro-F1, with the confusion of a few classes; of several labels a text micro-F1 first."""
        found, true = self._compare(examples)
        if self.multi_label:
            return score_label_sets(found, true)
        one, other = [labels[0] for labels in found], [labels[0] for labels in true]
        return replace(score_classes(one, other), tables=confusion_tables(one, other, self.labels))

    def confusion(self, examples: Sequence[LabelledText]) -> list[list[int]]:
        """How often each class (rows) was taken for each (columns), in the order of `labels`."""
        found, true = self._compare(examples)
        return confusion([labels[0] for labels in found], [labels[0] for labels in true], self.labels)

    def numbers(self, example: LabelledText) -> list[int]:
        """The numbers of an example's labels."""
        for label in example.labels:
            if label not in self.labels:
                raise unknown_label(label, self.labels, example.where)
        return [self.labels.index(label) for label in example.labels]

    def _compare(self, examples: Sequence[LabelledText]) -> tuple[list[list[str]], list[tuple[str, ...]]]:
        for example in examples:
            self.numbers(example)
        found = self.classify([(example.text, example.second) for example in examples])
        return [[p.label for p in predictions] for predictions in found], [example.labels for example in examples]


class Classification(EncoderTask[LabelledText]):
    """Labelled texts to a classifier."""

    name, title = "classification", "A classifier"
    Config, Data, Tool = ClassificationConfig, LabelledData, Classifier

    def unused(self) -> set[str]:
        """As above: of several labels a text, each is asked for by itself."""
        return {"bpe_dropout", *(("r_drop", "word_dropout", "label_smoothing") if self.config.data.multi_label else ())}

    def texts(self, example: LabelledText) -> Texts:
        """As above."""
        return example.text, example.second

    def begin(self, train: Sequence[LabelledText]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As above."""
        labels = sorted({label for example in train for label in example.labels})
        multi_label = self.config.data.multi_label
        if len(labels) < 2 and not (multi_label and labels):
            raise ValueError(
                f"all texts have the labels {labels}: expected at least two classes. Add texts of "
                "another class, or name another column with --label-column"
            )
        # From scratch with BERT's pooler, so that Hugging Face can express the model. A body that was trained under
        # another head gets no further layer without trained weights.
        is_fresh = self.config.start_from is None
        head = {"pooling": "first", "head_transform": True} if is_fresh else {"pooling": "mean"}
        return {"n_labels": len(labels), **head}, {"labels": labels, "multi_label": multi_label}

    def rows(self, tool: Classifier, examples: Sequence[LabelledText]) -> list[LabeledRow]:
        """As above."""
        rows = []
        for example, read in zip(examples, tool.read([self.texts(example) for example in examples]), strict=True):
            numbers = tool.numbers(example)
            answer: Any = numbers[0] if not tool.multi_label else [float(i in numbers) for i in range(len(tool.labels))]
            rows.append(LabeledRow(read.ids, read.token_types, answer))
        return rows

    def loss(self, model: nn.Module, batch: LabeledBatch) -> Tensor:
        """As above."""
        if not batch.answers.is_floating_point():
            return self.class_loss(model, batch)
        scores = read_batch(model, batch).float()
        return F.binary_cross_entropy_with_logits(scores, batch.answers, reduction="none").mean(-1).sum()

    @classmethod
    def demo(cls) -> ClassificationConfig:
        """Which of 20 languages is it? Some are far from each other, some, as Danish and Norwegian, are not."""
        return ClassificationConfig(
            data=LabelledData(corpus="interface-languages"),
            model=small_encoder(n_encoder_layers=1, dropout=0.1, embedding_dropout=0.1),
            train=TrainConfig(
                minutes=2, lr=2e-3, warmup=100, schedule="linear", label_smoothing=0.0, max_tokens=1024, eval_every=250
            ),
        )

    def baseline(self, splits: Splits[LabelledText]) -> tuple[str, Scores]:
        """The commonest answer for every text."""
        counts = Counter(example.labels for example in splits.train)
        (labels, _), *_ = counts.most_common(1)
        true = [example.labels for example in splits.test or splits.valid]
        if self.config.data.multi_label:
            return "the commonest labels", score_label_sets([labels] * len(true), true)
        return "the commonest class", score_classes([labels[0]] * len(true), [names[0] for names in true])

    def show(self, example: LabelledText) -> tuple[str, str]:
        """As above."""
        return "\t".join(filter(None, (example.text, example.second))), ",".join(example.labels)

    def describe(self, splits: Splits[LabelledText]) -> str:
        """As above."""
        train, valid = list(splits.train), list(splits.valid)
        counts = Counter(label for example in train for label in example.labels)
        balance = ", ".join(f"{label} {count / len(train):.0%}" for label, count in counts.most_common(10))
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        return (
            f"{len(train):,} texts to learn from, {len(valid):,} to validate on; {len(counts)} classes: {balance}{more}"
        )


def _texts(line: str) -> Texts:
    first, tab, second = line.partition("\t")
    return (first, second) if tab else (line, None)
