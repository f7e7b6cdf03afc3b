"""The lens of the last layer is the model's own prediction; nearest tokens are those with the highest cosine."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.inspect import lens
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.lens import describe_lens
from glassformer.inspect.pipeline_text import read_text
from glassformer.inspect.stack_numbers import record_text
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def looked(kind):
    read = read_text(make(kind), "the old cat", ExplainOptions(max_tokens=3))
    with torch.no_grad():
        run = record_text(read)
        return read, run, describe_lens(read, run.activations)


@pytest.mark.parametrize("kind", [LanguageModel, Generator, Translator, MaskFiller])
def test_the_last_layer_predicts_what_the_model_predicts(kind):
    read, run, layers = looked(kind)
    probabilities = run.output[0].softmax(-1)
    last = layers[-1]
    config = read.model.config
    assert last["layer"] == (config.n_decoder_layers or config.n_encoder_layers)
    for place, tokens in enumerate(last["tokens"]):
        best = probabilities[place].topk(5)
        assert [one["id"] for one in tokens] == best.indices.tolist()
        assert [one["probability"] for one in tokens] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_hidden_states_of_encoders_have_nearest_tokens():
    read, run, layers = looked(Classifier)
    hidden = run.activations["encoder.layers.0.resid.out"][0]
    table = read.model.embeddings.tokens.weight.detach()
    cosine = F.normalize(hidden, dim=-1) @ F.normalize(table, dim=-1).T
    assert [layer["layer"] for layer in layers] == [0, 1]
    assert layers[1]["tokens"][2][0]["id"] == int(cosine[2].argmax())
    assert layers[1]["tokens"][2][0]["similarity"] == pytest.approx(float(cosine[2].max()), abs=1e-6)


def test_both_stacks_of_an_encoder_decoder_are_looked_at():
    _, _, layers = looked(Translator)
    assert [(layer["stack"], layer["layer"]) for layer in layers] == [
        ("encoder", 0),
        ("encoder", 1),
        ("decoder", 0),
        ("decoder", 1),
    ]
    assert "similarity" in layers[0]["tokens"][0][0]
    assert "probability" in layers[2]["tokens"][0][0]


def test_long_texts_are_looked_at_from_the_end(monkeypatch):
    monkeypatch.setattr(lens, "MOST_WORK", 1)
    _, _, layers = looked(Classifier)
    assert [bool(tokens) for tokens in layers[0]["tokens"]][-2:] == [False, True]
