"""Incremental decoding: pieces are whole characters, and text ends before a stop string."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding import Engine, GenerationConfig, TextStream, generate
from glassformer.models import preset
from glassformer.text import Tokenizer
from oracle import random_model

TOKENIZER = Tokenizer.train(["the cat sat on the mat", "größer als Öl", "日本語 テキスト"] * 20, 300)


@given(st.text(max_size=40))
def test_pieces_join_to_the_text_and_never_split_a_character(text):
    ids = TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(token) for token in ids]
    pieces.append(stream.finish())
    assert "".join(pieces) == TOKENIZER.decode(ids)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


@given(ids=st.lists(st.integers(4, TOKENIZER.vocab_size - 1), max_size=30))
def test_pieces_of_arbitrary_tokens_join_to_their_text(ids):
    stream = TextStream(TOKENIZER)
    assert "".join([*(stream.push(token) for token in ids), stream.finish()]) == TOKENIZER.decode(ids)


@given(groups=st.lists(st.lists(st.integers(4, TOKENIZER.vocab_size - 1), max_size=6), max_size=8))
def test_tokens_that_are_added_together_give_the_same_text_as_one_by_one(groups):
    together, alone = TextStream(TOKENIZER), TextStream(TOKENIZER)
    for group in groups:
        whole = together.push(*group)
        assert whole == "".join(map(alone.push, group))
        assert not whole.endswith("\N{REPLACEMENT CHARACTER}")
    assert together.finish() == alone.finish()


@given(
    text=st.text(alphabet="abc ö", max_size=30),
    stops=st.lists(st.text(alphabet="abc ö", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_ends_before_the_first_stop_string(text, stops):
    ids = TOKENIZER.encode(text)
    stream, emitted = TextStream(TOKENIZER, stops), ""
    for token in ids:
        emitted += stream.push(token)
        if stream.is_stopped:
            break
    emitted += stream.finish()
    whole = TOKENIZER.decode(ids)
    places = [whole.find(stop) for stop in stops if stop in whole]
    assert stream.is_stopped == bool(places)
    # Of two overlapping stop strings, the one that is complete first ends the text.
    assert whole.startswith(emitted)
    if places:
        assert not any(stop in emitted for stop in stops)
        assert any(whole[len(emitted) :].startswith(stop) for stop in stops)
    else:
        assert emitted == whole


def test_generation_ends_at_a_stop_string():
    model = random_model(preset("tiny-gpt2", vocab_size=TOKENIZER.vocab_size, max_len=64))
    config = GenerationConfig(max_new_tokens=30, prefix=tuple(TOKENIZER.encode("the cat sat on the mat")))
    (plain,) = generate(model, [[50, 60]], config, end=2, tokenizer=TOKENIZER)[0]
    assert plain.text == " " + TOKENIZER.decode(plain.tokens)  # it continues a text
    assert plain.text.startswith(" the cat sat on the mat")
    (cut,) = generate(model, [[50, 60]], replace(config, stop_strings=("on", "at s")), end=2, tokenizer=TOKENIZER)[0]
    assert cut.text == " the c"
    assert cut.reason == "stop"
    assert cut.tokens == plain.tokens[: len(cut.tokens)]
    with pytest.raises(ValueError, match="stop_strings without a tokenizer"):
        generate(model, [[50, 60]], replace(config, stop_strings=("on",)), end=2)


@pytest.mark.parametrize("search", [{}, {"num_beams": 2}, {"stop_strings": ("zzz",)}, {"do_sample": True, "seed": 1}])
def test_a_text_continues_its_prompt_with_a_space(search):
    """The tokenizer leaves out the space before a text. A continuation needs it."""
    model = random_model(preset("tiny-gpt2", vocab_size=TOKENIZER.vocab_size, max_len=64))
    prompt = TOKENIZER.encode("the cat")
    config = GenerationConfig(max_new_tokens=6, prefix=tuple(TOKENIZER.encode("sat")), **search)
    (found,) = generate(model, [prompt], config, end=-1, tokenizer=TOKENIZER)[0]
    assert found.text.startswith(" sat")
    assert TOKENIZER.decode([*prompt, *found.tokens]) == "the cat" + found.text
    engine = Engine(model, end=-1, tokenizer=TOKENIZER)
    request = engine.submit(prompt, config)
    engine.run()
    assert request.texts[0].text == found.text
    stream = TextStream(TOKENIZER, before=prompt[-1:])
    assert "".join(map(stream.push, found.tokens)) + stream.finish() == found.text


@pytest.mark.parametrize("n_beams", [1, 2])
def test_the_text_of_an_encoder_decoder_is_a_text_of_its_own(n_beams):
    model = random_model(preset("tiny-marian", vocab_size=TOKENIZER.vocab_size, max_len=64))
    config = GenerationConfig(max_new_tokens=4, prefix=tuple(TOKENIZER.encode("the cat")), num_beams=n_beams)
    (found,) = generate(model, [[5, 6]], config, begin=1, end=-1, tokenizer=TOKENIZER)[0]
    assert found.text.startswith("the cat")
    assert found.text == TOKENIZER.decode(found.tokens)
