import itertools

import pytest
import torch

from glassformer.training import fit


def test_fit_minimizes_reports_and_stops_on_request():
    target = torch.tensor([1.0, -2.0, 3.0])
    model = torch.nn.Linear(1, 3, bias=False)
    seen = []

    def loss(_):
        return (model.weight[:, 0] - target).square().sum()

    report = fit(model, itertools.repeat(None), loss, steps=400, lr=0.1, on_step=seen.append)
    assert report.step == 400
    assert len(seen) == 400
    assert report.loss < 1e-2
    assert not model.training
    assert fit(model, itertools.repeat(None), loss, steps=400, on_step=lambda r: r.step == 7).step == 7


def test_fit_ends_with_its_data():
    model = torch.nn.Linear(1, 1)
    report = fit(model, [torch.ones(1, 1)] * 3, lambda x: model(x).sum(), steps=10)
    assert report.step == 3


def test_fit_stops_at_a_nan_loss_before_the_update():
    model = torch.nn.Linear(1, 1)
    before = model.weight.detach().clone()
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        fit(model, [torch.full((1, 1), float("nan"))], lambda x: model(x).sum(), steps=10)
    assert torch.equal(model.weight, before)
