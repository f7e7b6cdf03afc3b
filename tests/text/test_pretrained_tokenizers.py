import json
import random
import time

import pytest
import tokenizers
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.decoding.text_stream import TextStream
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.secret_names import is_control
from text.spm_files import MERGES, SPECIAL, UNIGRAM, file_of

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
    """Write each file, its name with `__` for the dot: objects as JSON, lists as lines."""
    for name, contents in files.items():
        if not isinstance(contents, str):
            contents = "\n".join(contents) + "\n" if isinstance(contents, list) else json.dumps(contents)
        (folder / name.replace("__", ".")).write_text(contents, encoding="utf-8")
    return folder


def byte_level(size=400, special=()):
    """A byte-level BPE tokenizer learned from the texts."""
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
    """The same as `vocab.json` and `merges.txt`, with these special tokens in the vocabulary but not marked."""
    model = json.loads(byte_level(special=special).to_str())["model"]
    merges = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    return write(folder, vocab__json=model["vocab"], merges__txt=merges, **files)


def assert_same(tokenizer, peer, text, other="a b"):
    """Our tokenizer and HF's agree on a text, a pair and the way back, whatever special tokens are typed."""
    ids = tokenizer.encode(text)
    assert ids == peer(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.encode_plain(text) == peer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True)
    pair = peer(text, other, return_token_type_ids=True, return_offsets_mapping=True, split_special_tokens=True)
    found = tokenizer.offsets(text, other)
    assert (found.ids, found.token_types) == (pair["input_ids"], pair["token_type_ids"])
    assert found.spans == [tuple(span) for span in pair["offset_mapping"]]
    assert tokenizer.encode_pair(text, other) == (found.ids, found.token_types)


BERT_CONFIGS = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
]


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """Each config's folder and HF's tokenizer for it."""
    folders = [tmp_path_factory.mktemp("bert") for _ in BERT_CONFIGS]
    made = []
    for folder, config in zip(folders, BERT_CONFIGS, strict=True):
        config = {"tokenizer_class": "BertTokenizer", **config}
        write(folder, vocab__txt=WORDS, tokenizer_config__json=config, config__json={"model_type": "bert"})
        made.append((PretrainedTokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)))
    return made


@given(text=st.one_of(ANY_TEXT, st.text(alphabet="Helo WORLD café,日本[SEP]1", max_size=20)))
@example(text="[CLS] hello [SEP] [MASK]")
def test_vocab_txt_encodes_as_hf(berts, text):
    for tokenizer, peer in berts:
        assert_same(tokenizer, peer, text)


def test_berts_special_tokens_have_their_roles(berts):
    tokenizer, peer = berts[0]
    assert tokenizer.vocab_size == len(WORDS) == len(peer)
    assert (tokenizer.pad, tokenizer.unknown, tokenizer.classifier, tokenizer.separator, tokenizer.mask) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert (tokenizer.begin, tokenizer.end, tokenizer.ends) == (None, None, ())
    assert tokenizer.tokens(tokenizer.encode("nap")) == ["[CLS]", "na", "##p", "[SEP]"]
    assert tokenizer.encode_batch(["hello", "x"]) == [[2, 5, 3], [2, len(WORDS) - 1, 3]]


MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "special": True, "normalized": False}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BYTE_LEVEL = {
    "gpt2": ({"tokenizer_class": "GPT2Tokenizer"}, {"model_type": "gpt2"}, ["<|endoftext|>"]),
    "gpt2 with a begin": ({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}, {}, ["<|endoftext|>"]),
    "roberta": (
        {"tokenizer_class": "RobertaTokenizer", "mask_token": MASK},
        {},
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    ),
    "bart": ({"add_prefix_space": True}, {"model_type": "bart"}, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
}


@pytest.fixture(scope="module")
def byte_levels(tmp_path_factory):
    made = {}
    for name, (config, model, special) in BYTE_LEVEL.items():
        folder = write_byte_level(
            tmp_path_factory.mktemp("bytes"), special, tokenizer_config__json=config, config__json=model
        )
        made[name] = PretrainedTokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    return made


@given(text=ANY_TEXT)
@example(text="<|endoftext|> <mask> <s></s>")
def test_vocab_json_and_merges_encode_as_hf(byte_levels, text):
    for name, (tokenizer, peer) in byte_levels.items():
        assert_same(tokenizer, peer, text)
        if name != "bart":
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_level_roles_and_the_mask_that_takes_a_space_along(byte_levels):
    tokenizer, _ = byte_levels["gpt2"]
    assert tokenizer.begin == tokenizer.end == tokenizer.id_of("<|endoftext|>") == 0
    assert tokenizer.pad is None
    tokenizer, peer = byte_levels["roberta"]
    assert (tokenizer.begin, tokenizer.pad, tokenizer.end, tokenizer.unknown, tokenizer.mask) == (0, 1, 2, 3, 4)
    parts = [("Hello ", False), ("<mask>", True), (", naïve!", False)]
    assert tokenizer.encode_parts(parts) == peer.encode("Hello <mask>, naïve!", add_special_tokens=False)
    assert tokenizer.encode_parts([("<mask>", False)]) == tokenizer.encode_plain("<mask>")


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
    # Words and spaces that were added are text; a tag is not, though nobody marked it as special.
    assert tokenizer.id_of("llama") in tokenizer.encode("llama")
    assert tokenizer.id_of("<tool>") not in tokenizer.encode("<tool>")
    ids = [0, tokenizer.id_of("<tool>"), *tokenizer.encode_plain("a <b>"), 2, 1, 99_999, -1]
    assert tokenizer.decode(ids) == "<tool>a <b>"
    with_both = PretrainedTokenizer.from_json(inner.to_str(), {**config, "add_bos_token": False, "add_eos_token": True})
    assert with_both.encode("a") == [*with_both.encode_plain("a"), 1]
    assert with_both.encode_pair("a", "a")[1] == [0, 0, 1, 1]


def trapped(kind):
    """A tokenizer that would find control tokens in a text by itself, each in its own way."""
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
def test_the_library_alone_would_have_been_caught(kind):
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


def test_which_added_tokens_are_control_tokens():
    for token in ("<x>", "PAD", "</s>"):
        assert is_control(token, special=True)
    for token in ("<tool_call>", "[INST]", "{{x}}", "▁<x>", "<\n>"):
        assert is_control(token, special=False)
    for token in ("<table>", "</h1>", "covid", "a<b>c", "<>", "\n\n"):
        assert not is_control(token, special=False)
    for token in ("   ", "!", "<0x0A>"):
        assert not is_control(token, special=True)


SPIECE = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2)]
SPIECE += [(piece, -1.0 - 0.013 * at, 1) for at, piece in enumerate(["▁", *"abcdehilmnopst", "▁the", "he", "▁a", "at"])]


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = write(
        tmp_path_factory.mktemp("t5"), tokenizer_config__json={"extra_ids": 4}, config__json={"model_type": "t5"}
    )
    (folder / "spiece.model").write_bytes(file_of(SPIECE, UNIGRAM, trainer={40: 2, 41: -1, 42: 1, 43: 0}))
    peer = transformers.T5Tokenizer(
        vocab=[(text, score) for text, score, _ in SPIECE] + [(f"<extra_id_{index}>", 0.0) for index in (3, 2, 1, 0)],
        extra_ids=4,
    )
    return PretrainedTokenizer.from_folder(folder), peer


@given(text=st.text(alphabet="the cat is a lamp dot", max_size=25))
def test_spiece_model_segments_as_hf(t5, text):
    tokenizer, peer = t5
    assert tokenizer.encode(text) == peer(text)["input_ids"]
    assert tokenizer.decode(tokenizer.encode(text)) == peer.decode(peer(text)["input_ids"], skip_special_tokens=True)


