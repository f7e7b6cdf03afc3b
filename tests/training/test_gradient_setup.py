"""A copy of the model trains like the model, and a run that reads its numbers late resumes with the same bits."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.nn import Dropout
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import gradient_setup
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.stop_signals import Interrupted
from glassformer.training.trainer import DivergedError
from training.tiny_trainer import CONFIG, fingerprint, make_trainer


def make(folder, config=CONFIG, *, copied=True, late=True, dropout=None, **options):
    """Return a trainer that computes gradients with a copy and reads numbers late, as on a GPU."""
    trainer = make_trainer(folder, config, loss_of=lambda model: partial(pair_loss, model, config), **options)
    if dropout is not None:
        for module in trainer.model.modules():
            if isinstance(module, Dropout):
                module.p = dropout
    if copied:
        trainer.setup.copy = ComputeCopy(trainer.model, torch.float32)
        trainer.setup.copy.module.train()
        trainer.gradients = trainer.setup.gradients()
    trainer.is_async = late
    return trainer


def test_the_copy_has_the_gradient_of_the_model(tmp_path):
    gradients = []
    for copied in (False, True):
        trainer = make(tmp_path / str(copied), replace(CONFIG, clip=0.0), copied=copied, late=False, dropout=0.0)
        trainer._update()
        gradients.append([parameter.grad for parameter in trainer.model.parameters()])
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-4)


def test_numbers_are_reported_in_order_and_once(tmp_path):
    updates = []
    trainer = make(tmp_path, on_update=updates.append)
    trainer.run()
    assert [update.position for update in updates] == [*range(1, CONFIG.updates + 1)]
    assert trainer.state.position == trainer.state.update == CONFIG.updates


@pytest.mark.parametrize(("bad", "stops"), [(None, [4]), (4, [4, 5])])
def test_a_run_stopped_anywhere_resumes_with_the_same_bits(tmp_path, bad, stops):
    """Also next to an update that is skipped because its loss is not finite."""

    def run(folder, stop=None):
        trainer = make(folder, replace(CONFIG, updates=7, accumulate=1, average_last=0, eval_every=7, save_every=7))
        plain, calls = trainer.gradients.add, []

        def add(batch, *, divisor, scale):
            calls.append(batch)
            loss = plain(batch, divisor=divisor, scale=scale)
            return loss * (math.nan if is_bad(batch) else 1.0)

        def is_bad(batch):
            return bad is not None and all(torch.equal(a, b) for a, b in zip(batch, trainer.batches[bad], strict=True))

        def stop_at(update):
            if update.position == stop:
                trainer._signals.received = 15

        trainer.gradients.add, trainer.on_update = add, stop_at
        return trainer

    whole = run(tmp_path / "whole")
    right = fingerprint(whole.run())
    assert whole.state.skipped == (bad is not None)
    for stop in stops:
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            run(folder, stop).run()
        assert fingerprint(run(folder).run()) == right


def test_a_run_that_diverges_is_noticed_one_update_late(tmp_path):
    trainer = make(tmp_path, replace(CONFIG, updates=50, eval_every=100, save_every=100))
    plain = trainer.gradients.add
    trainer.gradients.add = lambda batch, **numbers: plain(batch, **numbers) * math.nan
    with pytest.raises(DivergedError, match="5 steps in a row"):
        trainer.run()


def test_copies_are_made_only_where_they_are_useful(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_setup, "compile_layers", lambda module, in_processes: None)

    def setup(**options):
        config = replace(CONFIG, **options)
        made = make_trainer(tmp_path, config, loss_of=lambda model: partial(pair_loss, model, config))
        return made.setup

    assert setup().copy is None
    assert setup(compile="on").copy is not None
    assert setup(compile="on", adversarial=1.0).copy is None
    assert make_trainer(tmp_path, replace(CONFIG, compile="on")).setup.copy is None
    compiled = setup(compile="on")
    assert compiled.copy_bytes > 0
    compiled.set_compiled(True)
    assert compiled.is_compiled
