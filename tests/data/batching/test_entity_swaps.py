"""Entities of tagged sentences replaced by others of the same label."""

from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching.entity_swaps import swap_entities
from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.text.tags import Entity


@st.composite
def sentences(draw):
    words = tuple(draw(st.lists(st.sampled_from(["a", "b", "Rome", "Paris", "Ada", "May"]), max_size=8)))
    entities, begin = [], 0
    while begin < len(words):
        end = draw(st.integers(begin + 1, len(words)))
        if draw(st.booleans()):
            entities.append(Entity(begin, end, draw(st.sampled_from(["PLACE", "PERSON"]))))
        begin = end
    return TaggedSentence(words, tuple(entities), "file:1")


def names(sentence):
    return [(entity.label, sentence.words[entity.begin : entity.end]) for entity in sentence.entities]


def outside(sentence):
    inside = {place for entity in sentence.entities for place in range(entity.begin, entity.end)}
    return [word for place, word in enumerate(sentence.words) if place not in inside]


@given(st.lists(sentences(), max_size=5), st.floats(0, 1), st.text(max_size=3))
def test_only_names_change_and_each_is_one_of_its_label(given_sentences, chance, seed):
    known = {name for sentence in given_sentences for name in names(sentence)}
    swapped = list(swap_entities(given_sentences, chance, seed))
    assert swapped == list(swap_entities(given_sentences, chance, seed))
    for before, after in zip(given_sentences, swapped, strict=True):
        assert outside(after) == outside(before)
        assert [label for label, _ in names(after)] == [label for label, _ in names(before)]
        assert known.issuperset(names(after))


@given(st.lists(sentences(), max_size=5))
def test_chance_0_changes_nothing(given_sentences):
    assert list(swap_entities(given_sentences, 0.0, "any")) == given_sentences


def test_every_entity_of_a_label_can_be_the_replacement():
    places = [TaggedSentence(("in", name), (Entity(1, 2, "PLACE"),)) for name in ("Rome", "Paris", "Lima")]
    found = {one.words[1] for seed in range(30) for one in list(swap_entities(places, 1.0, str(seed)))[:1]}
    assert found == {"Rome", "Paris", "Lima"}
