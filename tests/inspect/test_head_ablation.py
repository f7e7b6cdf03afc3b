"""The loss without a head is that of a run with the head switched off."""

import pytest
import torch

from glassformer.inspect import head_ablation
from glassformer.inspect.ablation import ablate
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.head_ablation import measure_heads
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import read_text
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
