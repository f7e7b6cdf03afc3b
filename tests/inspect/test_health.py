"""Healthy models pass all checks; each kind of damage fails its check."""

import pytest
import torch

from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.health import check_health, failures
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import read_text
from glassformer.inspect.recorder import patch
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def checked(kind, damage=None):
    pipe = make(kind)
    read = read_text(pipe, "the old cat sees", ExplainOptions(max_tokens=3))
    with torch.no_grad():
        objective = Objective(read, read.model(**read.inputs()), pipe)
        if damage is not None:
            damage(read.model)
    return check_health(read, objective)


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator])
def test_healthy_models_pass(kind):
    found = checked(kind)
    assert failures(found) == []
    assert len(found) >= 9
    assert all(check["explanation"] for check in found)


def test_a_wrong_scale_is_found():
    def damage(model):
        model.decoder.layers[0].self_attn.attend.scale *= 2

    assert failures(checked(LanguageModel, damage)) == ["scale of the scores"]


def test_parameters_without_gradient_are_found():
    def damage(model):
        model.encoder.layers[0].ffn.down_proj.weight.zero_()

    found = checked(Classifier, damage)
    assert failures(found) == ["gradients reach every parameter"]
    assert "not encoder.layers.0.ffn.up_proj.weight" in found[-1]["value"]


def test_weights_that_are_not_finite_are_found():
    def damage(model):
        model.encoder.layers[0].ffn.down_proj.weight[0, 0] = torch.nan

    assert "finite" in failures(checked(Classifier, damage))


def test_a_look_into_the_future_is_found():
    pipe = make(LanguageModel)
    read = read_text(pipe, "the old cat sees", ExplainOptions(max_tokens=3))
    with torch.no_grad():
        objective = Objective(read, read.model(**read.inputs()), pipe)
    uniform = patch(read.model, "decoder.layers.0.self_attn.weights", lambda w: torch.full_like(w, 1 / w.shape[-1]))
    with uniform:
        assert "no weight on the future" in failures(check_health(read, objective))


def test_broken_norms_are_found():
    def damage(model):
        model.encoder.layers[0].ffn_sublayer.norm.register_forward_hook(lambda *call: call[-1] * 2)

    assert failures(checked(Classifier, damage)) == ["norm statistics"]
