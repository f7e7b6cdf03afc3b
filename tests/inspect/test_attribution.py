"""Gradients are those of torch; integrated gradients add up to the difference that the input makes."""

from contextlib import ExitStack

import pytest
import torch

from glassformer.inspect import attribution
from glassformer.inspect.attribution import baseline, describe_attribution, gradient_scores, integrated_scores
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import read_text
from glassformer.inspect.recorder import patch
from glassformer.inspect.stack_numbers import record_text, roll_out
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def asked(kind):
    pipe = make(kind)
    read = read_text(pipe, "the old cat", ExplainOptions(max_tokens=4))
    with torch.no_grad():
        run = record_text(read)
    return read, run, Objective(read, run.output, pipe)


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator, Embedder])
def test_gradients_are_slopes(kind):
    read, _, objective = asked(kind)
    place = objective.places[1] if objective.places else None
    scores = gradient_scores(read, objective, [*objective.places] or [None])
    row = objective.places.index(place) if objective.places else 0
    side = next(iter(scores))

    def output(factor):
        def scale(x):
            return torch.cat((x[:, :1] * factor, x[:, 1:]), 1)

        with torch.no_grad(), patch(read.model.double(), side, scale):
            return float(objective.explained(attribution._explained_output(read, 1), place)[0])

    slope = (output(1 + 1e-3) - output(1 - 1e-3)) / 2e-3
    assert float(scores[side][row, 0]) == pytest.approx(slope, abs=2e-3)
    assert all(values.abs().sum() > 0 for values in scores.values())


@pytest.mark.parametrize("kind", [Classifier, Translator])
def test_integrated_gradients_add_up(kind):
    read, _, objective = asked(kind)
    place = objective.places[-1] if objective.places else None
    scores = integrated_scores(read, objective, place, steps=200)

    def output(changes):
        with torch.no_grad(), ExitStack() as stack:
            for name, value in changes.items():
                stack.enter_context(patch(read.model, name, value))
            return float(objective.explained(read.model(**read.inputs()), place)[0])

    total = sum(float(values.sum()) for values in scores.values())
    assert total == pytest.approx(output({}) - output(baseline(read)), abs=1e-3)


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator, Tagger, Embedder])
def test_three_methods_side_by_side(kind):
    read, run, objective = asked(kind)
    with torch.inference_mode():
        found = describe_attribution(read, objective, roll_out(read, run), None)
    names = [method["name"] for method in found["methods"]]
    assert names == ["gradient x input", "integrated gradients", "attention rollout"]
    for method in found["methods"]:
        for side in ("source", "target"):
            values = method["scores"][side]
            assert values is None or len(values) == len((read.target if side == "target" else read.source).ids)
        assert any(values for values in method["scores"].values())
    assert len(found["per_position"]) == max(1, len(objective.places))
    if read.target is not None:
        place = found["target_position"]
        answer = read.answers[place - 1]
        assert found["target_token"] == read.target.tokenizer.tokens([answer])[0]
        rolled = found["methods"][-1]["scores"]
        total = sum(sum(values) for values in rolled.values() if values is not None)
        assert total == pytest.approx(1.0, abs=1e-4)


def test_a_wrong_position_and_too_much_work_are_told(monkeypatch):
    read, run, objective = asked(LanguageModel)
    maps = roll_out(read, run)
    with pytest.raises(ValueError, match=r"position=99: expected 4 to 8"):
        describe_attribution(read, objective, maps, 99)
    monkeypatch.setattr(attribution, "MOST_WORK", 1)
    found = describe_attribution(read, objective, maps, None)
    assert [method["name"] for method in found["methods"]] == ["attention rollout"]
    assert "too large" in found["note"]


@pytest.mark.parametrize("limit", ["MOST_OUTPUTS", "MOST_PAIRS"])
def test_only_outputs_of_a_short_text_are_all_attributed(monkeypatch, limit):
    read, run, objective = asked(LanguageModel)
    maps = roll_out(read, run)
    assert len(describe_attribution(read, objective, maps, None)["per_position"]) > 1
    monkeypatch.setattr(attribution, limit, 1)
    found = describe_attribution(read, objective, maps, None)
    assert len(found["per_position"]) == 1
    assert [method["name"] for method in found["methods"]][:2] == ["gradient x input", "integrated gradients"]
