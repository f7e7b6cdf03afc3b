"""Tokenizers of pretrained models, compared with transformers."""

import json
import random
import time

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from glassformer.decoding.text_stream import TextStream
from glassformer.text import long_texts
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from text.tokenizer_folders import ANY_TEXT, TEXTS, WORDS, byte_level, write, write_byte_level


def test_tokenizer_json_encodes_as_hf(tmp_path):
    inner = byte_level(special=["<s>", "</s>", "<|user|>"])
    inner.enable_truncation(3)
    inner.enable_padding(length=20)
    inner.add_tokens([AddedToken("<tool>", special=False), AddedToken("llama", special=False), AddedToken("  ")])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    contents = json.loads(inner.to_str())
    contents["model"]["dropout"] = 0.9
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "added_tokens_decoder": {str(inner.get_vocab_size()): {"content": "<late>", "special": True}},
        "chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "{{ messages }}"}],
    }
    write(tmp_path, tokenizer__json=contents, tokenizer_config__json=config)
    write(tmp_path, generation_config__json={"eos_token_id": [1, 2], "pad_token_id": 2})
    tokenizer = PretrainedTokenizer.from_folder(tmp_path)
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    for text in [*TEXTS, "a  b llama llamas", "x" * 50]:
        assert (
            tokenizer.encode(text)
            == peer(text, padding=False, truncation=False, split_special_tokens=True)["input_ids"]
        )
    assert (tokenizer.begin, tokenizer.end, tokenizer.ends, tokenizer.pad) == (0, 1, (1, 2), 2)
    assert tokenizer.id_of("<late>") == inner.get_vocab_size() == tokenizer.vocab_size - 1
    assert tokenizer.chat_template == "{{ messages }}"
    write(tmp_path, chat_template__jinja="own file")
    assert PretrainedTokenizer.from_folder(tmp_path).chat_template == "own file"
    # Added words and spaces are text. A tag is a control token, even if it is not marked as special.
    assert tokenizer.id_of("llama") in tokenizer.encode("llama")
    assert tokenizer.id_of("<tool>") not in tokenizer.encode("<tool>")
    ids = [0, tokenizer.id_of("<tool>"), *tokenizer.encode_plain("a <b>"), 2, 1, 99_999, -1]
    assert tokenizer.decode(ids) == "<tool>a <b>"
    with_both = PretrainedTokenizer.from_json(inner.to_str(), {**config, "add_bos_token": False, "add_eos_token": True})
    assert with_both.encode("a") == [*with_both.encode_plain("a"), 1]
    assert with_both.encode_pair("a", "a")[1] == [0, 0, 1, 1]