def test_t5_sentinels_count_down(t5):
    tokenizer, peer = t5
    assert [tokenizer.id_of(f"<extra_id_{index}>") for index in (0, 3)] == [len(peer) - 1, len(peer) - 4]
    text = "the <extra_id_0> a"
    assert tokenizer.encode_parts([(text, True)]) == peer.encode(text, add_special_tokens=False)
    assert len(tokenizer.encode(text)) > len(tokenizer.encode_parts([(text, True)])) + 1
    assert (tokenizer.pad, tokenizer.end, tokenizer.unknown, tokenizer.begin) == (0, 1, 2, None)


def test_a_llama_reads_its_begin_first_and_may_put_a_space_after_special_tokens(tmp_path):
    pieces = [
        *SPECIAL,
        *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
        ("▁", -1.0, 1),
        ("a", -2.0, 1),
        ("▁a", -3.0, 1),
    ]
    (tmp_path / "tokenizer.model").write_bytes(file_of(pieces, MERGES, rules={4: 0}, trainer={35: 1}))
    tokenizer = PretrainedTokenizer.from_folder(tmp_path)
    assert (tokenizer.begin, tokenizer.end, tokenizer.unknown) == (1, 2, 0)
    assert tokenizer.encode("a") == [1, 261]
    assert tokenizer.encode_parts([("<s>", True), ("a", False)]) == [1, 261]
    assert tokenizer.decode(tokenizer.encode("a é <s>")) == "a é <s>"
    write(tmp_path, tokenizer_config__json={"legacy": False, "add_bos_token": False, "add_eos_token": True})
    write(tmp_path, added_tokens__json={"<more>": 262})
    tokenizer = PretrainedTokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a") == [261, 2]
    assert tokenizer.encode_parts([("<s>", True), ("a", False)]) == [1, 260]
    assert tokenizer.encode_parts([("<more>", True)]) == [262]


def test_marian_segments_with_its_spm_files_and_takes_ids_from_vocab_json(tmp_path):
    shared = [("</s>", 0.0, 3), ("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -1.1, 1), ("b", -1.2, 1)]
    (tmp_path / "source.spm").write_bytes(file_of([*shared, ("▁ab", -0.5, 1), ("▁aa", -0.4, 1)], UNIGRAM))
    (tmp_path / "target.spm").write_bytes(file_of([*shared, ("▁ba", -0.5, 1)], UNIGRAM))
    tokens = ["</s>", "<unk>", "▁ab", "▁ba", "a", "b", "▁", ">>de<<", "<pad>"]
    write(tmp_path, vocab__json={token: index for index, token in enumerate(tokens)})
    write(tmp_path, config__json={"model_type": "marian"}, tokenizer_config__json={"source_lang": "en"})
    source = PretrainedTokenizer.from_folder(tmp_path)
    target = PretrainedTokenizer.from_folder(tmp_path, target=True)
    assert (source.vocab_size, source.pad, source.end, source.unknown) == (9, 8, 0, 1)
    assert source.encode("ab ba") == [2, 6, 5, 4, 0]
    assert target.encode("ab ba") == [6, 4, 5, 3, 0]
    assert source.encode("aa x") == [1, 6, 1, 0]  # a piece that only the file for cutting has, and an unknown letter
    assert source.decode([2, 3, 0]) == "ab ba"
    assert source.encode_parts([(">>de<<", True), ("ab", False)]) == [7, 2]
    assert 7 not in source.encode(">>de<< ab")


def test_ids_stream_back_as_text(byte_levels):
    tokenizer, _ = byte_levels["gpt2"]
    text = "Hello 🦙 日本 café"
    stream = TextStream(tokenizer)
    assert "".join([stream.push(token) for token in tokenizer.encode(text)] + [stream.finish()]) == text


def test_every_token_has_its_source_text_and_span(berts):
    text = "Hello, nap"
    encoded = berts[0][0].offsets(text, "x")
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
    """One value anywhere inside put out of its place, or removed."""
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
