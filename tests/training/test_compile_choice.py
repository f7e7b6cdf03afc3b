"""Whether layers are compiled is decided by the option, an earlier checkpoint, or a trial."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import compile_choice, gradient_setup
from glassformer.training.compile_choice import choose_compilation
from glassformer.training.compute_copy import ComputeCopy
from training.tiny_trainer import CONFIG, make_trainer


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    for name in ("compile_layers", "uncompile_layers"):
        monkeypatch.setattr(gradient_setup, name, lambda module, **options: None)
    monkeypatch.setattr(compile_choice, "check_cpp_compiler", lambda: None)


def make(folder, is_gpu=True, **options):
    """Return a trainer that looks as if its model were on a GPU."""
    config = replace(CONFIG, **options)
    trainer = make_trainer(folder, config, loss_of=lambda model: partial(pair_loss, model, config))
    if is_gpu and not config.adversarial:
        trainer.setup.copy = ComputeCopy(trainer.model, torch.float32)
        trainer.device = torch.device("cuda")
    return trainer


def test_on_and_off_need_no_trial(tmp_path):
    trainer = make(tmp_path, is_gpu=False, compile="on")
    assert choose_compilation(trainer) == []
    assert trainer.setup.is_compiled
    trainer = make(tmp_path, compile="off")
    assert choose_compilation(trainer) == []
    assert not trainer.setup.is_compiled
    assert "not compiled" in choose_compilation(make(tmp_path, compile="on", adversarial=1.0))[0]


def test_auto_does_not_compile_on_a_cpu(tmp_path):
    trainer = make(tmp_path, is_gpu=False)
    assert choose_compilation(trainer) == []
    assert not trainer.setup.is_compiled


@pytest.mark.parametrize(
    ("plain", "compiled", "expected", "words"),
    [(1.0, 0.5, False, "less than 120 s"), (50.0, 20.0, True, "instead of 50000"), (50.0, 60.0, False, "a trial took")],
)
def test_auto_compiles_a_long_run_if_a_trial_is_faster(tmp_path, monkeypatch, plain, compiled, expected, words):
    monkeypatch.setattr(
        compile_choice, "_seconds_per_batch", lambda trainer: compiled if trainer.setup.is_compiled else plain
    )
    trainer = make(tmp_path)
    (line,) = choose_compilation(trainer)
    assert words in line
    assert trainer.setup.is_compiled == expected


def test_a_resumed_run_keeps_its_choice(tmp_path):
    before = make(tmp_path, is_gpu=False)
    before.setup.is_compiled = True
    before.run()
    trainer = make(tmp_path)
    assert choose_compilation(trainer) == []
    assert trainer.setup.is_compiled


def test_a_trial_leaves_the_trainer_as_it_was(tmp_path):
    trainer = make(tmp_path, is_gpu=False)
    before = torch.get_rng_state()
    assert compile_choice._seconds_per_batch(trainer) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_on_needs_a_compiler_on_a_cpu(tmp_path, monkeypatch):
    def fail():
        raise ValueError("compile='on': torch finds no C++ compiler")

    monkeypatch.setattr(compile_choice, "check_cpp_compiler", fail)
    with pytest.raises(ValueError, match=r"no C.. compiler"):
        choose_compilation(make(tmp_path, is_gpu=False, compile="on"))
    choose_compilation(make(tmp_path, is_gpu=False, compile="auto"))
