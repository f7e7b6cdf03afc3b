"""Training with CUDA graphs equals training without, and continues without them if a step cannot be recorded."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.runtime.cuda_graphs import CaptureError
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import gradient_setup, gradients, trainer
from training.test_trainer import fingerprint, make_trainer
from training.tiny_trainer import CONFIG


class FakeGraph:
    """A recorded step that computes again at each replay."""

    def __init__(self, compute):
        self.compute, self.loss = compute, torch.zeros(())

    def replay(self):
        self.loss.copy_(self.compute())


@pytest.fixture
def record(monkeypatch):
    """Graphs without a GPU: the first `n_good` recordings succeed, all later ones fail."""

    def fake(compute, pool, device):
        fake.n_calls += 1
        if fake.n_calls > fake.n_good:
            for parameter in fake.parameters:
                parameter.grad = torch.full_like(parameter, torch.nan)  # a failed recording leaves unwritten memory
            raise CaptureError("CUBLAS_STATUS_NOT_SUPPORTED in cublasLtMatmul\nmore lines")
        graph = FakeGraph(compute)
        return graph, graph.loss

    fake.n_calls, fake.n_good, fake.parameters = 0, 10**9, []
    monkeypatch.setattr(gradient_setup, "can_graph", lambda model, device: True)
    monkeypatch.setattr(gradients, "capture_graph", fake)
    monkeypatch.setattr(gradients.GraphedGradients, "_warm_up", lambda self, batch: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    return fake


def train(folder, warnings):
    made = make_trainer(folder)
    made.warn = warnings.append  # set after construction, as in a run
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return fingerprint(make_trainer(tmp_path_factory.mktemp("plain")).run())


def test_replayed_steps_give_the_same_bits(tmp_path, record, plain):
    warnings = []
    assert fingerprint(train(tmp_path, warnings).run()) == plain
    assert record.n_calls > 1
    assert warnings == []


@pytest.mark.parametrize("n_good", [0, 1, 2])
def test_a_step_that_cannot_be_recorded_warns_once_and_runs_eagerly(tmp_path, record, plain, n_good):
    warnings = []
    made = train(tmp_path, warnings)
    record.n_good, record.parameters = n_good, list(made.model.parameters())
    assert fingerprint(made.run()) == plain
    assert record.n_calls == n_good + 1
    assert warnings == [
        "CUDA graphs are off: a training step could not be recorded (CUBLAS_STATUS_NOT_SUPPORTED in cublasLtMatmul). "
        "Training continues without them, with the same results, and may be slower"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_after_a_failed_recording_equals_training_without_graphs():
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)).to(device)
    told = []

    class Batch(tuple):
        def to(self, device):
            return Batch(x.to(device) for x in self)

    def loss(batch):
        found = model(batch[0]).sum()
        if torch.cuda.is_current_stream_capturing():
            found.item()  # reading a value is not allowed while recording
        return found

    def steps(kind, **options):
        model.zero_grad()
        made = kind(model, loss, device=device, autocast=torch.enable_grad, **options)
        values = []
        for seed in range(3):
            made.clear()
            torch.manual_seed(seed)
            values.append(made.add(Batch([torch.ones(4 + seed, 8)]), divisor=1.0, scale=1.0))
        return values, [parameter.grad.clone() for parameter in model.parameters()]

    values, expected = steps(gradients.GraphedGradients, warn=told.append)
    again, found = steps(gradients.Gradients)
    assert values == again
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))
    assert len(told) == 1


def test_the_backward_pass_chooses_the_same_attention_kernels(tmp_path):
    """Gradient checkpointing computes the layers again in the backward pass; other kernels would save other tensors."""
    trainer, events = make_trainer(tmp_path), []

    @contextmanager
    def attention():
        events.append("begin")
        yield
        events.append("end")

    trainer.gradients.attention = attention
    next(iter(trainer.model.parameters())).register_hook(lambda gradient: events.append("backward"))
    trainer.gradients.add(trainer.batches[0], divisor=1.0, scale=1.0)
    assert events == ["begin", "backward", "end"]


@pytest.mark.parametrize("case", ["all recorded", "one recorded", "the second cannot be recorded"])
def test_graphs_leave_the_gradients_of_a_copy_in_place(tmp_path, record, monkeypatch, case):
    """With and without graphs, Adam reads the same gradients of the copy, and the model has none."""
    monkeypatch.setattr(gradients, "MAX_GRAPHS", 1 if case == "one recorded" else 512)
    record.n_good = 1 if case.startswith("the second") else 10**9
    config = replace(CONFIG, accumulate=1, optimizer="adamw", compile="on")
    options = {"config": config, "loss_of": lambda model: partial(pair_loss, model, config)}
    monkeypatch.setattr(gradient_setup, "can_use_kernel", lambda device, dtype: True)
    monkeypatch.setattr(trainer, "can_apply_on_device", lambda optimizer, device: True)
    graphed = make_trainer(tmp_path / "graphed", **options)
    assert isinstance(graphed.gradients, gradients.GraphedGradients)
    assert graphed.gradients.stays_in_copy
    graphed.warn = lambda message: None
    graphed.run()
    assert record.n_calls > 1 or case == "one recorded"
    assert (graphed.gradients.in_copy is graphed.gradients._kept) == (record.n_good > 1)
    assert not graphed.gradients.of_model()
    monkeypatch.setattr(gradient_setup, "can_graph", lambda model, device: False)
    plain = make_trainer(tmp_path / "plain", **options)
    assert not isinstance(plain.gradients, gradients.GraphedGradients)
    plain.run()
    assert fingerprint(graphed.model.state_dict()) == fingerprint(plain.model.state_dict())


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_seeding_one_device_draws_the_numbers_of_torch(device):
    def draw():
        return torch.rand(3).tolist(), torch.rand(3, device=device).tolist()

    for seed in (0, 7, 2**63 - 1):
        torch.manual_seed(seed)
        right = draw()
        gradients.seed_device(seed, torch.device(device))
        assert draw() == right
