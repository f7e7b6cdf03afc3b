"""C++ kernels are chosen by the settings of a run, so that a resumed run chooses the same."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import cpu_kernels, gradient_setup
from glassformer.training.cpu_kernels import ASSUMED_RATE, PAYS_FROM, choose_cpu_kernels
from training.tiny_trainer import CONFIG, make_trainer

WHAT = "attention (of up to 128 tokens, without score bias or window), activations, residual connections, dropout"
NOTE = f"C++ kernels compute {WHAT}"


@pytest.fixture
def builds(monkeypatch):
    """The kernels are not compiled; the number of times that they would be is counted. No memory is kept."""
    counts = []
    monkeypatch.setattr(gradient_setup, "build_training_kernels", lambda: counts.append(1))
    monkeypatch.setattr(cpu_kernels, "keep_freed_memory", lambda: None)
    return counts


def make(folder, **options):
    config = replace(CONFIG, **options)
    return make_trainer(folder, config, loss_of=lambda model: partial(pair_loss, model, config))


@pytest.mark.parametrize(
    ("options", "seconds", "is_used"),
    [
        ({"minutes": 1.0}, 0.0, True),
        ({"minutes": 0.1}, 1e9, False),
        ({"updates": 10}, 1.1 * PAYS_FROM, True),
        ({"updates": 10}, 0.9 * PAYS_FROM, False),
        ({"updates": 10, "compile": "off"}, 1e9, False),
        ({"updates": 10, "precision": "bf16"}, 1e9, False),
    ],
)
def test_long_runs_in_float32_use_them(tmp_path, builds, monkeypatch, options, seconds, is_used):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    trainer = make(tmp_path, **options)
    lines = choose_cpu_kernels(trainer, seconds * ASSUMED_RATE / 10)
    assert lines == ([NOTE] if is_used else [])
    assert (trainer.setup.cpu_layers is not None) == is_used == bool(builds)


@pytest.mark.parametrize(("has_kernels", "note"), [(True, f"linear layers in bf16, {WHAT}"), (False, WHAT)])
def test_runs_in_bf16_use_them_on_a_cpu_with_amx(tmp_path, builds, monkeypatch, has_kernels, note):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(gradient_setup, "has_products", lambda: has_kernels)
    trainer = make(tmp_path, minutes=1.0, precision="bf16")
    assert choose_cpu_kernels(trainer, 1.0) == [f"C++ kernels compute {note}"]
    with trainer.gradients.layers():
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"


@pytest.mark.parametrize(("began", "later"), [(True, {"updates": 20}), (False, {"minutes": 60.0})])
def test_a_resumed_run_keeps_what_it_began_with(tmp_path, builds, began, later):
    trainer = make(tmp_path, updates=3)
    if began:
        trainer.setup.use_cpu_kernels()
    trainer.run()
    resumed = make(tmp_path, **later)
    assert bool(choose_cpu_kernels(resumed, 1.0)) == began
    assert (resumed.setup.cpu_layers is not None) == began
    assert choose_cpu_kernels(make(tmp_path, compile="off", **later), 1.0) == []


@pytest.mark.parametrize("began", [True, False])
def test_a_resumed_run_with_other_kernels_of_linear_layers_says_so(tmp_path, builds, monkeypatch, began):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    for has_kernels in (began, not began):
        monkeypatch.setattr(gradient_setup, "has_products", lambda has=has_kernels: has)
        trainer = make(tmp_path, minutes=60.0, precision="bf16")
        lines = choose_cpu_kernels(trainer, 1.0)
        if has_kernels == began:
            assert len(lines) == 1
            trainer.state.has_cpu_kernels, trainer.state.has_bf16_kernels = True, began
            trainer.save()
    now = "torch now computes" if began else "C++ kernels now compute"
    assert lines[1:] == [f"{now} the linear layers: results differ from those of an uninterrupted run"]


def test_a_model_without_such_layers_compiles_nothing(tmp_path, builds):
    trainer = make(tmp_path, minutes=60.0)
    trainer.setup.model = torch.nn.Linear(2, 2)
    assert choose_cpu_kernels(trainer, 1.0) == []
    assert not builds


def test_a_failed_build_is_one_line_and_training_goes_on(tmp_path, builds, monkeypatch):
    def fail():
        raise KernelBuildError("no C++ compiler was found")

    monkeypatch.setattr(gradient_setup, "build_training_kernels", fail)
    trainer = make(tmp_path, minutes=5.0)
    (line,) = choose_cpu_kernels(trainer, 1.0)
    assert "no C++ compiler was found" in line
    assert trainer.setup.cpu_layers is None
    trainer._update()


def test_a_cpu_without_kernels_gets_no_line(tmp_path, builds, monkeypatch):
    def fail():
        raise UnsupportedCPUError("no kernels for this CPU")

    monkeypatch.setattr(gradient_setup, "build_training_kernels", fail)
    assert choose_cpu_kernels(make(tmp_path, minutes=5.0), 1.0) == []
