"""Experts: both ways of computing them agree, and each token goes to the experts with the largest scores."""

import random

import pytest
import torch

from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.nn.feedforward import FeedForward


def network(seed, **changes):
    choose = random.Random(seed)
    settings = {
        "per_token": choose.choice([1, 2, 3]),
        "normalize": choose.random() < 0.5,
        "shared_d_ff": choose.choice([None, 5]),
        "activation": choose.choice(["relu", "silu"]),
        "gated": choose.random() < 0.5,
        "bias": choose.random() < 0.5,
    }
    torch.manual_seed(seed)
    made = ExpertFeedForward(6, 10, choose.choice([3, 5]), **{**settings, **changes}).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_all_experts_and_the_chosen_ones_give_the_same_outputs_and_gradients(seed):
    made, x = network(seed), torch.randn(3, 4, 6, dtype=torch.float64)
    outputs, gradients = [], []
    for has_fixed_shapes in (False, True):
        made.zero_grad()
        given = x.clone().requires_grad_()
        found = made(given, has_fixed_shapes=has_fixed_shapes)
        found.square().sum().backward()
        outputs.append(found)
        gradients.append([given.grad, *(parameter.grad for parameter in made.parameters())])
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)
    with torch.inference_mode():
        torch.testing.assert_close(made(x), outputs[0])


def test_a_token_is_the_weighted_sum_of_its_experts():
    made = network(0, per_token=2, normalize=True, shared_d_ff=None)
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    scores = made.router(x)[0, 0].softmax(-1)
    first, second = scores.argsort(descending=True)[:2].tolist()
    share = scores[first] / (scores[first] + scores[second])
    expected = share * made.experts[first](x) + (1 - share) * made.experts[second](x)
    torch.testing.assert_close(made(x), expected)


def test_one_expert_is_a_plain_feed_forward_network():
    torch.manual_seed(0)
    made, plain = ExpertFeedForward(6, 10, 1, per_token=1), FeedForward(6, 10)
    plain.load_state_dict(made.experts[0].state_dict())
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(made(x), plain(x))


def test_an_expert_without_tokens_gets_a_gradient_of_zeros():
    made = network(0, per_token=1)
    made(torch.randn(1, 1, 6, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_compiled_code_computes_all_experts_without_a_break():
    made, x = network(1), torch.randn(2, 3, 6, dtype=torch.float64)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), made(x))


def test_probabilities_are_computed_in_float32():
    made = network(0, shared_d_ff=None).to(torch.bfloat16)
    seen = []
    made.router.register_forward_hook(lambda module, given, found: seen.append(found))
    weights, _ = made.route(torch.randn(2, 3, 6, dtype=torch.bfloat16))
    wide = seen[0].float().softmax(-1).flatten(0, -2).topk(made.per_token).values
    wide = wide / wide.sum(-1, keepdim=True) if made.normalize else wide
    assert torch.equal(weights, wide.bfloat16())


@pytest.mark.parametrize("per_token", [0, 4])
def test_a_token_cannot_have_more_experts_than_there_are(per_token):
    with pytest.raises(ValueError, match=f"per_token={per_token}: expected 1 to 3, the number of experts"):
        ExpertFeedForward(6, 10, 3, per_token=per_token)
