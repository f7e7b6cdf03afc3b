"""Stepping Adam with the gradients of a copy changes the model as moving them to the model first does."""

import copy
import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import gradient_setup, trainer
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.copy_update import CopyUpdate
from glassformer.training.optimizers import make_optimizer
from glassformer.training.stop_signals import Interrupted
from glassformer.training.train_config import TrainConfig
from training.tiny_trainer import CONFIG, make_trainer

FINITE = torch.zeros(())


class Side:
    """A model with its copy and its optimizer."""

    def __init__(self, optimizer="adamw"):
        torch.manual_seed(0)
        self.model = build_model(preset("tiny-gpt2", vocab_size=61)).eval()
        self.copied = ComputeCopy(self.model, torch.bfloat16)
        self.optimizer = make_optimizer(self.model, TrainConfig(optimizer=optimizer, lr=0.01, weight_decay=0.1))
        self.update = CopyUpdate(self.optimizer, self.copied)

    def backward(self, seed):
        tokens = torch.randint(1, 61, (2, 5), generator=torch.Generator().manual_seed(seed))
        self.copied.module(tokens).float().square().sum().backward()

    def step_at_once(self, seed, scale=None, found_inf=FINITE):
        self.backward(seed)
        gradients = [parameter.grad for parameter in self.copied.learned]
        self.update.step(gradients, found_inf=found_inf, grad_scale=scale)
        for parameter in self.copied.learned:
            parameter.grad = None

    def step_by_moving(self, seed, scale=1.0):
        self.backward(seed)
        self.copied.push(add=False)
        for parameter in self.model.parameters():
            parameter.grad /= scale
        self.optimizer.step()
        self.copied.pull()


def check_equal(one, other):
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        assert one.optimizer.state[a]["step"] == other.optimizer.state[b]["step"]
    for a, b in zip(one.copied.learned, other.copied.learned, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=2**-7)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_both_ways_to_update_agree(optimizer):
    one, other = Side(optimizer), Side(optimizer)
    for seed in range(3):
        one.step_at_once(seed, scale=torch.tensor(2.0))
        other.step_by_moving(seed, scale=2.0)
        check_equal(one, other)


def test_an_update_that_is_not_finite_does_not_count():
    one, other = Side(), Side()
    one.step_at_once(0)
    one.step_at_once(1, found_inf=torch.ones(()))
    other.step_at_once(0)
    check_equal(one, other)


def test_the_state_of_a_checkpoint_is_used():
    one, other = Side(), Side()
    one.step_at_once(0)
    other.step_at_once(1)  # creates other moments, which the loaded ones replace
    with torch.no_grad():
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            b.copy_(a)
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    other.copied.pull()
    one.step_at_once(2)
    other.step_at_once(2)
    check_equal(one, other)


def test_a_step_does_not_keep_the_gradients():
    """Their memory is needed in the next backward pass."""
    side = Side()
    side.backward(0)
    gradients = [parameter.grad for parameter in side.copied.learned]
    kept = [weakref.ref(gradient.untyped_storage()) for gradient in gradients]
    side.update.norm(gradients)
    side.update.step(gradients, found_inf=FINITE, grad_scale=None)
    for parameter in side.copied.learned:
        parameter.grad = None
    del gradients
    gc.collect()
    assert not any(reference() for reference in kept)


def test_parameters_with_new_memory_are_updated():
    one, other = Side(), Side()
    for side in (one, other):
        side.step_at_once(0)
    for parameter in one.model.parameters():
        parameter.data = parameter.data.clone()
    for side in (one, other):
        side.step_at_once(1)
    check_equal(one, other)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_with_it_equals_one_without(tmp_path, monkeypatch, is_stopped):
    config = replace(CONFIG, accumulate=1, optimizer="adamw", weight_decay=0.1, compile="on", clip=0.5)
    options = {"config": config, "loss_of": lambda model: partial(pair_loss, model, config)}
    right = make_trainer(tmp_path / "right", **options)
    assert right.setup.copy is not None
    right.run()
    monkeypatch.setattr(gradient_setup, "can_use_kernel", lambda device, dtype: True)
    monkeypatch.setattr(trainer, "can_apply_on_device", lambda optimizer, device: True)
    if is_stopped:
        first = make_trainer(tmp_path / "run", **options)
        first.on_update = lambda update: setattr(first._signals, "received", 2 if update.update == 4 else None)
        with pytest.raises(Interrupted):
            first.run()
    second = make_trainer(tmp_path / "run", **options)
    assert second.gradients.stays_in_copy
    second.run()
    # Biases of keys have a gradient of zero, whose rounding errors Adam enlarges; so scores are compared.
    scores = [[one.scores["loss"] for one in run.state.evaluations] for run in (right, second)]
    assert len(scores[0]) >= 3
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
