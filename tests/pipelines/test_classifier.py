"""The classifier: probabilities, labels and scores."""

import json

import pytest
import torch

from glassformer.checkpoint.safe_files import seal_folder
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.examples import LabeledExample
from glassformer.pipelines.load import load
from glassformer.pipelines.pipeline import LineRequest
from pipelines.tiny_pipelines import LABELS, make, with_reader


def several_labels():
    """A classifier that may give a text any number of labels."""
    settings = {"labels": LABELS, "multi_label": True}
    return with_reader(Classifier, "sequence_class", settings, n_labels=3, pooling="mean")


def test_the_most_likely_label_is_chosen_and_probabilities_sum_to_one():
    tool = make(Classifier)
    probabilities = tool.probabilities(["the cat", ("the cat", "it is red.")])
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2))
    (first,), _ = tool.classify(["the cat", "it is red."])
    assert first.label == LABELS[int(probabilities[0].argmax())]
    assert tool.probabilities([]).shape == (0, 3)


def test_with_several_labels_those_above_one_half_are_chosen(monkeypatch):
    tool = several_labels()
    monkeypatch.setattr(tool, "answers", lambda rows, **_: [torch.tensor([2.0, -1.0, 1.0])] * len(rows))
    assert [one.label for one in tool.classify("the cat")] == [LABELS[0], LABELS[2]]
    (answer,) = tool.answer_lines(["the cat"], LineRequest())
    assert answer.line == f"{LABELS[0]},{LABELS[2]}"
    assert answer.record["predicted"] == [LABELS[0], LABELS[2]]


def test_scores_compare_labels_and_an_unknown_label_names_its_place(monkeypatch):
    tool = make(Classifier)
    monkeypatch.setattr(tool, "answers", lambda rows, **_: [torch.tensor([1.0, 0.0, 0.0])] * len(rows))
    examples = [LabeledExample("a", ("animal",)), LabeledExample("b", ("tool",))]
    assert tool.score(examples)["accuracy"] == 50
    assert tool.confusion(examples) == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match=r"a.tsv:7: the label 'color' was not learned: expected one of animal, place"):
        tool.score([LabeledExample("c", ("color",), where="a.tsv:7")])


def test_the_number_of_labels_must_be_that_of_the_model():
    with pytest.raises(ValueError, match="2 labels for a model of 3 classes: expected as many"):
        with_reader(Classifier, "sequence_class", {"labels": LABELS[:2]}, n_labels=3, pooling="mean")


def test_a_task_json_that_does_not_fit_the_model_is_refused(tmp_path):
    make(Classifier).save(tmp_path / "model", "card")
    path = tmp_path / "model" / "task.json"
    true = json.loads(path.read_text(encoding="utf-8"))
    for change, message in [
        ({"task": "nonsense"}, "names the task 'nonsense'"),
        ({"labels": 3}, "labels=3: expected a list of texts"),
        ({"labels": ["a", "b"]}, "2 labels for a model of 3 classes"),
        ({"strange": 1}, "the setting 'strange': expected labels, multi_label"),
    ]:
        path.write_text(json.dumps({**true, **change}), encoding="utf-8")
        with pytest.raises(ValueError, match="checksum"):
            load(tmp_path / "model")
        seal_folder(tmp_path / "model")
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "model")


@pytest.mark.parametrize(
    ("inputs", "right", "wrong", "message"),
    [
        ("texts", "the cat", "the cat\tanimal", r"'the cat\\tanimal' is two texts, by its tab: expected one text"),
        ("pairs", "the cat\tit is red.", "the cat", "'the cat' is one text: expected two texts with a tab"),
    ],
)
def test_a_line_must_be_what_the_model_was_trained_on(tmp_path, inputs, right, wrong, message):
    """A table with a column of labels would otherwise be classified with its labels as second texts."""
    settings = {"labels": LABELS, "multi_label": False, "inputs": inputs}
    with_reader(Classifier, "sequence_class", settings, n_labels=3, pooling="mean").save(tmp_path / "m", "A model.")
    tool = load(tmp_path / "m")
    assert tool.inputs == inputs
    assert tool.run(right) in LABELS
    with pytest.raises(ValueError, match=message):
        tool.run(wrong)
    assert tool.run(["", " "]) == ["", ""]
