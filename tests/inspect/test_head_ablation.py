"""The loss without a head is that of a run with the head switched off."""

import pytest
import torch

from glassformer.inspect import head_ablation
from glassformer.inspect.ablation import ablate
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.head_ablation import measure_heads, write_without_heads
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import read_text, written_text
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator])
def test_losses_equal_those_of_single_runs(kind, monkeypatch):
    pipe = make(kind)
    read = read_text(pipe, "the old cat", ExplainOptions(max_tokens=3))
    with torch.no_grad():
        output = read.model(**read.inputs())
        objective = Objective(read, output, pipe)
        found = measure_heads(pipe, read, objective, output)
        n_attentions = 3 if kind is Translator else 1
        assert len(found) == n_attentions * read.model.config.n_heads
        for one in found:
            with ablate(read.model, [one["name"]]):
                loss = float(objective.losses(read.model(**read.inputs()))[0])
            assert one["loss"] == pytest.approx(loss, abs=1e-5)
            assert one["change"] == pytest.approx(loss - float(objective.losses(output)[0]), abs=1e-5)
            assert isinstance(one["output"], str)
        assert kind is not Classifier or found[0]["output"] in pipe.labels
        monkeypatch.setattr(head_ablation, "MOST_WORK", 1)
        assert measure_heads(pipe, read, objective, output) == []


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator])
def test_texts_without_heads_are_those_of_an_ablated_model(kind, monkeypatch):
    pipe, options = make(kind), ExplainOptions(max_tokens=3)
    read = read_text(pipe, "the old cat", options)
    changes = {"decoder.layers.0.self_attn.head.0": None, "decoder.layers.0.self_attn.head.1": -0.3}

    def written(options=options):
        found = [{"name": name, "change": change} for name, change in changes.items()]
        with torch.no_grad():
            return write_without_heads(pipe, "the old cat", read, options, found)

    if kind is Classifier:
        assert all("written" not in one for one in written())
        return
    for one in written():
        with ablate(read.model, [one["name"]]):
            again = read_text(pipe, "the old cat", options).target
        assert one["written"] == written_text(read.model, again)
    monkeypatch.setattr(head_ablation, "MOST_REWRITTEN", 1)
    assert ["written" in one for one in written()] == [False, True], "only the head that matters most"
    assert all("written" not in one for one in written(ExplainOptions(target="a cat")))
    assert all("written" not in one for one in written(ExplainOptions(sample=True)))
    monkeypatch.setattr(head_ablation, "MOST_WRITING", 1)
    assert all("written" not in one for one in written())
