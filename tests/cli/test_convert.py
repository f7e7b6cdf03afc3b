"""`glassformer convert`: what it prints and how it exits."""

from glassformer.checkpoint import save_model
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import build_model, preset


def test_verify_prints_the_tolerance_and_exits_with_1_beyond_it(tmp_path, monkeypatch, call):
    save_model(tmp_path / "ours", build_model(preset("tiny-llama")))
    arguments = ["convert", tmp_path / "ours", "--to", "hf", "--verify", "--out"]
    code, printed, _ = call(*arguments, tmp_path / "good")
    assert code == 0
    assert "compared with Glassformer; the result was loaded by HF Transformers" in printed
    assert "(tolerance 1" in printed
    # A new model of the same shape has other weights.
    monkeypatch.setattr(
        "glassformer.pipelines.conversion.save_hf_folder",
        lambda out, model, **more: save_hf_folder(out, build_model(model.config)),
    )
    code, printed, error = call(*arguments, tmp_path / "bad")
    assert code == 1
    assert "largest difference of a logit" in printed
    assert "differs from its source" in error
