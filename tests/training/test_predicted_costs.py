"""`train` on a GPU prints what `plan` predicts. Here the GPU is only a name."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.models.cluster_plan import MACHINES, predict_update
from glassformer.models.costs import training_flops
from glassformer.models.training_costs import StepShape
from glassformer.training.estimate import Estimate
from glassformer.training.parallel import Layout
from glassformer.training.predicted_costs import PredictedCosts, find_machine, predict_run, step_shape
from glassformer.training.train_config import TrainConfig

CONFIG = preset("tiny-llama")
TRAIN = TrainConfig(updates=10, optimizer="adamw", precision="bf16", device="cpu")


def trainer_of(train=TRAIN, layout=Layout(), precision="bf16", rows=8):  # noqa: B008
    batches = [SimpleNamespace(tokens=torch.zeros(rows, length)) for length in [16] * 9 + [32]]
    return SimpleNamespace(
        config=train,
        model=build_model(CONFIG),
        batches=batches,
        device=torch.device("cpu"),
        precision=precision,
        parallel=SimpleNamespace(layout=layout),
    )


def flops_of(batch):
    rows, length = batch.tokens.shape
    return training_flops(CONFIG, batch=rows, target_length=length)


def test_a_run_is_predicted_as_plan_does():
    found = predict_run(trainer_of(), flops_of, "NVIDIA H200")
    short, long = (predict_update(CONFIG, MACHINES["h200"], StepShape(8, 0, length)) for length in (16, 32))
    assert found.memory_bytes == long.memory.total, "the largest batch needs the most memory"
    assert found.seconds == pytest.approx(9 * short.seconds + long.seconds)
    assert predict_run(trainer_of(), flops_of, "NVIDIA RTX 9") == found._replace(seconds=None)


def test_processes_take_whole_batches_or_rows():
    train = replace(TRAIN, accumulate=2, updates=5)
    whole = predict_run(trainer_of(train, Layout(data=2)), flops_of, "NVIDIA H200")
    assert whole.memory_bytes == predict_run(trainer_of(), flops_of, "NVIDIA H200").memory_bytes
    rows = predict_run(trainer_of(train, Layout(data=4)), flops_of, "NVIDIA H200")
    assert rows.memory_bytes == predict_run(trainer_of(train, rows=2), flops_of, "NVIDIA H200").memory_bytes


def test_where_the_formulas_do_not_apply_nothing_is_predicted():
    assert predict_run(trainer_of(), flops_of) is None, "a CPU"
    assert predict_run(trainer_of(precision="fp32"), flops_of, "NVIDIA H200") is None
    assert predict_run(trainer_of(replace(TRAIN, optimizer="muon")), flops_of, "NVIDIA H200") is None
    frozen = trainer_of()
    next(frozen.model.parameters()).requires_grad = False
    assert predict_run(frozen, flops_of, "NVIDIA H200") is None


def test_lengths_come_from_the_batch_and_rows_from_its_operations():
    model = build_model(preset("tiny-transformer-base"))
    batch = SimpleNamespace(source=torch.zeros(3, 7), target_in=torch.zeros(3, 5))
    once = training_flops(model.config, batch=3, source_length=7, target_length=5)
    assert step_shape(model, batch, once) == StepShape(3, 7, 5)
    assert step_shape(model, batch, 2 * once).rows == 6, "R-Drop passes each row twice"
    encoder = build_model(preset("tiny-bert-base"))
    batch = SimpleNamespace(tokens=torch.zeros(3, 7))
    assert step_shape(encoder, batch, training_flops(encoder.config, batch=3, source_length=7)) == StepShape(3, 7, 0)


@pytest.mark.parametrize(
    ("name", "machine"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("A10", None)],
)
def test_a_gpu_is_known_by_its_name(name, machine):
    assert find_machine(name) is (machine and MACHINES[machine])


def test_a_prediction_is_compared_with_the_estimate():
    estimate = Estimate(parameters=1, flops=1, memory_bytes=10**9, seconds=60.0, device="cuda")
    line = PredictedCosts(11 * 10**8, 108.0).in_words(estimate, 0.5)
    assert line == "the formulas of glassformer plan predict 1.1 GB (+10%) and 54 s (-10%)"
    assert PredictedCosts(10**9, None).in_words(estimate) == "the formulas of glassformer plan predict 1.0 GB (+0%)"
