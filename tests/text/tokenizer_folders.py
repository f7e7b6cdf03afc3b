"""Folders of small tokenizers, and their comparison with transformers."""

import json

import tokenizers
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

TEXTS = [
    "Hello World",
    " a café, naïve!",
    "it's 12345 €",
    "日本 x 語",
    "tab\tnew\nline  two",
    "🦙🦙 llama",
    "",
    "<s> </s>",
]


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "hello",
    "world",
    "caf",
    "##e",
    "##é",
    "café",
    "na",
    "##ive",
    ",",
]


WORDS += ["!", "'", "日", "本", "a", "it", "s", "1", "##2", "Hello", "World", "[", "]", "sep", "##p", "se", "x"]


ANY_TEXT = st.text(max_size=30).map(lambda text: text.replace("\x00", ""))


def write(folder, **files):
    """Write files into a folder: objects as JSON, lists as lines. `__` in a name stands for the dot."""
    folder.mkdir(exist_ok=True)
    for name, contents in files.items():
        if not isinstance(contents, str):
            contents = "\n".join(contents) + "\n" if isinstance(contents, list) else json.dumps(contents)
        (folder / name.replace("__", ".")).write_text(contents, encoding="utf-8")
    return folder


def byte_level(size=400, special=()):
    """Train a byte-level BPE tokenizer on TEXTS."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    inner.train_from_iterator(TEXTS * 4, trainer)
    return inner


def write_byte_level(folder, special, **files):
    """Write `byte_level` as `vocab.json` and `merges.txt`. The files do not mark the special tokens as special."""
    model = json.loads(byte_level(special=special).to_str())["model"]
    merges = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    return write(folder, vocab__json=model["vocab"], merges__txt=merges, **files)


def assert_same(tokenizer, peer, text, other="a b"):
    """Assert that both encode and decode a text and a pair alike, also if the text contains control tokens."""
    ids = tokenizer.encode(text)
    assert ids == peer(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.encode_plain(text) == peer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True)
    pair = peer(text, other, return_token_type_ids=True, return_offsets_mapping=True, split_special_tokens=True)
    found = tokenizer.offsets(text, other)
    assert (found.ids, found.token_types) == (pair["input_ids"], pair["token_type_ids"])
    assert found.spans == [tuple(span) for span in pair["offset_mapping"]]
    assert tokenizer.encode_pair(text, other) == (found.ids, found.token_types)
