"""Splits by a hash of the text."""

import pytest

from glassformer.data.readers.pairs import Pair
from glassformer.data.readers.splits import split_examples, split_of, split_pairs


def test_a_text_is_always_in_the_same_split_whatever_its_case_and_spaces():
    sides = [split_of(f"sentence {i}", valid=0.1, test=0.1) for i in range(3000)]
    assert 0.07 < sides.count("test") / 3000 < 0.13
    assert 0.07 < sides.count("valid") / 3000 < 0.13
    assert all(split_of(f"  Sentence  {i}", valid=0.1, test=0.1) == side for i, side in enumerate(sides[:100]))


def test_each_example_is_in_exactly_one_split_in_every_pass():
    examples = [(number, f"text {number}") for number in range(300)]
    sides = split_examples(examples, lambda example: example[1], valid=0.2, test=0.2)
    assert set(sides) == {"train", "valid", "test"}
    assert all(len(list(side)) > 30 for side in sides.values())
    for _ in range(2):
        assert sorted(example for side in sides.values() for example in side) == examples


def test_pairs_with_the_same_source_are_in_the_same_split():
    pairs = [Pair(f"source {number % 100}", f"target {number}") for number in range(300)]
    sides = split_pairs(pairs, valid=0.3, test=0.3)
    sources = [{pair.source for pair in side} for side in sides.values()]
    assert sum(map(len, sources)) == 100
    assert len(set.union(*sources)) == 100


def test_a_file_without_the_test_texts_has_the_same_validation_texts():
    """Otherwise a file that was made of a corpus's train and valid texts would be split into no validation texts."""
    texts = [f"sentence {number}" for number in range(3000)]
    side = {text: split_of(text, valid=0.04, test=0.04) for text in texts}
    rest = [text for text in texts if side[text] != "test"]
    assert [text for text in rest if split_of(text, valid=0.04, test=0.0) == "valid"] == [
        text for text in rest if side[text] == "valid"
    ]


@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_few_examples_have_a_validation_text(count):
    """With a share of 4 %, one of ten texts would often have none."""
    for start in range(20):
        texts = [f"text {start} {number}" for number in range(count)]
        sides = split_examples(texts, str, test=0.0)
        train, valid = list(sides["train"]), list(sides["valid"])
        assert train
        assert valid
        assert sorted(train + valid) == sorted(texts)
        usual = [text for text in texts if split_of(text, valid=0.04, test=0.0) == "valid"]
        assert valid == usual if usual else len(valid) == 1
