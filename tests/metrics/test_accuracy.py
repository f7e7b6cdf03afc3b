"""Our scores beside scikit-learn's."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from glassformer.metrics.accuracy import confusion, confusion_tables, score_classes, score_label_sets

CLASSES = ["ant", "bee", "cow", "dog", "elk"]
answers = st.lists(st.tuples(st.sampled_from(CLASSES), st.sampled_from(CLASSES)), min_size=1, max_size=40)
label_sets = st.sets(st.sampled_from(CLASSES))
set_answers = st.lists(st.tuples(label_sets, label_sets), min_size=1, max_size=30)


@given(answers)
def test_classes_score_as_by_scikit_learn(pairs):
    found, true = zip(*pairs, strict=True)
    scores = score_classes(found, true)
    assert [*scores.values] == ["accuracy", "macro_f1"]
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(true, found))
    assert scores["macro_f1"] == pytest.approx(100 * f1_score(true, found, average="macro", zero_division=0))


@given(set_answers)
@example([(set(), set()), (set(), {"ant"})])
def test_label_sets_score_as_by_scikit_learn(pairs):
    found, true = zip(*pairs, strict=True)
    scores = score_label_sets([sorted(labels) for labels in found], [sorted(labels) for labels in true])
    assert next(iter(scores.values)) == "micro_f1"
    named = sorted(set().union(*found, *true))
    if not named:  # nothing to find, and nothing found; scikit-learn takes no table without columns
        assert scores.values == {"micro_f1": 100, "macro_f1": 100, "accuracy": 100}
        return
    table = MultiLabelBinarizer(classes=named)
    one, two = table.fit_transform(true), table.transform(found)
    for average in ("micro", "macro"):
        # scikit-learn takes a table of one column for two classes.
        by = average if len(named) > 1 else "binary"
        assert scores[f"{average}_f1"] == pytest.approx(100 * f1_score(one, two, average=by, zero_division=0))
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(one, two))


@given(answers)
def test_confusion_counts_as_scikit_learn_does(pairs):
    found, true = zip(*pairs, strict=True)
    assert confusion(found, true, CLASSES) == confusion_matrix(true, found, labels=CLASSES).tolist()


def test_confusion_matrix_is_shown_for_few_classes_only():
    table = confusion_tables(["ant", "bee", "bee"], ["ant", "ant", "bee"], ["ant", "bee"])["confusion"]
    assert str(table).splitlines() == ["     ant  bee", "ant    1    1", "bee    0    1"]
    assert table.to_dict() == {"columns": ["ant", "bee"], "rows": {"ant": [1, 1], "bee": [0, 1]}}
    many = [str(number) for number in range(13)]
    assert confusion_tables(many, many, many) == {}


def test_inputs_that_cannot_be_scored_are_named():
    with pytest.raises(ValueError, match="2 predictions and 1 answers: expected as many"):
        score_classes(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="there are no answers"):
        score_label_sets([], [])
