import pytest
import torch

from glassformer.decoding.scoring import score_texts
from glassformer.models import preset
from glassformer.serve import text_generation
from glassformer.serve.api_errors import ApiError
from glassformer.serve.text_generation import check_prompt_ids, finish_reason, score_prompt, usage
from oracle import random_model


def test_the_tokens_of_a_prompt_are_scored(monkeypatch):
    monkeypatch.setattr(text_generation, "SCORED_AT_ONCE", 3)
    model = random_model(preset("tiny-gpt2"))
    tokens = [5, 6, 7, 8, 9, 10, 11, 5]
    found = score_prompt(model, tokens, 2)
    assert found.log_probs[0] is None
    torch.testing.assert_close(torch.tensor(found.log_probs[1:]), torch.tensor(score_texts(model, [tokens])[0]))
    with torch.inference_mode():
        best = model(torch.tensor([tokens]))[0, :-1].topk(2).indices.tolist()
    assert [[token for token, _ in top] for top in found.top[1:]] == best
    assert score_prompt(model, [5], 1).log_probs == [None]


def test_ends_have_openais_names():
    assert [finish_reason(reason) for reason in (None, "end", "stop", "length")] == [None, "stop", "stop", "length"]


def test_token_ids_are_checked():
    check_prompt_ids("prompt", [[1, 2]], 3)
    with pytest.raises(ApiError, match="expected token ids from 0 to 2"):
        check_prompt_ids("prompt", [[1, 3]], 3)
    with pytest.raises(ApiError, match="empty list"):
        check_prompt_ids("prompt", [[]], 3)


def test_usage_adds_up():
    assert usage(3, 4, 2) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
