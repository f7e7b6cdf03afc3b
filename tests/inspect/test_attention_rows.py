"""Exact rows are those of a plain forward, also for a text whose maps are reduced; a second row computes nothing."""

import numpy as np
import pytest
import torch

from glassformer.inspect import attention_rows
from glassformer.inspect.attention_rows import AttentionRows
from glassformer.inspect.explanation import explain
from glassformer.inspect.json_values import unpack
from glassformer.nn import capture_attention
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make

TEXT = "the old cat sees the saw"
CASES = [
    (Classifier, "encoder.layers.0.self_attn"),
    (LanguageModel, "decoder.layers.0.self_attn"),
    (Translator, "decoder.layers.0.cross_attn"),
    (Translator, "encoder.layers.0.self_attn"),
]


@pytest.mark.parametrize(("kind", "attention"), CASES)
def test_rows_are_those_of_a_plain_forward(kind, attention):
    pipe = make(kind)
    found = explain(pipe, TEXT, name="tiny", parts=["attention"], max_tokens=4).data["text"]
    sides = {side: torch.tensor([one["ids"]]) for side, one in found.items() if one is not None}
    inputs = sides if pipe.model.kind == "encoder_decoder" else {"tokens": sides.get("target", sides["source"])}
    with torch.no_grad(), capture_attention(pipe.model) as captured:
        pipe.model(**inputs)
    rows, target = AttentionRows(), None if found["target"] is None else found["target"]["ids"]
    for query in (0, 2):
        row = rows.row(pipe, TEXT, attention, query, target_ids=target)
        assert (row["attention"], row["query"]) == (attention, query)
        np.testing.assert_allclose(unpack(row["weights"]), captured[attention][0, :, query], atol=1e-4)


@pytest.mark.parametrize("kind", [Classifier, LanguageModel, Translator])
def test_rows_of_the_rollout_are_those_of_the_explanation(kind):
    pipe = make(kind)
    found = explain(pipe, TEXT, name="tiny", parts=["attention"], max_tokens=4).data
    target = found["text"]["target"]
    for part, expected in found["rollout"].items():
        if expected is None:
            continue
        row = AttentionRows().row(pipe, TEXT, f"rollout.{part}", 2, target_ids=target and target["ids"])
        np.testing.assert_allclose(unpack(row["weights"])[0], unpack(expected)[2], atol=1e-4)


def test_other_rows_of_the_map_do_not_run_the_model(monkeypatch):
    pipe, calls = make(Classifier), []
    pipe.model.register_forward_hook(lambda *_: calls.append(1))
    rows = AttentionRows()
    for query in (0, 1, 2):
        rows.row(pipe, TEXT, "encoder.layers.0.self_attn", query)
    assert len(calls) == 1
    whole = rows.row(pipe, TEXT, "encoder.layers.0.self_attn", 0)
    without = rows.row(pipe, TEXT, "encoder.layers.0.self_attn", 0, without=["positions"])
    assert len(calls) == 2
    assert without != whole
    monkeypatch.setattr(attention_rows, "MOST_KEPT", 10)
    for query in (0, 1):
        rows.row(pipe, TEXT, "encoder.layers.0.self_attn", query)
    assert len(calls) == 4, "a large map is not kept"


@pytest.mark.parametrize(
    ("kind", "attention", "options", "message"),
    [
        (Classifier, "encoder.layers.9.self_attn", {}, "attention='encoder.layers.9.self_attn'"),
        (Classifier, "encoder.layers.0.self_attn", {"query": 99}, "query=99: expected 0 to"),
        (Classifier, "encoder.layers.0.self_attn", {"target_ids": [1]}, "without a decoder"),
        (Translator, "decoder.layers.0.self_attn", {}, "target_ids is missing"),
        (Translator, "decoder.layers.0.self_attn", {"target_ids": [10**6]}, "target_ids holds 1000000"),
        (Translator, "decoder.layers.0.self_attn", {"target_ids": []}, "target_ids holds 0 tokens"),
        (Translator, "decoder.layers.0.self_attn", {"target_ids": [1], "without": ["x"]}, "no part 'x'"),
    ],
)
def test_wrong_requests_are_refused(kind, attention, options, message):
    options = {"query": 0, **options}
    with pytest.raises(ValueError, match=message):
        AttentionRows().row(make(kind), TEXT, attention, **options)
