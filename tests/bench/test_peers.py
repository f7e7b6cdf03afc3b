"""Other libraries run with our weights."""

import pytest
import torch

from glassformer.bench.peers import hf, hf_model, is_installed
from glassformer.bench.workloads import Workload, tokens_of
from glassformer.models import preset
from glassformer.pipelines.load import load

GPT2 = Workload("gpt2", preset("tiny-gpt2"), "gpt2", 3, 5)


def test_installed_packages_are_found():
    assert is_installed("torch")
    assert not is_installed("no_such_package_anywhere")


@torch.inference_mode()
def test_hfs_model_has_our_weights():
    ours = GPT2.model()
    tokens = torch.tensor(GPT2.inputs(2))
    torch.testing.assert_close(hf_model(GPT2, ours)(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-4)


def test_weights_that_hfs_model_does_not_have_are_refused(monkeypatch):
    export = Workload.for_hf

    def with_another(work, model):
        values, tensors = export(work, model)
        return values, tensors | {"another.weight": torch.zeros(1)}

    monkeypatch.setattr(Workload, "for_hf", with_another)
    with pytest.raises(ValueError, match=r"HF's model has other tensors than ours: .* unexpected \['another.weight'\]"):
        hf_model(GPT2, GPT2.model())


def test_hfs_run_gives_the_new_tokens_only(tmp_path):
    model, inputs = GPT2.model(), GPT2.inputs(2)
    GPT2.save(tmp_path / "model", model)
    ours = GPT2.ours(load(tmp_path / "model"), inputs, 1)()
    assert tokens_of(hf(GPT2, hf_model(GPT2, model), inputs, 1)()) == tokens_of(ours)
