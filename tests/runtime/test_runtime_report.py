"""The report of the runtime says what `load` and generation then do."""

import pytest
import torch

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.models import build_model, preset
from glassformer.runtime.choose_runner import ExpectedWork, choose_execution
from glassformer.runtime.prepare_model import prepare_model, weight_bytes
from glassformer.runtime.runtime_report import report_runtime

NAME = "glassformer.runtime.runtime_report.is_library_built"


def fail():
    raise KernelBuildError("no C++ compiler was found")


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_the_report_is_what_a_prepared_model_does(quantize, dtype):
    if quantize != "none" and dtype != "auto":
        with pytest.raises(ValueError, match="expected one of them"):
            report_runtime(preset("tiny-gpt2"), dtype=dtype, quantize=quantize)
        return
    model = prepare_model(build_model(preset("tiny-gpt2")), device="cpu", dtype=dtype, quantize=quantize)
    execution = choose_execution(model, ExpectedWork(rows=1, capacity=4))
    found = report_runtime(model.config, device="cpu", dtype=dtype, quantize=quantize)
    assert found["device"].decision == str(next(model.parameters()).device)
    assert found["numbers"].decision == str(next(model.parameters()).dtype).removeprefix("torch.")
    assert found["kernels"].decision == execution.kernels.name
    assert (found["steps"].decision == "plain") == (execution.recordings is None)


def test_the_cost_of_the_first_use_depends_on_the_cache_folder(monkeypatch):
    costs = []
    for answer in (lambda: True, lambda: False, fail):
        monkeypatch.setattr(NAME, answer)
        found = report_runtime(preset("tiny-gpt2"), device="cpu", quantize="int8")
        costs.append((found["kernels"].decision, found["warm-up"].decision))
    assert costs == [("c++", "none"), ("c++", "about half a minute"), ("torch", "none")]
    assert "no C++ compiler was found" in found["kernels"].why


def test_kernels_that_cannot_be_kept_are_built_in_every_process(monkeypatch, tmp_path):
    monkeypatch.setattr(NAME, lambda: False)
    for cache, words in (("cache", "kept in the cache folder"), ("file/cache", "every process builds")):
        (tmp_path / "file").write_text("in the way", encoding="utf-8")
        monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / cache))
        found = report_runtime(preset("tiny-gpt2"), device="cpu", quantize="int8")
        assert words in found["warm-up"].why


def test_an_encoder_makes_no_steps(monkeypatch):
    assert "steps" not in report_runtime(preset("tiny-bert-base"), device="cpu")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-marian", "tiny-llama"])
def test_the_memory_of_the_weights_is_counted(name):
    model = build_model(preset(name))
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert weight_bytes(model.config, torch.float32) == n_bytes
    assert weight_bytes(model.config, torch.bfloat16) == n_bytes // 2
    assert n_bytes // 4 < weight_bytes(model.config, torch.float32, "int8") < n_bytes
    assert n_bytes // 8 < weight_bytes(model.config, torch.float32, "int4") < n_bytes


def test_a_quantized_gguf_file_is_reported_as_stored(monkeypatch):
    monkeypatch.setattr(NAME, lambda: True)
    found = report_runtime(preset("tiny-llama"), device="cpu", stored_bytes=12_000_000)
    assert found["weights"].decision == "as stored, projections fused"
    assert (found["kernels"].decision, found["memory"].decision) == ("c++", "12 MB of weights")
    expanded = report_runtime(preset("tiny-llama"), device="cpu", dtype="float32", stored_bytes=12_000_000)
    assert expanded["weights"].decision == "as stored"
