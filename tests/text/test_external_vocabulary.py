"""The vocabulary of another tokenizer, with Glassformer's special tokens in front."""

import json

import pytest

from glassformer.text.external_vocabulary import read_tokenizer_file, renumber
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.sentencepiece_file import Kind
from glassformer.text.tokenizer import SPECIAL, UNKNOWN, Tokenizer, TokenizerConfig
from text.spm_files import SPECIAL as SPM_SPECIAL
from text.spm_files import UNIGRAM, file_of
from text.tokenizer_folders import TEXTS, WORDS, byte_level, write

LETTERS = [(letter, -5.0, Kind.NORMAL) for letter in "▁abcdefghilmnorstuvwHWxy!'12345</>"]
PIECES = [*SPM_SPECIAL, ("▁a", -1.0, Kind.NORMAL), ("Hello", -2.0, Kind.NORMAL), *LETTERS]


def taken(path, more_special=()):
    return Tokenizer.train([], 4, TokenizerConfig(tokenizer_file=str(path)), more_special=more_special)


def sources(folder):
    """Write one tokenizer of each kind. Return their paths, and the tokenizers as they are used with their own ids."""
    (folder / "byte").mkdir()
    byte_level(special=["<|endoftext|>"]).save(str(folder / "byte" / "tokenizer.json"))
    config = {"tokenizer_class": "BertTokenizer"}
    write(folder / "wordpiece", vocab__txt=WORDS, tokenizer_config__json=config, config__json={"model_type": "bert"})
    (folder / "spm").mkdir()
    (folder / "spm" / "tokenizer.model").write_bytes(file_of(PIECES, UNIGRAM))
    (folder / "spm" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    paths = [folder / "byte" / "tokenizer.json", folder / "byte", folder / "wordpiece", folder / "spm"]
    return [(path, PretrainedTokenizer.from_folder(path if path.is_dir() else path.parent)) for path in paths]


def test_texts_are_split_as_before(tmp_path):
    for path, before in sources(tmp_path):
        now = taken(path)
        assert now._inner.get_vocab_size() <= before.vocab_size + len(SPECIAL)
        for text in (text for text in TEXTS if "<" not in text):
            old = ["<unk>" if index == before.unknown else before._tokens[index] for index in before.encode_plain(text)]
            new = [now._inner.id_to_token(index) for index in now.encode(text)]
            assert new == old, (path, text)


def test_a_sentencepiece_file_alone_is_enough(tmp_path):
    (tmp_path / "my.model").write_bytes(file_of(PIECES, UNIGRAM))
    tokenizer = taken(tmp_path / "my.model")
    assert tokenizer.tokens(tokenizer.encode("a Hello"))[-1].strip() == "Hello"
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


def test_text_never_becomes_a_special_token(tmp_path):
    for path, _ in sources(tmp_path):
        tokenizer = taken(path, more_special=["<mask>"])
        assert tokenizer.special_id("<mask>") == 4
        for name in (*SPECIAL, "<mask>", "<|endoftext|>", "[SEP]"):
            found = {*tokenizer.encode(f"a {name} b"), *tokenizer.encode(name)}
            assert not found & (tokenizer.special_ids - {UNKNOWN}), (path, name)


def test_tokens_that_were_added_to_the_vocabulary_are_kept(tmp_path):
    inner = byte_level()
    inner.add_tokens(["supercalifragilistic"])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = taken(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("supercalifragilistic")
    assert tokenizer.tokens(ids) == ["supercalifragilistic"]
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode("supercalifragilistic") == ids


@pytest.mark.parametrize("text", ["{}", "[]", '{"model": 3}', '{"model": {"type": "BPE", "vocab": {"a": "b"}}}', "{"])
def test_files_that_are_no_tokenizer_are_refused(text, tmp_path):
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        taken(tmp_path / "tokenizer.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.json: no such file or folder"):
        read_tokenizer_file(tmp_path / "nothing.json")
    (tmp_path / "no.model").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"no\.model"):
        read_tokenizer_file(tmp_path / "no.model")


def test_the_new_file_has_no_post_processor():
    contents = json.loads(byte_level().to_str()) | {"truncation": {"max_length": 2}}
    found = json.loads(renumber(contents, SPECIAL, unknown="<unk>", where="here"))
    assert (found["post_processor"], found["truncation"]) == (None, None)
    assert [token["content"] for token in found["added_tokens"]] == [*SPECIAL]
