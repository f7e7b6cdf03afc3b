"""The answer of a whole model is kept for the next explanation, and only if it is the same answer."""

import pytest

from glassformer.inspect import explanation, whole_outputs
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.explanation import build_explanation
from glassformer.inspect.whole_outputs import WholeOutputs
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make

TEXT = "the old cat"
WITHOUT = ("encoder.layers.0.self_attn.head.0",)


def test_a_second_explanation_does_not_write_the_text_again(monkeypatch):
    pipe, wholes, calls = make(Translator), WholeOutputs(), []
    read = explanation.read_text
    monkeypatch.setattr(explanation, "read_text", lambda *args: calls.append(args) or read(*args))
    options = {"max_tokens": 3, "parts": ("next",)}
    whole = build_explanation(pipe, TEXT, ExplainOptions(**options), wholes=wholes)
    found = build_explanation(pipe, TEXT, ExplainOptions(**options, ablate=WITHOUT), wholes=wholes)
    assert found["baseline"]["output"] == whole["output"]
    assert len(calls) == 2
    alone = build_explanation(pipe, TEXT, ExplainOptions(**options, ablate=WITHOUT))
    assert alone["baseline"] == found["baseline"]
    assert len(calls) == 4


def test_only_the_latest_answers_of_whole_models_are_kept(monkeypatch):
    monkeypatch.setattr(whole_outputs, "MOST_KEPT", 2)
    pipe, wholes = make(Translator), WholeOutputs()
    for text in ("a", "b", "c"):
        wholes.put(pipe, text, ExplainOptions(), {"text": text})
    wholes.put(pipe, "c", ExplainOptions(ablate=WITHOUT), {"text": "changed"})
    wholes.put(pipe, "d", ExplainOptions(sample=True), {"text": "drawn"})
    assert wholes.get(pipe, "a", ExplainOptions()) is None
    assert wholes.get(pipe, "c", ExplainOptions(ablate=WITHOUT, parts=("next",), position=1)) == {"text": "c"}


@pytest.mark.parametrize("options", [{"beam": 3}, {"max_tokens": 5}, {"sample": True}])
def test_other_settings_are_other_answers(options):
    pipe, wholes = make(Translator), WholeOutputs()
    wholes.put(pipe, TEXT, ExplainOptions(), {"text": "as usual"})
    assert wholes.get(pipe, TEXT, ExplainOptions(**options)) is None
    assert wholes.get(make(Translator), TEXT, ExplainOptions()) is None
