import json
import random
from itertools import pairwise

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from glassformer.text.gguf_tokenizer import (
    BYTE,
    CONTROL,
    MAX_ADDED,
    NORMAL,
    UNKNOWN,
    USER,
    byte_level_tokenizer,
    scored_tokenizer,
    tokenizer_from_metadata,
)

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TEXTS = ["", " ", "a cat", "  two  spaces", "tab\tand\nline", "naïve 🦙 日本", "it's 1234 x2!", "<s> </s> <0x41>"]


def byte_level(merges=(), special=("<|end|>",), **options):
    """A vocabulary of all bytes, the results of merges, and special tokens at the end."""
    tokens = [*BYTES, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *special]
    types = [NORMAL] * (len(tokens) - len(special)) + [CONTROL] * len(special)
    return byte_level_tokenizer(tokens, merges, types, **options)


def scored(pieces, **options):
    """A vocabulary of special tokens, all bytes, `▁` and letters, and pieces with scores."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(letters) + len(pieces))
    scores = [0.0] * 259 + [-1e9] * len(letters) + list(pieces.values())
    return scored_tokenizer(tokens, scores, types, **options)


def best_score_first(text, pieces):
    """SentencePiece's rule, as slowly as it can be said: join the neighbours of the best score, the leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [(-pieces[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces]
        if not joins:
            return symbols
        _, at = min(joins)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips_with_both_kinds(text):
    for tokenizer in (byte_level(["Ġ c", "Ġc a"]), scored({"▁c": -1.0, "▁ca": -2.0})):
        tokenizer.encode_special_tokens = True
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_merges_by_score_are_the_rule_of_sentencepiece():
    rng = random.Random(0)
    pieces = {}
    known = ["▁", *"abcd"]
    for _ in range(150):  # each made of two that are there already, with scores in no order
        made = rng.choice(known) + rng.choice(known)
        if made not in known and len(made) <= 8:
            known.append(made)
            pieces[made] = rng.uniform(-100, 0)
    tokenizer = scored(pieces)
    for _ in range(300):
        text = "".join(rng.choices("abcd ", k=rng.randrange(1, 40)))
        assert tokenizer.encode(text, add_special_tokens=False).tokens == best_score_first(text, pieces)


def test_a_character_without_a_piece_becomes_bytes():
    assert scored({}).encode("aé", add_special_tokens=False).tokens == ["▁", "a", "<0xC3>", "<0xA9>"]
    no_bytes = scored_tokenizer(["<unk>", "▁", "a"], [0.0, -1.0, -2.0], [UNKNOWN, NORMAL, NORMAL])
    assert no_bytes.encode("aéé").tokens == ["▁", "a", "<unk>"]


def test_the_space_before_a_text_can_be_left_out():
    assert scored({}, space_prefix=False).encode("a a").tokens == ["a", "▁", "a"]
    assert scored({}, space_prefix=False).decode([260, 259, 260]) == "a a"
    assert scored({}).encode("").ids == []


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["it", "'s", " x", "12345", "!?", "\n\n", " y"]),
        ("smollm", ["it", "'s", " x", "1", "2", "3", "4", "5", "!?", "\n\n", " y"]),
        ("qwen2", ["it", "'s", " x", "1", "2", "3", "4", "5", "!?\n\n", " y"]),
        ("llama-bpe", ["it", "'s", " x", "123", "45", "!?\n\n", " y"]),
        ("default", ["it", "'", "s", " x", "123", "45", "!?", "\n\n", " y"]),
    ],
)
def test_the_named_rule_cuts_words(pre, words):
    cut = byte_level(pre=pre).pre_tokenizer.pre_tokenize_str("it's x12345!?\n\n y")
    assert ["it's x12345!?\n\n y"[a:b] for _, (a, b) in cut] == words


def test_qwen_composes_accents_and_llama_3_looks_words_up_first():
    assert byte_level(pre="qwen2").encode("e\u0301").ids == byte_level(pre="qwen2").encode("é").ids
    assert byte_level(pre="gpt-2").encode("e\u0301").ids != byte_level(pre="gpt-2").encode("é").ids
    whole = ["a b", "b c", "ab c"]
    tokens = [*BYTES, "ab", "bc", "abc"]
    # "bcab" has no merge that makes it.
    assert byte_level_tokenizer([*tokens, "bcab"], whole, pre="llama-bpe").encode("bcab").tokens == ["bcab"]
    assert byte_level_tokenizer([*tokens, "bcab"], whole, pre="gpt-2").encode("bcab").tokens == ["bc", "ab"]


