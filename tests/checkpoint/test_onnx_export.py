"""ONNX graphs give the same outputs as the model, for every batch size and length."""

import sys

import pytest
import torch
from torch import nn

from glassformer.checkpoint import onnx_export as onnx_out
from glassformer.checkpoint import verify_folder
from glassformer.checkpoint.onnx_export import export_onnx, verify_onnx
from glassformer.documents import Transformer
from glassformer.models import build_model, preset

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


def random_model(name, *, seed=1, **changes):
    """Build a model with weights so large that every part affects its outputs."""
    torch.manual_seed(seed)
    model = build_model(preset(name, **changes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # rotary, grouped heads, RMS norms of heads
        ("tiny-llama", {"n_decoder_layers": 1, "sliding_window": 3, "qk_norm": True}),
        pytest.param(
            "tiny-gpt2",
            {"n_decoder_layers": 1, "positions": "alibi", "norm": "mean_std"},
            marks=pytest.mark.full,
        ),
        # relative positions, heads that don't sum to d_model, shared layers, another source vocabulary
        pytest.param(
            "tiny-t5-v1.1-small",
            {"n_encoder_layers": 1, "share_layers": True, "tie": "none", "source_vocab_size": 30},
            marks=pytest.mark.full,
        ),
        pytest.param("tiny-bert-base", {"n_encoder_layers": 1, "positions": "sinusoidal"}, marks=pytest.mark.full),
        pytest.param("tiny-qwen2-moe", {"n_decoder_layers": 1}, marks=pytest.mark.full),
    ],
)
def test_exported_models_give_the_same_numbers_and_choices(tmp_path, name, changes):
    model = random_model(name, **changes)
    export_onnx(model, tmp_path / "out")
    difference, share = verify_onnx(tmp_path / "out", model)
    assert difference < 1e-5
    assert share == 1.0


def test_a_model_with_masks_as_arguments_is_refused_with_what_to_export(tmp_path):
    model = Transformer(20, 20, 16, 2, 1, d_ff=32, max_seq_len=20)
    with pytest.raises(ValueError, match=r"Transformer takes its masks as arguments.*build_model\(model.config\)"):
        export_onnx(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    build_model(model.config).load_state_dict(model.state_dict())  # as the message says


@torch.no_grad()
def test_one_file_serves_every_size_and_stands_alone(tmp_path, monkeypatch):
    model = random_model("tiny-gpt2", n_decoder_layers=1).double()
    monkeypatch.setattr(onnx_out, "MAX_FILE_BYTES", 0)
    folder = tmp_path / "out"
    export_onnx(model, folder, {"tokenizer.json": "{}"})
    assert model.training  # the export does not change the model
    assert next(model.parameters()).dtype == torch.float64
    assert {path.name for path in folder.iterdir()} == {
        "decoder.onnx",
        "decoder.onnx.data",
        "tokenizer.json",
        "manifest.json",
    }
    verify_folder(folder)
    assert b"onnx_export.py" not in (folder / "decoder.onnx").read_bytes()  # no paths of this machine

    session = onnxruntime.InferenceSession(str(folder / "decoder.onnx"))
    model.eval()
    for rows, past, new in ((1, 0, 1), (1, 1, 1), (2, 0, 3), (4, 5, 2), (2, 20, 15)):
        tokens = torch.randint(40, (rows, past + new))
        mask = torch.ones(rows, past + new, dtype=torch.bool)
        mask[-1, : past // 2] = False
        mask[:, : max(0, past + new - 32)] = False  # more positions than max_len=32, but no more real tokens
        keys = values = torch.zeros(1, rows, 4, 0, 4).numpy()
        for start, end in ((0, past), (past, past + new)):
            if start < end:
                inputs = {"tokens": tokens[:, start:end].numpy(), "mask": mask[:, :end].numpy()}
                logits, keys, values = session.run(None, {**inputs, "past_keys": keys, "past_values": values})
        assert keys.shape == values.shape == (1, rows, 4, past + new, 4)
        expected = model(tokens, mask)[:, past:]
        assert (torch.from_numpy(logits) - expected).abs().max() < 1e-5

    difference, share = verify_onnx(folder, random_model("tiny-gpt2", n_decoder_layers=1, seed=2))
    assert difference > 0.1
    assert share < 1.0


def test_unsupported_models_are_refused_and_nothing_is_written(tmp_path):
    pooled = build_model(preset("tiny-bart-base").with_head("sequence_class", n_labels=2))
    with pytest.raises(ValueError, match=r"ONNX cannot express head='sequence_class' \(expected 'language_model'\)"):
        export_onnx(pooled, tmp_path / "out")

    class Int8Linear(nn.Module):
        pass

    quantized = random_model("tiny-gpt2")
    quantized.decoder.layers[1].self_attn.q_proj = Int8Linear()
    with pytest.raises(TypeError, match=r"decoder.layers.1.self_attn.q_proj is a Int8Linear: expected nn.Linear"):
        export_onnx(quantized, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    model = random_model("tiny-gpt2")
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'glassformer\[export\]'"):
        verify_onnx(tmp_path, model) if package == "onnxruntime" else export_onnx(model, tmp_path / "out")
