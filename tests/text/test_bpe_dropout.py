import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import Tokenizer, TokenizerConfig, bpe_dropout
from glassformer.text.bpe_dropout import BpeDropout
from glassformer.text.tokenizer import SPECIAL

TEXTS = [
    "the cat sat on the mat",
    "der Hund läuft über die Straße",
    "numbers 123 and </s> too",
    "привет мир",
    "banana bananas ananas",
]
TOKENIZERS = {
    lowercase: Tokenizer.train(TEXTS * 20, 360, TokenizerConfig(lowercase=lowercase)) for lowercase in (False, True)
}
WORDS = [word for text in TEXTS for word in text.split()]
ANY_TEXT = st.one_of(
    st.text(max_size=40),
    # Words that have merges, with anything between them.
    st.lists(st.sampled_from([*WORDS, *SPECIAL, "Ġ", " ", "\n", "'s", "BANANA"]) | st.text(max_size=2)).map("".join),
)


@pytest.mark.parametrize("lowercase", TOKENIZERS)
@given(texts=st.lists(ANY_TEXT, max_size=4), seed=st.integers(), version=st.integers())
def test_chance_0_segments_as_the_tokenizer(lowercase, texts, seed, version):
    tokenizer = TOKENIZERS[lowercase]
    assert BpeDropout(tokenizer, 0, seed).encode_batch(texts, version) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("lowercase", TOKENIZERS)
@given(text=ANY_TEXT, chance=st.floats(0, 1), version=st.integers(0, 9))
def test_dropout_segmentations_decode_to_the_same_text(lowercase, text, chance, version):
    tokenizer = TOKENIZERS[lowercase]
    [ids] = BpeDropout(tokenizer, chance).encode_batch([text], version)
    assert all(index >= len(SPECIAL) for index in ids)
    assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(text))


@given(order=st.permutations(range(len(TEXTS))), split=st.integers(0, len(TEXTS)))
def test_a_cut_depends_on_seed_version_and_text_alone(order, split):
    once = BpeDropout(TOKENIZERS[False], 0.4, seed=3).encode_batch(TEXTS, 5)
    other = BpeDropout(TOKENIZERS[False], 0.4, seed=3)
    shuffled = [TEXTS[i] for i in order]
    other.encode_batch(TEXTS, 4)
    again = other.encode_batch(shuffled[:split], 5) + other.encode_batch(shuffled[split:], 5)
    assert again == [once[i] for i in order]


def test_evicted_segmentations_are_drawn_again_equally(monkeypatch):
    expected = [BpeDropout(TOKENIZERS[False], 0.4).encode_batch(TEXTS, version) for version in range(3)]
    monkeypatch.setattr(bpe_dropout, "REMEMBERED", 2)
    forgetful = BpeDropout(TOKENIZERS[False], 0.4)
    assert [forgetful.encode_batch(TEXTS, version) for version in range(3)] == expected


def test_versions_seeds_and_places_differ():
    cuts = [
        BpeDropout(TOKENIZERS[False], 0.4, seed).encode_batch(TEXTS, version) for seed in (0, 1) for version in (0, 1)
    ]
    assert all(a != b for i, a in enumerate(cuts) for b in cuts[:i])
    [ids] = BpeDropout(TOKENIZERS[False], 0.4).encode_batch(["banana " * 200], 0)
    words = TOKENIZERS[False].decode(ids).split()
    assert words == ["banana"] * 200
    starts = [place for place, token in enumerate(TOKENIZERS[False].tokens(ids)) if token.startswith(" ")]
    seen = {tuple(ids[begin:end]) for begin, end in pairwise(starts)}
    assert 2 < len(seen) <= bpe_dropout.POOL


def test_the_higher_the_chance_the_smaller_the_pieces():
    tokenizer = TOKENIZERS[False]

    def n_tokens(chance):
        dropout = BpeDropout(tokenizer, chance)
        return sum(len(ids) for version in range(20) for ids in dropout.encode_batch(TEXTS, version))

    counts = [n_tokens(chance) for chance in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)]
    assert all(a < b for a, b in pairwise(counts))
    # A space is put before every text.
    assert counts[-1] == 20 * sum(len(f" {text}".encode()) for text in TEXTS)


def toy_tokenizer(*merges):
    """A tokenizer with these merges alone."""
    contents = json.loads(Tokenizer.train([], 260).to_json())
    model = contents["model"]
    for left, right in merges:
        model["vocab"][left + right] = len(model["vocab"])
        model["merges"].append([left, right])
    return Tokenizer.from_json(json.dumps(contents))


@pytest.mark.parametrize(
    ("merges", "word", "expected"),
    [
        # One after the other.
        ([("a", "b"), ("Ġ", "ab")], "ab", {" ab": 0.49, " |ab": 0.21, " |a|b": 0.3}),
        # Two that want the same letter: the second is made in the step that skips the first.
        ([("a", "b"), ("Ġ", "a")], "ab", {" |ab": 0.7, " a|b": 0.21, " |a|b": 0.09}),
        # The first may be skipped in the step that makes the second, and be made after it. The third is gone as soon as
        # one of them is made, and then is no step that gives the other a new chance.
        (
            [("a", "b"), ("c", "d"), ("b", "c")],
            "abcd",
            {" |ab|cd": 0.637, " |ab|c|d": 0.21, " |a|b|cd": 0.063, " |a|bc|d": 0.063, " |a|b|c|d": 0.027},
        ),
    ],
)
def test_segmentations_occur_with_the_right_frequency(merges, word, expected):
    tokenizer = toy_tokenizer(*merges)
    counts = Counter()
    for seed in range(300):
        dropout = BpeDropout(tokenizer, 0.3, seed)
        for ids in dropout.encode_batch([word], 0) + dropout.encode_batch([word], 1):
            counts["|".join(tokenizer.tokens(ids))] += 1
    assert counts.keys() == expected.keys()
    for cut, share in expected.items():
        assert counts[cut] / counts.total() == pytest.approx(share, abs=0.05), cut


def test_long_words_take_no_longer_than_their_length():
    tokenizer = toy_tokenizer(("a", "a"), ("aa", "aa"))
    [ids] = BpeDropout(tokenizer, 0.1).encode_batch(["a" * 50_000], 0)
    assert 12_500 < len(ids) < 25_000


@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan"), True, "0.1"])
def test_chance_outside_0_to_1_is_refused(chance):
    with pytest.raises(ValueError, match=r"chance=.*: expected a probability, from 0 to 1"):
        BpeDropout(TOKENIZERS[False], chance)


def test_a_tokenizer_without_merges_is_refused_with_the_way_out():
    unigram = Tokenizer.train(TEXTS * 20, 320, TokenizerConfig(kind="unigram"))
    with pytest.raises(ValueError, match=r"a unigram tokenizer has none: .*kind=\"bpe\".* or do without dropout"):
        BpeDropout(unigram, 0.1)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("model", "ignore_merges", True), ("model", "dropout", 0.5), (None, "pre_tokenizer", None)],
)
def test_a_tokenizer_that_follows_other_rules_is_refused(part, name, value):
    contents = json.loads(TOKENIZERS[False].to_json())
    (contents[part] if part else contents)[name] = value
    with pytest.raises(ValueError, match=f"its own {name}: expected one made by Tokenizer.train"):
        BpeDropout(Tokenizer.from_json(json.dumps(contents)), 0.1)