@pytest.mark.parametrize("build", [byte_level, lambda **options: byte_level(special=("<s>", "</s>"), **options)])
def test_control_tokens_are_found_in_text_unless_asked_not_to_be(build):
    tokenizer = tokenizers.Tokenizer.from_str(build().to_str())
    name = tokenizer.id_to_token(len(BYTES))
    assert tokenizer.encode(f"a{name}b").ids == [*tokenizer.encode("a").ids, len(BYTES), *tokenizer.encode("b").ids]
    assert tokenizer.decode([len(BYTES)]) == ""
    tokenizer.encode_special_tokens = True
    assert len(BYTES) not in tokenizer.encode(f"a{name}b").ids


def test_user_tokens_are_found_and_stay_text():
    tokenizer = byte_level_tokenizer([*BYTES, "<think>"], [], [NORMAL] * 256 + [USER])
    assert tokenizer.encode("<think>").ids == [256]
    assert tokenizer.decode([256], skip_special_tokens=True) == "<think>"


def test_begin_and_end_stand_around_a_text_whatever_their_names():
    tokenizer = byte_level(special=("$A:1 x", "<end>"), begin=256, end=257)
    assert tokenizer.encode("a").ids == [256, *tokenizer.encode("a", add_special_tokens=False).ids, 257]
    assert tokenizer.encode("", "").ids == [256, 257, 256, 257]


def metadata(**changes):
    """What a GGUF file says about a byte-level vocabulary; None takes a key away."""
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*BYTES, "<|begin|>", "<|end|>"],
        "token_type": [NORMAL] * 256 + [CONTROL] * 2,
        "merges": [],
        "bos_token_id": 256,
        "eos_token_id": 257,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def test_metadata_becomes_the_two_files_of_hf():
    text, config = tokenizer_from_metadata(metadata(padding_token_id=257) | {"tokenizer.chat_template": "{{ x }}"})
    assert json.loads(text)["model"]["type"] == "BPE"
    assert config == {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "chat_template": "{{ x }}",
    }
    assert tokenizer_from_metadata({}) == (None, {})


def test_begin_token_follows_the_metadata_or_the_kind():
    def first(**changes):
        text, config = tokenizer_from_metadata(metadata(**changes))
        begins = tokenizers.Tokenizer.from_str(text).encode("a").ids[0] == 256
        assert config["add_bos_token"] == begins
        return begins

    assert first(add_bos_token=True)
    assert first(pre="llama-bpe")
    assert not first(pre="llama-bpe", add_bos_token=False)
    assert not first()
    assert first(model="llama", scores=[0.0] * 258)


def test_files_without_a_pre_tokenization_rule_use_their_architectures():
    def words(architecture):
        text, _ = tokenizer_from_metadata(metadata(pre=None) | {"general.architecture": architecture})
        return len(tokenizers.Tokenizer.from_str(text).pre_tokenizer.pre_tokenize_str("123"))

    assert (words("llama"), words("qwen2")) == (1, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model='bert': expected gpt2 or llama"),
        ({"model": 3}, "tokenizer.ggml.model='3': expected a name"),
        ({"pre": "mystery"}, "tokenizer.ggml.pre='mystery': expected one of gpt-2, smollm"),
        ({"tokens": None}, "tokenizer.ggml.tokens=None: expected a list of str"),
        ({"tokens": [1, 2]}, "expected a list of str"),
        ({"tokens": ["a"] * 258}, "the token 'a' has the ids 0 and 1"),
        ({"token_type": [1]}, "1 token types: expected one for each of the 258 tokens"),
        ({"merges": ["ab"]}, "the merge 'ab': expected two tokens that make a third"),
        ({"merges": ["a b"]}, "the merge 'a b': expected two tokens that make a third"),
        ({"bos_token_id": 258}, "tokenizer.ggml.bos_token_id=258: expected an id below 258"),
        ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id='True': expected a whole number"),
        ({"model": "llama"}, "tokenizer.ggml.scores=None: expected a list of float"),
        ({"model": "llama", "scores": [0.0]}, "1 scores: expected one for each of the 258 tokens"),
        ({"model": "llama", "scores": [float("nan")] * 258}, "has the score nan: expected a number"),
    ],
)
def test_invalid_tokenizer_data_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_metadata(metadata(**changes))


def test_hostile_vocabularies_are_refused_at_once():
    with pytest.raises(ValueError, match="200 characters: expected at most 128"):
        scored_tokenizer(["a" * 200], [0.0])
    runs = [letter * count for letter in "abcdefgh" for count in range(1, 129)]
    with pytest.raises(ValueError, match="merges: expected about two a piece"):
        scored_tokenizer(runs, [0.0] * len(runs))
    names = [str(index) for index in range(MAX_ADDED + 1)]
    with pytest.raises(ValueError, match="65537 control and user-defined tokens"):
        byte_level_tokenizer(names, [], [CONTROL] * len(names))
    with pytest.raises(ValueError, match="600000 tokens: expected at most"):
        byte_level_tokenizer(["a"] * 600_000, [])
