"""Tokenizers from `vocab.txt`, `vocab.json` and SentencePiece files, compared with transformers."""

import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.text.classic_files import read_classic
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from text.spm_files import MERGES, SPECIAL, UNIGRAM, file_of
from text.tokenizer_folders import ANY_TEXT, TEXTS, WORDS, assert_same, write, write_byte_level

BERT_CONFIGS = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
]


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """Return our tokenizer and that of transformers for each config."""
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


@pytest.mark.parametrize("named", ["BertTokenizer", None])
def test_vocab_txt_beside_albert_is_wordpiece(named, tmp_path):
    peer_config = {"tokenizer_class": "BertTokenizer"}
    peers = write(tmp_path / "peer", vocab__txt=WORDS, tokenizer_config__json=peer_config, config__json={})
    config = {"tokenizer_class": named} if named else {}
    folder = write(
        tmp_path / "ours", vocab__txt=WORDS, tokenizer_config__json=config, config__json={"model_type": "albert"}
    )
    peer = transformers.BertTokenizer.from_pretrained(peers)
    for text in TEXTS:
        assert_same(PretrainedTokenizer.from_folder(folder), peer, text)


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


def test_byte_level_roles_and_a_mask_that_includes_the_space_before_it(byte_levels):
    tokenizer, _ = byte_levels["gpt2"]
    assert tokenizer.begin == tokenizer.end == tokenizer.id_of("<|endoftext|>") == 0
    assert tokenizer.pad is None
    tokenizer, peer = byte_levels["roberta"]
    assert (tokenizer.begin, tokenizer.pad, tokenizer.end, tokenizer.unknown, tokenizer.mask) == (0, 1, 2, 3, 4)
    parts = [("Hello ", False), ("<mask>", True), (", naïve!", False)]
    assert tokenizer.encode_parts(parts) == peer.encode("Hello <mask>, naïve!", add_special_tokens=False)
    assert tokenizer.encode_parts([("<mask>", False)]) == tokenizer.encode_plain("<mask>")


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


def test_llama_starts_with_its_begin_token_and_legacy_decides_on_a_space_after_special_tokens(tmp_path):
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
    assert source.encode("aa x") == [1, 6, 1, 0]  # a piece that vocab.json lacks, and an unknown letter
    assert source.decode([2, 3, 0]) == "ab ba"
    assert source.encode_parts([(">>de<<", True), ("ab", False)]) == [7, 2]
    assert 7 not in source.encode(">>de<< ab")


def test_a_reader_returns_the_familys_roles_and_the_tokens_of_the_config(tmp_path):
    write(tmp_path, vocab__txt=[*WORDS, "<eot>"])
    classic = read_classic(tmp_path, {"sep_token": "<eot>"}, "distilbert", target=False)
    assert classic.roles["cls_token"] == "[CLS]"
    assert classic.roles["sep_token"] == "<eot>"
    assert classic.inner.encode("hello").ids == [WORDS.index("[CLS]"), WORDS.index("hello"), len(WORDS)]
