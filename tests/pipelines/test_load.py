"""One door to every format: what was saved by HF comes back as what it can do, and writes what HF writes."""

import json
import random

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from checkpoint import hf_models
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.decoding import GenerationConfig
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.load import load
from glassformer.pipelines.text_to_text import TextToText

WORDS = ["</s>", "<pad>", "<s>", "[UNK]", "a", "b", "c", "d", "cat", "dog", "sat", "on", "the", "mat", "."]
WORDS += [f"w{index}" for index in range(hf_models.VOCAB - len(WORDS))]


def save_tokenizer(folder, *, around=None):
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["</s>", "<pad>", "<s>"])
    if around is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=around, special_tokens=[("<s>", WORDS.index("<s>")), ("</s>", WORDS.index("</s>"))]
        )
    inner.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "[UNK]"}
    roles["chat_template"] = (
        "{% for m in messages %}<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %} on{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(roles), encoding="utf-8")


@pytest.fixture
def decoder(tmp_path):
    draw, class_name = hf_models.DECODERS["llama"]
    theirs = hf_models.make(draw(random.Random(3)), class_name, 3)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    return tmp_path, theirs


def test_a_decoder_goes_on_writing_as_it_does_there(decoder):
    folder, theirs = decoder
    model = load(folder)
    assert isinstance(model, Generator)
    ids = [WORDS.index(word) for word in ("the", "cat", "sat")]
    written = theirs.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, eos_token_id=0, pad_token_id=1)
    expected = written[0, 3:].tolist()
    expected = expected[: expected.index(0)] if 0 in expected else expected
    config = GenerationConfig(max_new_tokens=6)
    text = model.tokenizer.decode(expected)
    assert model.run(["the cat sat"], config=config) == [text]
    assert "".join(model.stream("the cat sat", config)) == text


def test_many_prompts_and_one_are_the_same(decoder):
    model = load(decoder[0])
    prompts = ["the cat sat", "a", "", "dog on the mat . a b c d"]
    config = GenerationConfig(max_new_tokens=5)
    assert model.run(prompts, config=config) == [model.run([prompt], config=config)[0] for prompt in prompts]


def test_a_prompt_that_is_too_long_is_cut_at_its_beginning(decoder):
    model = load(decoder[0])
    long = " ".join(["cat"] * 100 + ["dog", "sat"])
    assert model._fit(model.read(long), GenerationConfig(max_new_tokens=8))[-2:] == model.read("dog sat")
    assert model.run([long], config=GenerationConfig(max_new_tokens=8))


def test_a_conversation_is_written_by_the_template(decoder):
    model = load(decoder[0])
    names = ("<s>", "the", "dog", "on")
    assert model.answer_to([{"role": "user", "content": "the dog"}]) == [WORDS.index(name) for name in names]
    # what a user types is no special token
    assert WORDS.index("</s>") not in model.answer_to([{"role": "user", "content": "the </s> dog"}])
    assert isinstance("".join(model.chat([{"role": "user", "content": "cat"}])), str)


def test_an_encoder_becomes_an_embedder(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    theirs = hf_models.make(draw(random.Random(1)), "BertModel", 1)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    model = load(tmp_path)
    assert isinstance(model, Embedder)
    texts = ["the cat sat on the mat", "a dog", "", "cat " * 100]
    vectors = model.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        ids = model.tokenizer.encode(text)
        ids = ids if len(ids) <= 28 else [*ids[:27], ids[-1]]
        with torch.no_grad():
            mean = theirs(torch.tensor([ids])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.embed(texts, max_batch_tokens=1), vectors, atol=1e-6, rtol=0)
    assert json.loads(model.run(["a"])[0]) == pytest.approx(model.embed(["a"])[0].tolist(), abs=1e-5)


def test_a_head_that_is_not_needed_is_left_behind(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    theirs = hf_models.make(draw(random.Random(2)), "BertForMaskedLM", 2)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    model = load(tmp_path)
    ids = torch.tensor([model.tokenizer.encode("the cat sat")])
    with torch.no_grad():
        mean = theirs.bert(ids).last_hidden_state[0].mean(0)
    torch.testing.assert_close(model.embed(["the cat sat"])[0], mean / mean.norm(), atol=1e-5, rtol=0)


def test_pooling_is_what_the_folder_says(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    hf_models.make(draw(random.Random(1)), "BertModel", 1).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}), encoding="utf-8")
    model = load(tmp_path)
    assert model.model.config.pooling == "first"
    assert model.max_len == 9


def test_a_decoder_without_its_output_is_refused(tmp_path):
    draw, _ = hf_models.DECODERS["llama"]
    hf_models.make(draw(random.Random(3)), "LlamaModel", 3).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="head='none', which generates no text"):
        load(tmp_path)


@pytest.mark.parametrize("family", hf_models.PAIRS)
def test_an_encoder_decoder_rewrites_as_it_does_there(family, tmp_path):
    draw, class_name = hf_models.PAIRS[family]
    config = draw(random.Random(0))
    config.num_decoder_layers = getattr(config, "num_layers", None)
    theirs = hf_models.make(config, class_name, 0)
    theirs.generation_config.num_beams, theirs.generation_config.max_length = 2, 9
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="$0 </s>")
    model = load(tmp_path)
    assert isinstance(model, TextToText)
    ids = torch.tensor([model.source_tokenizer.encode("the cat sat")])
    written = theirs.generate(
        ids, num_beams=2, max_length=9, do_sample=False, eos_token_id=0, pad_token_id=1, bad_words_ids=[[1]]
    )
    expected = written[0, 1:].tolist()
    expected = expected[: expected.index(0)] if 0 in expected else expected
    assert model.run(["the cat sat", ""]) == [model.target_tokenizer.decode(expected), ""]


def test_pickles_are_refused_unless_asked_for(decoder):
    folder, theirs = decoder
    (folder / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(CorruptFolderError, match="is a pickle, which can run code"):
        load(folder)
    assert isinstance(load(folder, allow_pickle=True), Generator)


class Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_a_pickle_that_runs_code_runs_none(decoder, monkeypatch):
    folder, _ = decoder
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(CorruptFolderError, match="cannot be read"):
        load(folder, allow_pickle=True)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 3, None])
def test_an_index_cannot_lead_out_of_its_folder(decoder, name):
    folder, _ = decoder
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="expected a file name without a folder"):
        load(folder)


def test_nor_can_a_link(decoder):
    folder, _ = decoder
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "outside.safetensors")
    with pytest.raises(CorruptFolderError, match="a link that leads out of its folder"):
        load(folder)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such"):
        load(tmp_path / "nothing")
    (tmp_path / "text.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a model folder, a GGUF file, or"):
        load(tmp_path / "text.txt")
