"""The balance loss is HF's, it reaches the router, and training with it spreads the tokens over the experts."""

import random

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.models import build_model, preset
from glassformer.tasks.decoder_task import packed_loss
from glassformer.training.balance_loss import RoutedTokens, balance_loss, watching_routers
from glassformer.training.train_config import TrainConfig


def test_the_loss_is_hfs_for_random_sizes(count):
    for seed in range(count(10, 200)):
        choose = random.Random(seed)
        torch.manual_seed(seed)
        n_experts, rows, length = choose.choice([2, 5, 8]), choose.choice([1, 3]), choose.choice([1, 7])
        per_token = choose.randint(1, n_experts)
        scores = [torch.randn(rows, length, n_experts, requires_grad=True) for _ in range(choose.choice([1, 3]))]
        real = choose.choice([None, torch.rand(rows, length) < 0.7])
        if real is not None:
            real[0, 0] = True
        expected = load_balancing_loss_func(
            tuple(one.flatten(0, 1) for one in scores), n_experts, per_token, None if real is None else real.long()
        )
        found = balance_loss(scores, per_token, real)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(one, scores) for one in (found, expected)]
        torch.testing.assert_close(*gradients)


def batch_of(targets=None):
    torch.manual_seed(0)
    tokens = torch.randint(0, 40, (2, 8))
    targets = torch.randint(0, 40, (2, 8)) if targets is None else targets
    return PackedBatch(tokens, targets, torch.empty(0, dtype=torch.long))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_loss_of_a_batch_has_the_balance_loss_for_each_target(checkpointing):
    torch.manual_seed(0)
    model, batch = build_model(preset("tiny-mixtral", expert_balance=0.5)), batch_of()
    model.set_gradient_checkpointing(checkpointing)
    train, scores = TrainConfig(label_smoothing=0.0), []
    with watching_routers(model, scores.append):
        logits = model(batch.tokens)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    expected = plain + 0.5 * 16 * balance_loss(scores, 2)
    found = packed_loss(model, train, batch)
    torch.testing.assert_close(found, expected)
    router = model.decoder.layers[0].ffn.router.weight
    gradients = [torch.autograd.grad(loss, router, retain_graph=True)[0] for loss in (found, expected, plain)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert not torch.allclose(gradients[0], gradients[2])
    assert not any(module._forward_hooks for module in model.modules())


def test_documents_without_targets_do_not_count():
    numbers = torch.tensor([[0, 0, 1, 1], [3, 3, 4, 4]])
    targets = torch.tensor([[5, -100, -100, -100], [-100, -100, -100, 2]])
    batch = PackedBatch(numbers, targets, numbers)
    assert batch.is_learned_document().tolist() == [[True, True, False, False], [False, False, True, True]]
    assert batch_of().is_learned_document() is None


def test_training_with_the_loss_spreads_the_tokens():
    found = {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model, batch = build_model(preset("tiny-olmoe", expert_balance=weight, d_model=32)), batch_of()
        with torch.no_grad():
            for layer in model.decoder.layers:
                layer.ffn.router.weight.normal_(std=0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(20):
            optimizer.zero_grad()
            packed_loss(model, TrainConfig(label_smoothing=0.0), batch).div(16).backward()
            optimizer.step()
        routed = RoutedTokens(2)
        with torch.no_grad(), watching_routers(model, routed.add):
            model(batch.tokens)
        found[weight] = routed.choices.max() / routed.choices.sum()
        assert "the busiest of 4 is chosen for" in routed.in_words()
    assert found[1.0] < found[0.0]
    assert found[1.0] < 0.32
