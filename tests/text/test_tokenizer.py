import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import Tokenizer, TokenizerConfig, long_texts
from glassformer.text.tokenizer import SPECIAL, UNKNOWN

TEXTS = ["the cat sat on the mat", "der Hund läuft über die Straße", "numbers 123 and </s> too", "привет мир"] * 20
TOKENIZERS = {kind: Tokenizer.train(TEXTS, 320, TokenizerConfig(kind=kind)) for kind in ("bpe", "unigram")}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(max_size=40).map(lambda text: text.replace("\x00", "")))
def test_any_text_round_trips_and_never_becomes_a_special_token(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert all(index >= len(SPECIAL) for index in ids)
    assert tokenizer.decode(ids).strip() == text.strip()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", [*SPECIAL, "a </s> b", "<s><s>", " <pad>"])
def test_special_tokens_in_text_are_spelled_out(kind, text):
    for tokenizer in (TOKENIZERS[kind], Tokenizer.from_json(TOKENIZERS[kind].to_json())):
        assert all(index >= len(SPECIAL) for index in tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)).strip() == text.strip()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_long_text_is_encoded_as_a_short_one(kind, monkeypatch):
    tokenizer = TOKENIZERS[kind]
    text = " ".join([*TEXTS, *SPECIAL, "\N{SNOWMAN}"]) * 3
    short = tokenizer.encode(text)
    monkeypatch.setattr(long_texts, "LONG_TEXT", 1)
    monkeypatch.setattr(long_texts, "PART", 3)
    assert tokenizer.encode(text) == short
    assert tokenizer.encode_batch([text, "", text]) == [short, [], short]


def test_special_ids_are_left_out_of_decoded_text():
    tokenizer = TOKENIZERS["bpe"]
    assert tokenizer.decode([1, *tokenizer.encode("the cat"), 2, 0, 0]) == "the cat"
    assert tokenizer.tokens([1, 2])[:2] == ["<s>", "</s>"]


def test_it_is_saved_and_loaded_and_trained_alike(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZERS["bpe"].to_json(), encoding="utf-8")
    loaded = Tokenizer.load(path)
    assert loaded.encode_batch(TEXTS[:4]) == TOKENIZERS["bpe"].encode_batch(TEXTS[:4])
    assert Tokenizer.train(TEXTS, 320).to_json() == TOKENIZERS["bpe"].to_json()
    assert loaded.vocab_size <= 320


def test_lower_casing_is_a_choice():
    tokenizer = Tokenizer.train(TEXTS, 320, TokenizerConfig(lowercase=True))
    assert tokenizer.decode(tokenizer.encode("The CAT")) == "the cat"


@pytest.mark.parametrize("kind", ["characters", "bpe"])
@pytest.mark.parametrize("text", ["ΟΔΟΣ", "İ", "\u212aelvin", "Straße"])
def test_no_character_of_a_lower_cased_text_is_unknown(kind, text):
    tokenizer = Tokenizer.train([text], 320, TokenizerConfig(kind=kind, lowercase=True, prefix_space=False))
    assert UNKNOWN not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)


def test_bad_files_and_sizes_are_named(tmp_path):
    with pytest.raises(ValueError, match="vocab_size=100: expected at least 260"):
        Tokenizer.train(TEXTS, 100)
    path = tmp_path / "broken.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.json is not a tokenizer"):
        Tokenizer.load(path)
    path.write_bytes(b'{"version": "\xff"}')
    with pytest.raises(ValueError, match=r"broken\.json is not UTF-8 text"):
        Tokenizer.load(path)
    path.write_text(json.dumps({"version": "x" * 100_000}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.json is not a tokenizer") as caught:
        Tokenizer.load(path)
    assert len(str(caught.value)) < 1000
    contents = json.loads(TOKENIZERS["bpe"].to_json())
    contents["model"]["vocab"]["a"] = 2**31
    with pytest.raises(ValueError, match="'a' at 2147483648: expected ids below"):
        Tokenizer.from_json(json.dumps(contents))
    contents = json.loads(TOKENIZERS["bpe"].to_json())
    contents["added_tokens"] = []
    del contents["model"]["vocab"]["<pad>"]
    with pytest.raises(ValueError, match="<pad> at None: expected id 0"):
        Tokenizer.from_json(json.dumps(contents))


EXACT = {
    kind: Tokenizer.train(TEXTS, 320, TokenizerConfig(kind=kind, prefix_space=False))
    for kind in ("bpe", "unigram", "bytes")
}


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text(max_size=40) | st.text(" \t\n\r ab<s>/", max_size=40))
def test_without_prefix_space_every_text_round_trips_exactly(kind, text):
    for tokenizer in (EXACT[kind], Tokenizer.from_json(EXACT[kind].to_json())):
        ids = tokenizer.encode(text)
        assert all(index >= len(SPECIAL) for index in ids)
        assert tokenizer.decode(ids) == text


def test_bytes_are_one_token_each():
    assert EXACT["bytes"].vocab_size == 260
    assert len(EXACT["bytes"].encode("aß€")) == len("aß€".encode())


@given(text=st.text(max_size=40))
def test_character_tokenizer_round_trips_known_characters(text):
    alphabet = "the catsonm</>\n"
    tokenizer = Tokenizer.train([alphabet], 1000, TokenizerConfig(kind="characters"))
    assert tokenizer.vocab_size == len(SPECIAL) + len(set(alphabet))
    kept = "".join(character for character in text if character in alphabet)
    for text in (kept, f"{kept}</s>\n", "<s>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(index >= len(SPECIAL) for index in ids)
        # The table is the library's own rule.
        assert ids == [token for read in tokenizer.offsets_batch([(text, None)]) for token in read.ids][:-1]
    assert tokenizer.encode("tZ") == [*tokenizer.encode("t"), 3]


def test_too_many_characters_keep_the_commonest():
    tokenizer = Tokenizer.train(["abbccc"], 6, TokenizerConfig(kind="characters"))
    assert tokenizer.encode("abc") == [3, 4, 5]


def test_indentation_survives_in_few_tokens():
    code = "def f(x):\n    if x:\n        return [\n            x\n        ]\n\n\tprint(x)\n"
    tokenizer = Tokenizer.train([code] * 20, 320, TokenizerConfig(prefix_space=False))
    assert tokenizer.decode(tokenizer.encode(code)) == code
    assert len(tokenizer.encode("\n" + " " * 7 + " return")) < 8


def test_more_special_tokens_are_never_text():
    names = ("<before>", "<after>")
    tokenizer = Tokenizer.train([*TEXTS, *names * 50], 400, TokenizerConfig(prefix_space=False), more_special=names)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.special_id("<after>") == 5
    assert min(again.encode("a<before>b<after>")) > 5
    assert again.decode([4, *again.encode("<before>"), 5]) == "<before>"
    with pytest.raises(ValueError, match="no special token '<other>'"):
        again.special_id("<other>")
