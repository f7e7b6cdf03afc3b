"""Validation sentences share no phrase with training by accident."""

import importlib.util
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

spec = importlib.util.spec_from_file_location(
    "split_phrases", Path(__file__).parent.parent / "tools" / "split_phrases.py"
)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=7).map(" ".join)


def contains(sentence, phrase):
    return f" {phrase} " in f" {sentence} "


@given(texts=st.lists(WORDS, max_size=30), share=st.sampled_from([0.2, 0.5]))
def test_a_validation_sentence_is_whole_and_no_training_text_is_inside_it_alone(texts, share):
    split = tool.split_phrases(texts, share)
    assert not {*split.train} & {*split.valid}
    train = {texts[position] for position in split.train}
    for position in split.valid:
        sentence = texts[position]
        assert not any(contains(other, sentence) for other in texts if other != sentence)
        for phrase in {text for text in train if contains(sentence, text)}:
            assert any(contains(other, phrase) and other in train and len(other.split()) >= 3 for other in train)


def test_a_phrase_of_a_validation_sentence_alone_is_left_out():
    sentences = [f"the film number {n} is good" for n in range(40)]
    texts = [*sentences, *(f"film number {n}" for n in range(40)), "is good"]
    split = tool.split_phrases(texts, 0.3)
    valid = [texts[position] for position in split.valid]
    assert 0 < len(valid) < 40
    left_out = {*range(len(texts))} - {*split.train} - {*split.valid}
    assert {texts[position] for position in left_out} == {" ".join(text.split()[1:4]) for text in valid}
    assert "is good" in {texts[position] for position in split.train}
