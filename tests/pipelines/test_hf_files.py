"""Tokenizer, generation and label files as HF Transformers reads them."""

import json

import torch
import transformers

from glassformer.checkpoint import save_model
from glassformer.decoding import GenerationConfig
from glassformer.models import build_model
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.load import load
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer

TINY = {"d_model": 18, "n_heads": 3, "d_ff": 24, "max_len": 32}


def test_hf_generates_the_same_texts_from_a_converted_folder(tmp_path):
    tokenizer = Tokenizer.train(["the cat sat on the mat", "a dog sat"], 280)
    torch.manual_seed(0)
    shape = {**TINY, "tie": "none", "n_decoder_layers": 1, "vocab_size": tokenizer.vocab_size}
    model = build_model(small_encoder_decoder(**shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    ours = Translator(model.eval(), tokenizer, tokenizer, GenerationConfig(max_new_tokens=12, num_beams=2))
    save_model(tmp_path / "ours", model, ours.files())
    convert(tmp_path / "ours", tmp_path / "hf", "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    lines = ["the dog sat on a mat", "a cat"]
    expected = ours.write(lines)
    assert len(set(expected[0])) > 2
    written = words.batch_decode(
        theirs.generate(**words(lines, return_tensors="pt", padding=True)), skip_special_tokens=True
    )
    assert written == expected
    assert load(tmp_path / "hf").run(lines) == expected


def test_class_names_are_written_to_config_json(tmp_path):
    config = small_encoder(**TINY).with_head("sequence_class", n_labels=2, vocab_size=40, head_transform=True)
    about = {"task": "classification", "labels": ["bad", "good"]}
    save_model(tmp_path / "ours", build_model(config), {"task.json": json.dumps(about)})
    convert(tmp_path / "ours", tmp_path / "hf", "hf")
    values = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert values["id2label"] == {"0": "bad", "1": "good"}
    assert values["label2id"] == {"bad": 0, "good": 1}
