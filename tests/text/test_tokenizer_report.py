"""Fertility, unknown tokens, round trips and longest tokens."""

import pytest

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import Tokenizer, TokenizerConfig
from glassformer.text.tokenizer_report import encode_plain, longest_tokens, measure_tokenizer, unknown_id
from text.tokenizer_folders import WORDS, byte_level, write


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    config = {"tokenizer_class": "BertTokenizer"}
    write(folder, vocab__txt=WORDS, tokenizer_config__json=config, config__json={"model_type": "bert"})
    return PretrainedTokenizer.from_folder(folder)


def test_the_sums_are_those_of_the_texts(wordpiece):
    found = measure_tokenizer(wordpiece, ["hello world", "hello napé", "Hello"])
    assert (found.n_texts, found.n_words, found.n_characters, found.n_bytes) == (3, 5, 26, 27)
    assert found.n_tokens == 2 + 4 + 1  # the second text is "hello na ##p ##e"
    assert found.fertility == pytest.approx(7 / 5)
    assert found.bytes_per_token == pytest.approx(27 / 7)
    assert (found.n_same, found.differing) == (1, "hello napé")
    assert found.round_trip_rate == pytest.approx(1 / 3)


def test_unknown_tokens_are_counted(wordpiece):
    found = measure_tokenizer(wordpiece, ["hello zzz"])
    assert (found.n_unknown, found.unknown_rate) == (1, 0.5)
    characters = Tokenizer.train(["abc"], 10, TokenizerConfig(kind="characters"))
    assert measure_tokenizer(characters, ["abz"]).n_unknown == 1


def test_bytes_leave_nothing_unknown_and_every_text_comes_back():
    ours = Tokenizer.train(["low lower lowest"] * 10, 270)
    found = measure_tokenizer(ours, ["löwer 語", "a  b"])
    assert (found.n_unknown, found.n_same, found.differing) == (0, 2, None)
    inner = byte_level(special=["<|endoftext|>"])
    end = {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    theirs = PretrainedTokenizer.from_json(inner.to_str(), end)
    assert unknown_id(theirs) is None


def test_no_texts_give_zeros(wordpiece):
    found = measure_tokenizer(wordpiece, [])
    assert (found.fertility, found.bytes_per_token, found.unknown_rate, found.round_trip_rate) == (0, 0, 0, 0)
    assert found.to_dict()["n_texts"] == 0


def test_the_longest_tokens_come_first(wordpiece):
    assert [token for _, token in longest_tokens(wordpiece, 3)] == ["hello", "world", "##ive"]
    assert longest_tokens(wordpiece, 0) == []


def test_no_special_tokens_are_put_around_a_text(wordpiece):
    assert encode_plain(wordpiece, ["hello"]) == [[WORDS.index("hello")]]
