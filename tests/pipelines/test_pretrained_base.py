"""The tokenizers that a fine-tuned model keeps: exact, from folders old and new and from GGUF files."""

import json

import pytest

import glassformer as gf
from glassformer.pipelines.blanks import GAP_TOKENS
from glassformer.pipelines.pretrained_base import document_start, gap_tokens, read_base
from glassformer.text import Tokenizer
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from tasks.pretrained_models import save_decoder, save_tokenizer

TEXT = "the cat <|im_end|> sat, fünf"


def test_a_folder_and_its_gguf_file_give_the_same_tokenizer(tmp_path):
    save_decoder(tmp_path / "hf")
    gf.convert(tmp_path / "hf", to="gguf", out=tmp_path / "m.gguf")
    base, of_file = read_base(tmp_path / "hf"), read_base(tmp_path / "m.gguf")
    assert base.source is base.target
    assert (
        base.source.encode(TEXT)
        == of_file.source.encode(TEXT)
        == PretrainedTokenizer.from_folder(tmp_path / "hf").encode(TEXT)
    )
    assert base.source.chat_template == of_file.source.chat_template
    assert json.loads(base.files["origin.json"]) == {
        "model_type": "llama",
        "bos_token_id": 3,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    assert base.with_chat_template("{{ messages }}").source.chat_template == "{{ messages }}"


def test_a_model_that_was_trained_here_has_no_base(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert read_base(tmp_path) is None


def test_documents_start_with_the_token_before_a_text_or_the_one_that_ends_it(tmp_path):
    save_tokenizer(tmp_path / "a")
    save_tokenizer(tmp_path / "b", begin="<s>")
    assert document_start(PretrainedTokenizer.from_folder(tmp_path / "a")) == 2
    assert document_start(PretrainedTokenizer.from_folder(tmp_path / "b")) == 3
    own = Tokenizer.train(["one two"], 270)
    assert document_start(own) == own.end
    contents = json.loads((tmp_path / "a" / "tokenizer.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="no token that ends a text"):
        document_start(PretrainedTokenizer(contents))


def test_the_tokens_of_a_gap_are_found_by_their_names(tmp_path):
    save_tokenizer(tmp_path)
    tokenizer = PretrainedTokenizer.from_folder(tmp_path)
    assert gap_tokens(tokenizer) is None
    with pytest.raises(ValueError, match="has no token '<fim_prefix>': expected it"):
        tokenizer.special_id("<fim_prefix>")
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    contents = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    added = [dict(contents["added_tokens"][0], content=name, id=300 + i) for i, name in enumerate(names)]
    contents["added_tokens"] += added
    assert gap_tokens(PretrainedTokenizer(contents)) == tuple(names)
    assert gap_tokens(Tokenizer.train(["one"], 270, more_special=GAP_TOKENS)) == GAP_TOKENS
