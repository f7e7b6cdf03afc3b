"""`glassformer bench`: its usage, and the counts that it refuses."""

import pytest
import torch


def test_bench_without_options_prints_what_it_measures(call):
    code, out, err = call("bench")
    assert (code, err) == (0, "")
    assert out.startswith("usage: glassformer bench decode")
    assert "measures how many tokens per second" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "32", "0"), "--batch 0: expected at least 1"),
        (("--beam", "0"), "--beam 0: expected at least 1"),
        (("--rounds", "0"), "--rounds 0: expected at least 1"),
        (("--threads", "-1"), "--threads -1: expected 0 to 1,024"),
        (("--quantize", "int8", "--dtype", "float32"), "--quantize int8 with --dtype float32: expected one of them"),
        (("--batch-tokens", "0"), "--batch-tokens 0: expected 1 to 16,777,216"),
    ],
)
def test_wrong_counts_are_refused_before_anything_is_measured(call, monkeypatch, options, message):
    monkeypatch.setattr("glassformer.bench.decode.measure", lambda *_, **__: pytest.fail("measured"))
    assert call("bench", "decode", *options) == (2, "", f"glassformer: {message}\n")


def test_compiled_steps_are_measured_on_request(call, monkeypatch):
    asked = []
    monkeypatch.setattr("glassformer.bench.decode.limits", lambda device: None)
    monkeypatch.setattr("glassformer.bench.decode.table", lambda *_, **__: "")
    monkeypatch.setattr("glassformer.bench.decode.measure", lambda *_, **given: asked.append(given["compiled"]) or [])
    for choice in ("auto", "on", "off"):
        assert call("bench", "decode", "--device", "cpu", "--batch", "1", "--compile", choice)[0] == 0
    assert asked == [False, True, False]
    assert "--no-compiled is now --compile off: use that" in call("bench", "decode", "--no-compiled")[2]


def test_a_missing_gpu_is_named(call, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = call("bench", "decode", "--device", "cuda")
    assert (code, out) == (1, "")
    assert "cuda: no CUDA device is available" in err
    monkeypatch.setattr("glassformer.runtime.devices.choose_device", lambda name: torch.device("cuda"))
    code, out, err = call("bench", "decode", "--quantize", "int4")
    assert (code, out, err) == (2, "", "glassformer: --quantize int4 on a GPU: expected --device cpu\n")
