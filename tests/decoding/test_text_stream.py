"""Text as it comes: whole characters, whatever the tokens split; and stop strings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding import GenerationConfig, TextStream, generate
from glassformer.models import preset
from glassformer.text import Tokenizer
from oracle import random_model

TOKENIZER = Tokenizer.train(["the cat sat on the mat", "größer als Öl", "日本語 テキスト"] * 20, 300)


@given(st.text(max_size=40))
def test_the_pieces_are_the_text_and_no_piece_splits_a_character(text):
    ids = TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(token) for token in ids]
    pieces.append(stream.finish())
    assert "".join(pieces) == TOKENIZER.decode(ids)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


@given(ids=st.lists(st.integers(4, TOKENIZER.vocab_size - 1), max_size=30))
def test_any_tokens_at_all_give_their_text(ids):
    stream = TextStream(TOKENIZER)
    assert "".join([*(stream.push(token) for token in ids), stream.finish()]) == TOKENIZER.decode(ids)


@given(
    text=st.text(alphabet="abc ö", max_size=30),
    stops=st.lists(st.text(alphabet="abc ö", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_is_cut_before_the_first_stop_string_and_nothing_of_it_is_told(text, stops):
    ids = TOKENIZER.encode(text)
    stream, told = TextStream(TOKENIZER, stops), ""
    for token in ids:
        told += stream.push(token)
        if stream.is_stopped:
            break
    told += stream.finish()
    whole = TOKENIZER.decode(ids)
    places = [whole.find(stop) for stop in stops if stop in whole]
    assert stream.is_stopped == bool(places)
    # Where two stop strings overlap, the one that is complete first decides.
    assert whole.startswith(told)
    if places:
        assert not any(stop in told for stop in stops)
        assert any(whole[len(told) :].startswith(stop) for stop in stops)
    else:
        assert told == whole


def test_generation_ends_at_a_stop_string():
    model = random_model(preset("tiny-gpt2", vocab_size=TOKENIZER.vocab_size, max_len=64))
    config = GenerationConfig(max_new_tokens=30, prefix=tuple(TOKENIZER.encode("the cat sat on the mat")))
    (plain,) = generate(model, [[50, 60]], config, end=2, tokenizer=TOKENIZER)[0]
    assert plain.text == TOKENIZER.decode(plain.tokens)
    assert plain.text.startswith("the cat sat on the mat")
    (cut,) = generate(model, [[50, 60]], replace(config, stop_strings=("on", "at s")), end=2, tokenizer=TOKENIZER)[0]
    assert cut.text == "the c"
    assert cut.reason == "stop"
    assert cut.tokens == plain.tokens[: len(cut.tokens)]
    with pytest.raises(ValueError, match="stop_strings without a tokenizer"):
        generate(model, [[50, 60]], replace(config, stop_strings=("on",)), end=2)
