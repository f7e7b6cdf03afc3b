"""Files beside the weights as HF Transformers and sentence-transformers read them."""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file

from checkpoint.hf.test_sentence_folder import write_modules
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import OutputExistsError, save_model
from glassformer.checkpoint.hf.sentence_folder import POOLINGS, sentence_texts
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.decoding import GenerationConfig
from glassformer.models import build_model
from glassformer.pipelines.agreement import verify
from glassformer.pipelines.comparer import Comparer
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.load import load
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer
from pipelines.hf_folders import save_tokenizer
from pipelines.test_pair_scorer import save_cross_encoder
from pipelines.tiny_pipelines import make

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


def save_sentence_folder(folder, *, inner="", dense=True, **pooling):
    """Write a random BERT as a sentence-transformers folder, with prompts and a limit of 20 tokens."""
    theirs = small_bert("Bert", "Model", type_vocab_size=2)
    values = {"in_features": 8, "out_features": 5, "bias": True}
    values["activation_function"] = "torch.nn.modules.linear.Identity"
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, "Normalize"]
    write_modules(folder, *kinds, pooling=pooling, dense=values, encoder=inner)
    theirs.save_pretrained(folder / inner)
    save_tokenizer(folder / inner, around="<s> $A </s>", chat=False)
    (folder / inner / "sentence_bert_config.json").write_text('{"max_seq_length": 20}', encoding="utf-8")
    settings = {"prompts": {"query": "the "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    if dense:
        layer = torch.nn.Linear(8, 5)
        tensors = {f"linear.{name}": value.detach() for name, value in layer.named_parameters()}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
@pytest.mark.parametrize("dense", [True, False])
def test_a_sentence_transformers_folder_stays_one(inner, dense, tmp_path):
    save_sentence_folder(tmp_path / "a", inner=inner, dense=dense, pooling_mode_cls_token=True)
    for _ in range(2):  # the second time over the first
        convert(tmp_path / "a", tmp_path / "b", "hf", overwrite=True)
    one, two = load(tmp_path / "a"), load(tmp_path / "b")
    texts = ["the cat sat on the mat", "a dog", "cat " * 30]
    assert torch.equal(one.embed(texts), two.embed(texts))
    assert torch.equal(one.embed(texts, prompt=""), two.embed(texts, prompt=""))
    assert (two.max_len, two.prompts, two.similarity) == (20, {"query": "the "}, "dot")
    assert two.model.config == one.model.config
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "b").eval()
    ids = two.tokenizer.encode("a dog")
    with torch.no_grad():
        first = theirs(torch.tensor([ids])).last_hidden_state[:, 0]
        if dense:
            first = torch.nn.functional.linear(first, two.model.head.transform.dense.weight)
            first = first + two.model.head.transform.dense.bias
    torch.testing.assert_close(
        two.embed("a dog", prompt=""), torch.nn.functional.normalize(first)[0], atol=1e-5, rtol=0
    )
    damaged = tmp_path / "b" / "1_Pooling" / "config.json"
    damaged.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json has changed"):
        load(tmp_path / "b")
    (tmp_path / "b" / "1_Pooling" / "notes").touch()
    with pytest.raises(OutputExistsError, match="1_Pooling/notes"):
        convert(tmp_path / "a", tmp_path / "b", "hf", overwrite=True)


@pytest.mark.parametrize("mode", POOLINGS)
def test_sentence_transformers_loads_a_converted_folder(mode, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    save_sentence_folder(tmp_path / "a", pooling_mode=mode)
    convert(tmp_path / "a", tmp_path / "b", "hf")
    texts = ["the cat sat on the mat", "a dog"]
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "b"), device="cpu")
    found = torch.from_numpy(theirs.encode(texts))
    torch.testing.assert_close(found, load(tmp_path / "b").embed(texts), atol=1e-5, rtol=0)


def test_a_comparer_of_ours_becomes_a_sentence_transformers_folder(tmp_path):
    ours = make(Comparer)
    ours.save(tmp_path / "ours", "")
    model = convert(tmp_path / "ours", tmp_path / "hf", "hf")
    verify(tmp_path / "ours", model, tmp_path / "hf", "hf").check(tmp_path / "hf")
    again = load(tmp_path / "hf")
    assert isinstance(again, Embedder)
    texts = ["the old cat", "it is red."]
    torch.testing.assert_close(again.embed(texts), ours.embed(texts), atol=1e-6, rtol=0)


def test_the_activation_of_a_cross_encoder_is_kept(tmp_path):
    save_cross_encoder(tmp_path / "a", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    convert(tmp_path / "a", tmp_path / "b", "hf")
    assert load(tmp_path / "b").activation == "identity"
    (tmp_path / "c").mkdir()
    save_cross_encoder(tmp_path / "c")
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "c" / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    convert(tmp_path / "c", tmp_path / "d", "hf")
    assert load(tmp_path / "d").activation == "identity"


def test_an_activation_that_sentence_transformers_lacks_is_refused_by_name():
    config = small_encoder(**TINY).with_head("embedding", head_transform=True, head_activation="gelu_tanh")
    with pytest.raises(
        UnsupportedModelError, match="head_activation='gelu_tanh', which is not supported: expected one"
    ):
        sentence_texts(config)