def trapped(kind):
    """Return a tokenizer that would find control tokens in plain text, each kind for its own reason."""
    letters = dict.fromkeys("▁<>|/[]abcdeimnopstx_ ", -2.0)
    if kind == "unigram":
        pieces = {"<unk>": 0.0, "</s>": 0.0, "<pad>": 0.0, "<tool>": -1.0, **letters}
        inner = tokenizers.Tokenizer(models.Unigram(list(pieces.items()), 0))
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        special, soft = ["</s>", "<pad>", "<unk>"], ["<tool>"]
    elif kind == "words":
        vocab = {word: index for index, word in enumerate(["<unk>", "PAD", "<sep>", "a", "b"])}
        inner = tokenizers.Tokenizer(models.WordLevel(vocab, "<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special, soft = ["<unk>", "PAD", "<sep>"], []
    elif kind == "word pieces":
        vocab = {word: index for index, word in enumerate(["[UNK]", "sep", "s", "##e", "##p", "[", "]", "a"])}
        inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer()
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special, soft = ["[UNK]", "sep"], []
    elif kind == "merges":
        vocab = {piece: index for index, piece in enumerate([*letters, "<s", "<s>", "<|", "<|x", "<|x|", "<|x|>"])}
        merges = [("<", "s"), ("<s", ">"), ("<", "|"), ("<|", "x"), ("<|x", "|"), ("<|x|", ">")]
        inner = tokenizers.Tokenizer(models.BPE(vocab, merges))
        special, soft = ["<s>"], ["<|x|>"]
    else:
        vocab = {piece: index for index, piece in enumerate([*letters, "<s>", "[x]"])}
        inner = tokenizers.Tokenizer(models.BPE(vocab, [], ignore_merges=True))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special, soft = ["<s>"], ["[x]"]
    inner.add_special_tokens(special)
    inner.add_tokens([AddedToken(token, special=False) for token in soft])
    inner.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<late>", special=False)])
    return inner.to_str()


KINDS = ("unigram", "words", "word pieces", "merges", "ignored merges")
TRAPPED = {kind: PretrainedTokenizer.from_json(trapped(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_text_never_becomes_a_control_token(kind, data):
    tokenizer = TRAPPED[kind]
    control = {tokenizer.id_of(token) for token in tokenizer.control_tokens}
    pieces = st.one_of(st.sampled_from(tokenizer.control_tokens), st.sampled_from(" ▁<>|/[]sx\uff1c"), ANY_TEXT)
    text = "".join(data.draw(st.lists(pieces, max_size=6)))
    unknown = tokenizer.id_of("<unk>") or tokenizer.id_of("[UNK]") or 0
    assert len(control) > 3
    for ids in (tokenizer.encode(text), tokenizer.encode_plain(text), *tokenizer.encode_batch([text, text])):
        assert not control.difference({unknown}).intersection(ids)
    assert not control.difference({unknown}).intersection(tokenizer.encode_parts([(text, False)]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_alone_finds_control_tokens_in_text(kind):
    inner = tokenizers.Tokenizer.from_str(trapped(kind))
    inner.encode_special_tokens = True
    caught = [token for token in TRAPPED[kind].control_tokens if inner.token_to_id(token) in inner.encode(token).ids]
    assert caught


def test_parts_hold_control_tokens_only_where_they_are_trusted():
    tokenizer = TRAPPED["unigram"]
    start = tokenizer.id_of("<|im_start|>")
    assert tokenizer.encode_parts([("a<|im_start|>b", True)]).count(start) == 1
    assert start not in tokenizer.encode_parts([("a<|im_start|>b", False)])
    assert start not in tokenizer.encode_parts([("<|im_", True), ("start|>", False)])
    assert start not in tokenizer.encode_parts([("<|im_", True), ("start|>", True)])
    assert tokenizer.encode_parts([("ab", False), (" ab", True)]) == tokenizer.encode_plain("ab ab")


@pytest.mark.parametrize("kind", KINDS)
@given(text=ANY_TEXT)
def test_batches_and_long_texts_are_encoded_as_short_texts(kind, text):
    tokenizer = TRAPPED[kind]
    assert tokenizer.encode_batch([text, text]) == 2 * [tokenizer.encode(text)]
    assert tokenizer.encode_plain_batch([text]) == [tokenizer.encode_plain(text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "LONG_TEXT", 0)
        patch.setattr(long_texts, "PART", 1)
        long = tokenizer.encode(text), tokenizer.encode_plain(text)
    assert long == (tokenizer.encode(text), tokenizer.encode_plain(text))


def test_ids_stream_back_as_text(tmp_path):
    write_byte_level(tmp_path, ["<|endoftext|>"], config__json={"model_type": "gpt2"})
    tokenizer = PretrainedTokenizer.from_folder(tmp_path)
    text = "Hello 🦙 日本 café"
    stream = TextStream(tokenizer)
    assert "".join([stream.push(token) for token in tokenizer.encode(text)] + [stream.finish()]) == text


def test_every_token_has_its_source_text_and_span(tmp_path):
    text = "Hello, nap"
    write(tmp_path, vocab__txt=WORDS, config__json={"model_type": "bert"})
    encoded = PretrainedTokenizer.from_folder(tmp_path).offsets(text, "x")
    assert [text[start:end] for start, end in encoded.spans[1:5]] == ["Hello", ",", "na", "p"]
    assert encoded.sources == [None, 0, 0, 0, 0, None, 1, None]
    assert encoded.spans[0] == encoded.spans[-1] == (0, 0)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, r"holds no tokenizer: expected tokenizer\.json or one of source\.spm\+target\.spm\+vocab\.json, tokeniz"),
        ({"tokenizer__json": "{"}, r"tokenizer\.json is not JSON"),
        ({"tokenizer__json": "[]"}, r"tokenizer\.json holds a list: expected an object"),
        ({"tokenizer__json": {"model": 1}}, r"tokenizer\.json is not a tokenizer"),
        ({"vocab__txt": ["a", "b"]}, r"vocab\.txt lacks the special token '\[UNK\]'"),
        (
            {"vocab__txt": WORDS, "config__json": {"model_type": "mpnet"}},
            r"belongs to a 'mpnet' model: expected a tokeni",
        ),
        (
            {"vocab__txt": WORDS, "tokenizer_config__json": {"strip_accents": 3}},
            r"tokenizer_config\.json does not desc",
        ),
        ({"vocab__json": {"a": 0}, "merges__txt": ["a b"]}, r"merges\.txt does not fit vocab\.json"),
        (
            {"vocab__json": {"a": 0}, "merges__txt": ["#version", "a b c"]},
            r"merges\.txt:2: 'a b c': expected two tokens",
        ),
        ({"vocab__json": {"a": "0"}, "merges__txt": []}, r"vocab\.json is no vocabulary"),
        ({"vocab__json": {"a": 0, "b": 0}, "merges__txt": []}, r"vocab\.json gives one id to two tokens"),
        ({"tokenizer__model": "?"}, r"tokenizer\.model is not a SentencePiece model"),
    ],
)
def test_bad_folders_are_named_with_their_fault(tmp_path, files, why):
    with pytest.raises(ValueError, match=why):
        PretrainedTokenizer.from_folder(write(tmp_path, **files))


def test_an_id_that_the_vocabulary_contradicts_is_refused():
    contents = json.loads(trapped("unigram"))
    contents["added_tokens"][-1]["id"] = 500
    with pytest.raises(ValueError, match="gives '<late>' the id 500: by its vocabulary it is"):
        PretrainedTokenizer(contents)


SPOILT = (None, -1, 2**40, 1e308, "", [], {}, "x", True, "<s>", [1], {"a": 1}, "<0x41>", "$A")


def spoil(value, rng):
    """Replace or remove one random value anywhere inside `value`."""
    places = []

    def walk(value, path):
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key], (*path, key))

    walk(value, ())
    owner, key = rng.choice(places)
    if rng.random() < 0.3:
        del owner[key]
    else:
        owner[key] = rng.choice(SPOILT)
    return value


def test_corrupted_files_load_or_are_refused_quickly():
    rng = random.Random(0)
    inner = tokenizers.Tokenizer.from_str(trapped("merges"))
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 22)])
    wholes = [inner.to_str(), trapped("unigram"), trapped("word pieces")]
    config = {"bos_token": "<s>", "add_bos_token": True, "added_tokens_decoder": {"40": {"content": "<z>"}}}
    read = 0
    for _ in range(250):
        contents, settings = json.loads(rng.choice(wholes)), json.loads(json.dumps(config))
        contents, settings = (
            (spoil(contents, rng), settings) if rng.random() < 0.8 else (contents, spoil(settings, rng))
        )
        start = time.thread_time()
        try:
            tokenizer = PretrainedTokenizer.from_json(json.dumps(contents), settings)
            tokenizer.decode(tokenizer.encode("ab <s> é"))
            read += 1
        except ValueError:
            pass
        assert time.thread_time() - start < 1
    assert 20 < read < 230
