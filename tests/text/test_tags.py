"""Tags and entities, converted both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.tags import (
    BadTagError,
    Entity,
    MixedTagsError,
    detect_scheme,
    entities_of,
    group_tags,
    tags_of,
)

SCHEMES = ["iob1", "iob2", "bioes"]


@st.composite
def tagged(draw):
    """Entities that do not overlap, often side by side, and how many words there are."""
    entities, place = [], 0
    for gap, size, label in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["PER", "LOC", "geo-loc"])))
    ):
        entities.append(Entity(place + gap, place + gap + size, label))
        place += gap + size
    return entities, place + draw(st.integers(0, 2))


@given(tagged(), st.sampled_from(SCHEMES))
def test_entities_to_tags_and_back(example, scheme):
    entities, length = example
    tags = tags_of(entities, length, scheme)
    assert len(tags) == length
    assert entities_of(tags, scheme) == entities


@given(tagged(), st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
def test_tags_convert_between_all_schemes(example, one, other):
    entities, length = example
    tags = tags_of(entities, length, one)
    through = tags_of(entities_of(tags_of(entities_of(tags, one), length, other), other), length, one)
    assert through == tags


@given(st.lists(tagged(), min_size=1), st.sampled_from(SCHEMES))
def test_a_detected_scheme_reads_what_was_written(examples, scheme):
    sentences = [tags_of(entities, length, scheme) for entities, length in examples]
    found = detect_scheme(sentences)
    assert [entities_of(tags, found) for tags in sentences] == [entities for entities, _ in examples]


def test_the_schemes_are_those_of_the_literature():
    entities = [Entity(0, 2, "PER"), Entity(2, 3, "PER"), Entity(3, 4, "LOC"), Entity(5, 8, "ORG")]
    assert " ".join(tags_of(entities, 9, "iob1")) == "I-PER I-PER B-PER I-LOC O I-ORG I-ORG I-ORG O"
    assert " ".join(tags_of(entities, 9, "iob2")) == "B-PER I-PER B-PER B-LOC O B-ORG I-ORG I-ORG O"
    assert " ".join(tags_of(entities, 9, "bioes")) == "B-PER E-PER S-PER S-LOC O B-ORG I-ORG E-ORG O"


@pytest.mark.parametrize(
    ("tags", "scheme", "place", "message"),
    [
        ("O I-PER", "iob2", 1, "'I-PER' continues no entity"),
        ("B-PER I-LOC", "iob2", 1, "continues no entity"),
        ("B-PER O", "bioes", 1, "comes before the end of an entity: expected I-PER or E-PER"),
        ("B-PER B-PER", "bioes", 1, "comes before the end"),
        ("O B-PER", "bioes", 1, "inside an entity"),
        ("S-PER E-PER", "bioes", 1, "continues no entity"),
        ("O S-PER", "iob2", 1, "is no tag of IOB2"),
        ("U-PER", "bioes", 0, "is no tag of BIOES: expected O, or B-, I-, E-, S- and a label"),
        ("O B-", "iob1", 1, "is no tag"),
        ("PER", "iob1", 0, "is no tag"),
        ("BI-PER", "iob2", 0, "is no tag"),
    ],
)
def test_an_invalid_tag_is_named_with_its_position(tags, scheme, place, message):
    with pytest.raises(BadTagError, match=message) as error:
        entities_of(tags.split(), scheme)
    assert error.value.place == place


def test_mixed_tagging_schemes_are_reported():
    with pytest.raises(MixedTagsError) as error:
        detect_scheme([["O", "I-PER"], ["O", "O", "B-PER"]])
    assert (error.value.as_iob1, error.value.as_iob2) == ((0, 1), (1, 2))


@pytest.mark.parametrize("entities", [[(0, 2, "A"), (1, 3, "A")], [(2, 2, "A")], [(2, 4, "A")], [(-1, 1, "A")]])
def test_entities_that_do_not_fit_have_no_tags(entities):
    with pytest.raises(ValueError, match="overlaps"):
        tags_of([Entity(*entity) for entity in entities], 3, "bioes")


@pytest.mark.parametrize(
    ("tags", "known", "expected"),
    [
        ("B-A I-A O I-A I-B B-B", "O B-A I-A B-B I-B", [(0, 2, "A"), (3, 4, "A"), (4, 5, "B"), (5, 6, "B")]),
        ("B-A E-A S-A E-A I-A", "O B-A I-A E-A S-A", [(0, 2, "A"), (2, 3, "A"), (3, 4, "A"), (4, 5, "A")]),
        ("B-A L-A U-A O", "O B-A I-A L-A U-A", [(0, 2, "A"), (2, 3, "A")]),
        ("NOUN NOUN VERB S-X O S-X", "O NOUN VERB S-X", [(0, 2, "NOUN"), (2, 3, "VERB"), (3, 4, "S-X"), (5, 6, "S-X")]),
        ("B- O I-", "O B- I-", [(0, 1, ""), (2, 3, "")]),
    ],
)
def test_tags_chosen_word_by_word_are_grouped(tags, known, expected):
    assert group_tags(tags.split(), known.split()) == expected
