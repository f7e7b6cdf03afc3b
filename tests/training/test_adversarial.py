"""Adversarial training: the second pass is where the formula says, and nothing of it stays in the weights."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.nn import Dropout
from glassformer.training.adversarial import shifted_embeddings, token_tables
from glassformer.training.stop_signals import Interrupted
from training.tiny_trainer import CONFIG, fingerprint, make_trainer

ADVERSARIAL = replace(CONFIG, adversarial=0.5, clip=0.0)


def without_dropout(trainer):
    trainer.model.double()
    for module in trainer.model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    return trainer


def gradient_of_an_update(trainer):
    """Compute the gradient of the first update, without stepping the optimizer."""
    trainer._apply = lambda lr, norm: None
    trainer._update()
    return [p.grad.clone() for p in trainer.model.parameters()]


def test_the_gradient_is_that_of_both_points(tmp_path):
    model = without_dropout(trainer := make_trainer(tmp_path, ADVERSARIAL)).model
    plain = without_dropout(make_trainer(tmp_path, replace(ADVERSARIAL, adversarial=0.0)))
    here = gradient_of_an_update(plain)
    tables, names = token_tables(plain.model), [name for name, _ in plain.model.named_parameters()]
    assert tables
    of_tables = [table.grad for table in tables]
    norm = torch.cat([g.flatten() for g in of_tables]).norm()
    with torch.no_grad():
        for table, gradient in zip(tables, of_tables, strict=True):
            table += 0.5 * gradient / norm
    plain.state.position = 0
    there = gradient_of_an_update(plain)
    for name, both, *parts in zip(names, gradient_of_an_update(trainer), here, there, strict=True):
        torch.testing.assert_close(both, sum(parts), atol=1e-12, rtol=1e-9, msg=name)
    assert model.training


def test_the_tables_have_their_old_bits_after_the_block():
    model = build_model(preset("tiny-bert-base"))
    (table,) = token_tables(model)
    table.grad = torch.randn_like(table)
    before = table.detach().clone()
    with shifted_embeddings(model, 3.0):
        torch.testing.assert_close((table - before).norm().item(), 3.0, atol=1e-4, rtol=0)
    assert torch.equal(table, before)


def test_an_error_inside_the_block_restores_the_tables_too():
    model = build_model(preset("tiny-bert-base"))
    (table,) = token_tables(model)
    table.grad = torch.randn_like(table)
    before = table.detach().clone()

    def fail():
        with shifted_embeddings(model, 3.0):
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(table, before)


def test_a_gradient_of_zero_shifts_nothing():
    model = build_model(preset("tiny-bert-base"))
    (table,) = token_tables(model)
    table.grad = torch.zeros_like(table)
    before = table.detach().clone()
    with shifted_embeddings(model, 3.0):
        assert torch.equal(table, before)


def test_an_encoder_decoder_shares_one_table():
    assert len(token_tables(build_model(preset("tiny-transformer-base")))) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fingerprint(make_trainer(tmp_path_factory.mktemp("run") / "checkpoints", ADVERSARIAL).run())


def test_a_second_pass_changes_what_is_learned(tmp_path, whole):
    assert whole != fingerprint(make_trainer(tmp_path / "plain", replace(ADVERSARIAL, adversarial=0.0)).run())


@pytest.mark.parametrize("stop_at", [2, 3, 9])
def test_an_interrupted_run_is_bit_identical(tmp_path, whole, stop_at):
    """Batches 3 and 4 of an update are the second pass: a signal there must not save shifted embeddings."""
    trainer, seen = make_trainer(tmp_path / "parts", ADVERSARIAL), []
    plain = trainer.loss

    def loss(batch):
        seen.append(1)
        if len(seen) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(batch)

    trainer.gradients.loss = loss
    with pytest.raises(Interrupted):
        trainer.run()
    assert fingerprint(make_trainer(tmp_path / "parts", ADVERSARIAL).run()) == whole


def test_embeddings_that_are_not_trained_are_an_error(tmp_path):
    trainer = make_trainer(tmp_path)
    for table in token_tables(trainer.model):
        table.requires_grad_(False)
    with pytest.raises(ValueError, match=r"adversarial=0\.5: this model's token embeddings are not trained"):
        type(trainer)(
            model=trainer.model,
            config=ADVERSARIAL,
            batches=trainer.batches,
            loss=trainer.loss,
            evaluate=trainer.evaluate,
            folder=tmp_path,
        )
