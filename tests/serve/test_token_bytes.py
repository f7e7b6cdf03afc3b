from hypothesis import given
from hypothesis import strategies as st

from glassformer.serve.token_bytes import TokenBytes
from glassformer.text import Tokenizer, TokenizerConfig
from text.chat_tokenizer import TOKENIZER

OWN = Tokenizer.train(["the old cat sees the big saw"], 300, TokenizerConfig(prefix_space=False))
CHARACTERS = Tokenizer.train(["naïve 😀"], 40, TokenizerConfig(kind="characters"))
BYTES = {tokenizer: TokenBytes(tokenizer) for tokenizer in (OWN, TOKENIZER, CHARACTERS)}


@given(text=st.text(max_size=30))
def test_the_bytes_of_the_tokens_of_a_text_are_the_bytes_of_the_text(text):
    assert b"".join(map(BYTES[OWN].of, OWN.encode(text))) == text.encode()
    ids = TOKENIZER.encode_plain(text)
    assert b"".join(map(BYTES[TOKENIZER].of, ids)) == text.encode()


def test_characters_are_their_own_bytes():
    assert b"".join(map(BYTES[CHARACTERS].of, CHARACTERS.encode("naïve 😀"))) == "naïve 😀".encode()


def test_special_tokens_have_names_and_no_bytes():
    assert BYTES[OWN].of(2) == b""
    assert BYTES[OWN].name(2) == "</s>"
    assert BYTES[OWN].of(99_999) == b""
    assert BYTES[OWN].name(99_999) == "<99999>"


def test_a_control_token_that_is_shown_is_text():
    index = TOKENIZER.id_of("<think>")
    assert BYTES[TOKENIZER].of(index) == b"<think>"
