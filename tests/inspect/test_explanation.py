"""The numbers of an explanation are those of a plain forward pass."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.decoding import GenerationConfig
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.explanation import build_explanation, explain
from glassformer.inspect.health import failures
from glassformer.inspect.json_values import unpack
from glassformer.inspect.page_file import embedded_explanation, page_html
from glassformer.models import build_model, preset
from glassformer.models.presets import PRESETS
from glassformer.nn import capture_attention
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from glassformer.text import Tokenizer
from pipelines.tiny_pipelines import MAKERS, make, pretrained, tokenizer

TEXT = "the old cat sees the saw"
MOST = ("attention", "lens", "next", "beam", "attribution")


def forward(pipe, found):
    """Run the model on the tokens of an explanation; return its output and attention weights."""
    sides = {side: torch.tensor([one["ids"]]) for side, one in found["text"].items() if one is not None}
    inputs = sides if pipe.model.kind == "encoder_decoder" else {"tokens": sides.get("target", sides["source"])}
    with torch.no_grad(), capture_attention(pipe.model) as captured:
        return pipe.model(**inputs)[0], captured


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator])
def test_attention_and_candidates_equal_a_plain_forward(kind):
    pipe = make(kind)
    found = json.loads(explain(pipe, TEXT, name="tiny").to_json())
    output, captured = forward(pipe, found)
    attention = {
        one["name"]: one for stack in found["stacks"] for layer in stack["layers"] for one in layer["attention"]
    }
    assert {*attention} == {*captured}
    for name, one in attention.items():
        weights = captured[name][0].double().numpy()
        np.testing.assert_allclose(unpack(one["weights"]), weights, atol=2e-5)
        assert len(one["head_kinds"]) == len(weights)
        q, k = unpack(one["q"]), np.repeat(unpack(one["k"]), one["groups"], 0)
        scores = q @ k.transpose(0, 2, 1) * one["scale"] + (0 if one["bias"] is None else unpack(one["bias"]))
        if one["mask"] is not None:
            scores = np.where(unpack(one["mask"]) > 0.5, scores, -np.inf)
        again = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(again / again.sum(-1, keepdims=True), weights, atol=1e-4)
    if found["next"] is not None:
        logs = output.log_softmax(-1)
        for place, one in enumerate(found["next"]):
            assert one["candidates"][0]["id"] == int(logs[place].argmax())
            assert one["candidates"][0]["log_probability"] == pytest.approx(float(logs[place].max()), abs=1e-5)
            total = sum(np.exp(candidate["log_probability"]) for candidate in one["candidates"])
            assert total + one["rest"] == pytest.approx(1.0, abs=1e-4)
    else:
        probabilities = {one["label"]: one["probability"] for one in found["output"]["labels"]}
        assert list(probabilities.values()) == pytest.approx(
            sorted(output.softmax(-1).tolist(), reverse=True), abs=1e-5
        )


@pytest.mark.parametrize("kind", MAKERS)
def test_every_pipeline_is_explained(kind):
    pipe = make(kind)
    text = TEXT if kind.__name__ not in ("Extractor", "Answerer", "Comparer") else f"what?\t{TEXT}"
    found = build_explanation(pipe, text, ExplainOptions(max_tokens=4, parts=MOST), name="tiny")
    assert found["model"]["kind"] == pipe.model.kind.replace("_", "-")
    assert found["output"]["loss"] is not None
    depth = pipe.model.config.n_encoder_layers + pipe.model.config.n_decoder_layers
    assert sum(len(stack["layers"]) for stack in found["stacks"]) == depth
    json.dumps(found, allow_nan=False)


def test_ablation_changes_the_output_and_keeps_the_baseline():
    pipe = make(Classifier)
    whole = explain(pipe, TEXT).data
    found = explain(pipe, TEXT, ablate=["encoder.layers.0"]).data
    assert whole["baseline"] is None
    assert found["baseline"]["output"] == whole["output"]
    assert found["output"]["labels"] != whole["output"]["labels"]
    assert explain(pipe, TEXT).data["output"] == whole["output"]


def test_long_texts_are_pooled_and_without_vectors():
    from glassformer.models import EncoderModel
    from glassformer.pipelines.encoder_pipeline import Reader
    from glassformer.tasks.configs.small_models import small_encoder
    from pipelines.tiny_pipelines import LABELS, SIZES

    own = tokenizer()
    sizes = SIZES | {"max_len": 1024}
    config = small_encoder(vocab_size=own.vocab_size, n_encoder_layers=1, head="sequence_class", n_labels=3, **sizes)
    pipe = Classifier(EncoderModel(config).eval(), Reader.own(own), labels=LABELS)
    found = explain(pipe, "zq " * 340).data
    n = len(found["text"]["source"]["ids"])
    assert n > 1000
    (attention,) = found["stacks"][0]["layers"][0]["attention"]
    assert attention["weights"]["pooled"] == 4
    assert max(attention["weights"]["shape"][1:]) <= 256
    assert attention["q"] is None
    assert found["rollout"]["encoder"]["pooled"] == 4


def pipeline_of(name):
    """Return a pipeline around a tiny random model of a preset."""
    own = tokenizer()
    config = preset(name, vocab_size=own.vocab_size)
    if config.kind == "encoder":
        model = build_model(config.with_head("embedding", pooling="mean")).eval()
        return Embedder(model, pretrained())
    model = build_model(config if config.head == "language_model" else config.with_head("language_model")).eval()
    if config.kind == "decoder":
        return LanguageModel(model, own, GenerationConfig(max_new_tokens=3))
    return Translator(model, own, own, GenerationConfig(num_beams=2, max_new_tokens=3))


OFTEN = ("tiny-t5-small", "tiny-deberta-v3-base", "tiny-albert-base", "tiny-llama")


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in PRESETS if "tiny-" in name],
)
def test_a_page_is_made_for_every_family(name):
    found = explain(pipeline_of(name), "the old cat sees the saw", name=name)
    assert failures(found.data["health"]) == []
    assert embedded_explanation(page_html(found.data))["model"]["name"] == name
    assert found._repr_html_().startswith('<iframe srcdoc="')


@pytest.mark.full
def test_a_sentence_of_30_tokens_of_a_large_model_makes_a_page_below_three_megabytes():
    import itertools

    words = [first + second for first, second in itertools.product("bcdfghjklm", ("al", "en", "id", "os"))]
    own = Tokenizer.train([" ".join(words)] * 3, 900)
    model = build_model(preset("transformer-base", vocab_size=10_000)).eval()
    pipe = Translator(model, own, own, GenerationConfig(num_beams=4, max_new_tokens=64))
    found = explain(pipe, " ".join(words[:29]), max_tokens=29).data
    assert len(found["text"]["source"]["ids"]) == 30
    assert 28 <= len(found["text"]["target"]["ids"]) <= 30
    assert len(found["stacks"][1]["layers"]) == 6
    assert found["stacks"][1]["layers"][5]["attention"][1]["q"]["shape"] == [8, len(found["text"]["target"]["ids"]), 64]
    assert len(page_html(found).encode()) < 3_000_000


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_instead_of_a_model_names_the_call_that_loads_it(kind):
    with pytest.raises(TypeError, match=r"pipe is 'my-model': expected a loaded model, such as gf.load\('my-model'\)"):
        explain(kind("my-model"), "a text")
