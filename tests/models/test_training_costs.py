"""Memory and time of a training step."""

import json
from pathlib import Path

import pytest

from glassformer.models import ModelConfig, preset
from glassformer.models.cluster_plan import MACHINES
from glassformer.models.costs import count_parameters, training_flops
from glassformer.models.training_costs import (
    StepShape,
    layer_units,
    state_bytes,
    step_flops,
    step_memory,
    step_seconds,
    validation_bytes,
)

RUNS = json.loads((Path(__file__).parents[2] / "benchmarks" / "measured_runs.json").read_text(encoding="utf-8"))["runs"]
LLAMA = preset("tiny-llama", d_model=64, d_ff=128, n_decoder_layers=4, vocab_size=1000)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_measured_runs_are_predicted(run):
    config, machine = ModelConfig(**run["model"]), MACHINES[run["machine"]]
    shape = StepShape(run["rows"], run["source_length"], run["target_length"])
    options = {"checkpointing": run.get("checkpointing", False)}
    if "peak_gib" in run:
        memory = step_memory(config, shape, is_alone=True, **options).total
        assert memory / 2**30 == pytest.approx(run["peak_gib"], rel=0.1)
    seconds = step_seconds(config, shape, peak_flops=machine.peak_flops, bandwidth=machine.bandwidth, **options)
    if "tokens_per_second" in run:
        measured = run["rows"] * run["target_length"] / run["tokens_per_second"]
        assert seconds == pytest.approx(measured, rel=0.2)


def test_what_a_layer_keeps_is_counted():
    plain = preset("gpt2")
    assert layer_units(plain, has_memory=False) == 1 + 2 + 4 + 8
    assert layer_units(plain, has_memory=True) == 1 + 3 + 8 + 8
    assert layer_units(plain, has_memory=False, tensor=2) == 1 + 2 + (4 + 8) / 2


def test_sharing_and_checkpointing_need_less_memory():
    shape = StepShape(8, 0, 128)
    whole = step_memory(LLAMA, shape)
    assert whole.states == 14 * count_parameters(LLAMA)
    assert whole.gradients == 6 * count_parameters(LLAMA)
    assert whole.working == whole.activations / LLAMA.n_decoder_layers
    assert whole.logits == 2 * 8 * 128 * 1024, "the vocabulary is padded"
    assert step_memory(LLAMA, shape, shard=64).states < whole.states
    assert step_memory(LLAMA, shape, tensor=2).activations < whole.activations
    assert step_memory(LLAMA, shape, checkpointing=True).activations < whole.activations
    assert step_flops(LLAMA, shape) == training_flops(LLAMA, batch=8, target_length=128)


def test_checkpointing_takes_longer_and_accumulated_updates_less():
    shape, speed = StepShape(8, 0, 128), {"peak_flops": 1e12, "bandwidth": 1e11}
    usual = step_seconds(LLAMA, shape, **speed)
    assert step_seconds(LLAMA, shape, checkpointing=True, **speed) > usual
    assert step_seconds(LLAMA, shape, updates=0.5, **speed) < usual


def test_states_are_counted_once_for_plans_and_for_the_estimate_of_a_run():
    assert state_bytes(100) == 1600  # weights, gradients and two moments in float32
    assert state_bytes(100, 10) == 400 + 40 + 80
    assert state_bytes(100, 10, moments=7, copy=5) == 400 + 40 + 7 + 5
    config = preset("tiny-llama")
    n_parameters = count_parameters(config)
    memory = step_memory(config, StepShape(1, 0, 8), keeps_gradients=True)
    assert memory.states == state_bytes(n_parameters, copy=2 * n_parameters)


def test_sharded_layers_are_whole_one_after_the_other_and_embeddings_always():
    config = preset("tiny-llama", d_model=64, n_decoder_layers=4, vocab_size=1000, tie="none")
    tables, inner = 2 * 64 * 1000 + 64, count_parameters(config) - 2 * 64 * 1000 - 64
    copied = tables + 2 * inner / 4
    found = step_memory(config, StepShape(1, 0, 8), shard=1000)
    assert found.states == pytest.approx(2 * copied, rel=0.01)
    assert found.gradients == pytest.approx(2 * copied, rel=0.01)


def test_a_validation_needs_the_whole_model_beside_the_own_states():
    assert validation_bytes(1000, 10) == 4 * 1000 + (4 + 8) * 10
