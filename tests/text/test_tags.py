"""Tags and entities, each way; words and their pieces; the search for legal tags."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text.encoded import Encoded
from glassformer.text.tag_paths import TagPaths
from glassformer.text.tags import (
    BadTagError,
    Entity,
    MixedTagsError,
    detect_scheme,
    entities_of,
    tags_of,
)
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.word_split import cut_words
from glassformer.text.word_windows import first_pieces, joined, windows

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
        ("O I-PER", "iob2", 1, "'I-PER' goes on with nothing"),
        ("B-PER I-LOC", "iob2", 1, "goes on with nothing"),
        ("B-PER O", "bioes", 1, "comes before the end of an entity: expected I-PER or E-PER"),
        ("B-PER B-PER", "bioes", 1, "comes before the end"),
        ("O B-PER", "bioes", 1, "inside an entity"),
        ("S-PER E-PER", "bioes", 1, "goes on with nothing"),
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


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_the_best_legal_tags_are_those_of_a_search_through_all(lengths, seed):
    paths = TagPaths(["A"])
    drawn = np.random.default_rng(seed)
    scores = [drawn.normal(size=(length, len(paths.tags))).astype(np.float32) for length in lengths]
    for found, one in zip(paths.best(scores), scores, strict=True):
        legal = []
        for numbers in product(range(len(paths.tags)), repeat=len(one)):
            tags = [paths.tags[number] for number in numbers]
            try:
                entities_of(tags, "bioes")
            except BadTagError:
                continue
            legal.append((sum(one[place, number] for place, number in enumerate(numbers)), tags))
        assert found == max(legal, key=lambda pair: pair[0])[1]


def test_words_with_equal_scores_are_tagged_o():
    assert TagPaths(["A", "B"]).best([np.zeros((3, 9), dtype=np.float32)]) == [["O", "O", "O"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann's cat, (U.S.) said...", "Ann 's cat , ( U.S. ) said ..."),
        ("O'Neil paid $3.5m at 12:30.", "O'Neil paid $ 3.5m at 12:30 ."),
        ("jean-luc\tvon\u00a0AT&T!", "jean-luc von AT&T !"),
        (
            "EU\u2019s U.S.A \u0939\u093f\u0928\u094d\u0926\u0940",
            "EU \u2019s U.S.A \u0939\u093f\u0928\u094d\u0926\u0940",
        ),
        ("\x00\u0130x's", "\x00 \u0130x 's"),
        ("  ", ""),
    ],
)
def test_words_are_split_by_the_given_rule(text, words):
    assert [text[begin:end] for begin, end in cut_words(text)] == [word for word in words.split(" ") if word]


@given(st.text())
def test_words_are_the_text_without_its_spaces(text):
    places = cut_words(text)
    assert "".join(text[begin:end] for begin, end in places) == "".join(text.split())
    assert all(left[1] <= right[0] for left, right in pairwise(places))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), min_size=1))
def test_each_word_has_its_first_piece(words):
    tokenizer = Tokenizer.train(["the red cat sees the old cat"], 300)
    (encoded,) = tokenizer.offsets_batch([(joined(words), None)])
    places = [*first_pieces(words, encoded), len(encoded) - 1]
    assert places[0] == 0
    for word, (place, after) in zip(words, pairwise(places), strict=True):
        assert tokenizer.decode(encoded.ids[place:after]) == word


def test_a_word_without_tokens_has_no_position():
    encoded = Encoded([1, 7, 9, 2], [(0, 0), (0, 2), (5, 6), (0, 0)], [0] * 4, [None, 0, 0, None])
    assert first_pieces(["ab", "\x01", "c"], encoded) == [1, None, 2]
    assert first_pieces(["ab", "", "\x01c"], encoded) == [1, None, 2]


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 20))
def test_windows_answer_each_word_once_and_keep_to_their_size(costs, room):
    found = windows(costs, room)
    assert [word for window in found for word in range(window.first, window.last)] == list(range(len(costs)))
    for begin, first, last, end in found:
        assert 0 <= begin <= first < last <= end <= len(costs)
        assert sum(costs[begin:end]) <= room or last == first + 1


def test_windows_have_context_on_both_sides():
    middle = windows([1] * 100, 20)[3]
    assert middle == (25, 30, 40, 45)
