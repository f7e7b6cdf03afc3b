"""The merges of byte-pair encoding end with the tokens that the tokenizer gives."""

import pytest

from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.merge_steps import cut_text, merge_word

TEXTS = ["low lower lowest", "newer and lower, the newest"] * 5


@pytest.mark.parametrize("kind", ["bpe", "bytes", "unigram", "characters"])
def test_words_have_the_tokens_of_the_tokenizer(kind):
    tokenizer = Tokenizer.train(TEXTS, 300, TokenizerConfig(kind=kind))
    text = "lowly newer älter"
    found = cut_text(tokenizer, text)
    if kind != "characters":
        assert [index for word in found.words for index in word["ids"]] == tokenizer.encode(text)
    assert (found.merges is None) == (kind in ("unigram", "characters"))


def test_merges_of_each_word_end_with_its_tokens():
    tokenizer = Tokenizer.train(TEXTS, 300)
    found = cut_text(tokenizer, "lower lowly newest")
    for number, word in enumerate(found.words):
        parts = list(word["word"])
        for merge in (one for one in found.merges if one.word == number):
            place = next(i for i in range(len(parts)) if parts[i : i + 2] == [merge.left, merge.right])
            parts[place : place + 2] = [merge.result]
        assert parts == word["tokens"]


def test_the_lowest_rank_comes_first():
    parts = list("abab")
    assert merge_word(parts, {("b", "a"): 1, ("a", "b"): 0, ("ab", "ab"): 5}) == [
        ("a", "b", 0),
        ("a", "b", 0),
        ("ab", "ab", 5),
    ]
    assert parts == ["abab"]
