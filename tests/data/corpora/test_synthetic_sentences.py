"""Synthetic tagged sentences: their splits share no names."""

import pytest

from glassformer.data.corpora.synthetic_sentences import SIZES, generate_sentences


@pytest.fixture(scope="module")
def sides():
    return {side: generate_sentences(side) for side in SIZES}


def test_every_split_has_its_size_and_always_the_same_sentences(sides):
    assert {side: len(sentences) for side, sentences in sides.items()} == SIZES
    assert generate_sentences("valid") == sides["valid"]


def test_entities_are_in_order_inside_their_sentence_and_have_every_label(sides):
    for sentences in sides.values():
        labels = set()
        for sentence in sentences:
            end = 0
            for entity in sentence.entities:
                assert end <= entity.begin < entity.end <= len(sentence.words)
                end = entity.end
                labels.add(entity.label)
            assert not any("{" in word for word in sentence.words)
        assert labels == {"PERSON", "PLACE", "ORG", "DATE"}


def test_the_last_names_and_places_of_a_split_occur_in_no_other(sides):
    names = {
        side: {
            sentence.words[entity.end - 1]
            for sentence in sentences
            for entity in sentence.entities
            if entity.label in ("PERSON", "PLACE")
        }
        for side, sentences in sides.items()
    }
    assert all(len(found) > 20 for found in names.values())
    assert names["train"].isdisjoint(names["valid"] | names["test"])
    assert names["valid"].isdisjoint(names["test"])
