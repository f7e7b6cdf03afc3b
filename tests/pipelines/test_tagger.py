"""The tagger: entities by word and by character."""

import pytest

from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.pipelines.tagger import Tagger, in_brackets, words_in
from glassformer.text.tags import Entity
from pipelines.tiny_pipelines import make


def test_entities_have_places_in_the_text():
    tagger, text = make(Tagger), "the old cat, sees  Rome."
    for entity in tagger.entities(text):
        assert text[entity.start : entity.end] == entity.text
    assert [entity.label for entity in tagger.entities(text)] == [one.label for one in tagger.tag(text)]
    assert tagger.tag(["the cat", "sees it"]) == tagger.tag([["the", "cat"], ["sees", "it"]])


def test_entities_are_printed_in_brackets():
    text = "EU rejects German call."
    assert in_brackets(text, [(0, 2, "ORG"), (11, 17, "MISC")]) == "[EU ORG] rejects [German MISC] call."
    assert in_brackets(text, []) == text
    assert words_in(text) == ["EU", "rejects", "German", "call", "."]


def test_an_unknown_label_names_its_place():
    example = TaggedSentence(("EU",), (Entity(0, 1, "ORG"),), "a.conll:4")
    with pytest.raises(ValueError, match=r"a.conll:4: the label 'ORG' was not learned"):
        make(Tagger).numbers(example)


def test_words_of_a_long_sentence_are_all_read_once():
    words = ["cat", "sees"] * 60
    readings = make(Tagger).read_words([words])
    assert len(readings) > 1
    assert [word for reading in readings for word in reading.words] == list(range(len(words)))
