"""Language codes are put where HF's tokenizers put them."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from glassformer.pipelines.pretrained_base import read_base
from glassformer.text.language_codes import LanguageLayout, read_layout
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from text.language_tokenizers import KINDS, save_language_tokenizer

TEXTS = ["one two", "zwei eins", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_are_encoded_as_by_hf(kind, tmp_path):
    theirs, source, target = save_language_tokenizer(tmp_path, kind)
    config = {"model_type": "mbart", "decoder_start_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    base = read_base(tmp_path)
    layout = read_layout(base.source)
    assert layout.is_before == (kind != "mbart")
    marked = base.with_languages(layout, layout.find(source, ""), layout.find(target, ""))
    for text in TEXTS:
        assert marked.source.encode(text) == theirs(text)["input_ids"]
        assert marked.target.encode(text) == theirs(text_target=text)["input_ids"]
        assert marked.target.decode(marked.target.encode(text)) == text
    assert layout.codes[target] not in marked.source.encode(f"one {target} two")  # a text is never a code
    if kind == "mbart":
        assert marked.origin["decoder_start_token_id"] == layout.codes[target]
    else:
        assert marked.origin["forced_bos_token_id"] == layout.codes[target]
        assert marked.origin["decoder_start_token_id"] == 2


def test_a_language_is_named_by_its_code_or_by_its_first_part(tmp_path):
    save_language_tokenizer(tmp_path, "mbart50")
    layout = read_layout(PretrainedTokenizer.from_folder(tmp_path))
    assert [layout.find(name, "") for name in ("de", "de_DE", "de-AT", "en")] == ["de_DE", "de_DE", "de_DE", "en_XX"]
    for wrong in ("", "qqq"):
        with pytest.raises(ValueError, match=rf"--target-language '{wrong}': the model .* one of af_ZA, .*de_DE"):
            layout.find(wrong, "--target-language")
    with pytest.raises(ValueError, match=r"no such language; the nearest of its 52 codes: fr_XX$"):
        layout.find("fra_Latn", "")
    assert [layout.mark([9], "de_DE"), layout._replace(is_before=False).mark([9], "de_DE")] == [
        [layout.codes["de_DE"], 9, 2],
        [9, 2, layout.codes["de_DE"]],
    ]


def test_another_script_of_a_language_is_refused():
    layout = LanguageLayout({"srp_Cyrl": 5, "deu_Latn": 6, "zh_CN": 7}, True, ("</s>", 2))
    assert [layout.find(name, "") for name in ("srp", "srp-Cyrl", "deu_Latn", "zh")] == [
        "srp_Cyrl",
        "srp_Cyrl",
        "deu_Latn",
        "zh_CN",
    ]
    for wrong, near in (("srp_Latn", "srp_Cyrl"), ("deu-Cyrl", "deu_Latn"), ("zh-Hant", "zh_CN")):
        with pytest.raises(ValueError, match=f"'{wrong}': .* no such language; the nearest of its 3 codes: {near}$"):
            layout.find(wrong, "")


def test_codes_between_underscores_are_those_of_m2m100():
    vocab = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "__en__", "__de__"])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(["</s>", "__en__", "__de__"])
    inner.post_processor = processors.TemplateProcessing(
        single="__en__ $A </s>", special_tokens=[("__en__", 5), ("</s>", 2)]
    )
    tokenizer = PretrainedTokenizer.from_json(inner.to_str(), {"eos_token": "</s>"})
    layout = read_layout(tokenizer)
    assert layout == ({"__en__": 5, "__de__": 6}, True, ("</s>", 2))
    assert layout.find("de", "") == "__de__"


def test_other_tokenizers_have_no_languages():
    vocab = {"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3, "en_XX": 4}
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.add_special_tokens(["<s>", "</s>", "en_XX"])
    for around in ("<s> $A </s>", "$A </s>"):
        inner.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<s>", 0), ("</s>", 1)])
        assert read_layout(PretrainedTokenizer.from_json(inner.to_str(), {"eos_token": "</s>"})) is None
