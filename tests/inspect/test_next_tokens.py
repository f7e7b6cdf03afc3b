"""Candidates and the sums of the rest give exact probabilities at any temperature."""

import pytest
import torch

from glassformer.inspect import next_tokens
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.next_tokens import TEMPERATURES, describe_next, rest_log_sums
from glassformer.inspect.pipeline_text import read_text
from glassformer.pipelines.language_model import LanguageModel
from pipelines.tiny_pipelines import make


def test_rest_and_candidates_give_every_temperature():
    logits = torch.randn(100) * 3
    best = logits.topk(10)
    sums = rest_log_sums(logits, best.indices)
    for temperature, rest in zip(TEMPERATURES, sums, strict=True):
        total = torch.logsumexp(torch.cat((best.values / temperature, torch.tensor([rest]))), 0)
        found = (best.values / temperature - total).exp()
        expected = (logits / temperature).softmax(-1)[best.indices]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert rest_log_sums(logits, torch.arange(100)) is None


def test_long_texts_have_few_candidates_at_first(monkeypatch):
    monkeypatch.setattr(next_tokens, "LAST_POSITIONS", 2)
    read = read_text(make(LanguageModel), "the old cat sees", ExplainOptions(max_tokens=3))
    with torch.no_grad():
        output = read.model(**read.inputs())
        found = describe_next(read, output)
    assert [len(one["candidates"]) for one in found][-3:] == [5, 50, 50]
    assert found[0]["rest_log_sums"] is None
    assert found[-1]["chosen"]["id"] == int(output[0, -1].argmax())
    assert found[-1]["rest"] == pytest.approx(1 - float(output[0, -1].softmax(-1).topk(50).values.sum()), abs=1e-5)
