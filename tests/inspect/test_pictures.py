import pytest
import torch

from glassformer.inspect import draw_attention, draw_positions
from glassformer.models import preset
from glassformer.nn import capture_attention
from oracle import random_model

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_positions_and_attention_are_written_as_png_and_svg(tmp_path, suffix, begins):
    draw_positions(length=20, width=15, path=tmp_path / f"positions.{suffix}")
    weights = torch.rand(3, 4, 5).softmax(-1)
    draw_attention(weights, list("abcd"), list("vwxyz"), path=tmp_path / "new" / f"attention.{suffix}")
    assert (tmp_path / f"positions.{suffix}").read_bytes().startswith(begins)
    assert (tmp_path / "new" / f"attention.{suffix}").read_bytes().startswith(begins)


@pytest.mark.parametrize("kind", ["self_attn", "cross_attn"])
@pytest.mark.parametrize("layer", [0, 1])
def test_any_layer_and_head_self_and_cross_with_tokens_on_the_axes(kind, layer):
    model = random_model(preset("tiny-marian"))
    source, target = ["the", "cat", "sat", "$4"], ["die", "Katze", "saß"]
    with capture_attention(model) as captured:
        model(torch.randint(0, 40, (1, 4)), torch.randint(0, 40, (1, 3)))
    keys = source if kind == "cross_attn" else target
    figure = draw_attention(captured[f"decoder.layers.{layer}.{kind}"][0], target, keys, heads=[2])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == target
    assert [label.get_text().replace("\\", "") for label in axes.get_xticklabels()] == keys
    assert axes.get_title() == "head 2"
    drawn = torch.from_numpy(axes.images[0].get_array().data)
    torch.testing.assert_close(drawn, captured[f"decoder.layers.{layer}.{kind}"][0, 2].float())


def test_numpy_weights_and_numbers_for_tokens_are_taken_and_the_largest_weight_is_darkest():
    figure = draw_attention(torch.rand(1, 3, 3).numpy() / 10, [7, 8, 9], names=["head 5"])
    axes = figure.axes[0]
    assert axes.get_title() == "head 5"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["7", "8", "9"]
    assert axes.images[0].get_clim()[1] == axes.images[0].get_array().max()


def test_long_inputs_thin_their_labels_instead_of_crashing():
    tokens = [f"token{i}" for i in range(500)]
    figure = draw_attention(torch.rand(1, 500, 500), tokens)
    assert len(figure.axes[0].get_xticks()) <= 48


def test_invalid_picture_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"weights has shape \(2, 3, 3\): expected \(heads, 3, 2\)"):
        draw_attention(torch.rand(2, 3, 3), list("abc"), list("xy"))
    with pytest.raises(IndexError, match=r"heads=\[5\]: expected some of 0 to 1"):
        draw_attention(torch.rand(2, 3, 3), list("abc"), heads=[5])
    with pytest.raises(ValueError, match=r"expected a name that ends in \.png or \.svg"):
        draw_positions(path=tmp_path / "x.gif")
    with pytest.raises(ValueError, match=r"take one sentence of the batch, weights\[0\]"):
        draw_attention(torch.rand(1, 2, 3, 3), list("abc"))
    with pytest.raises(ValueError, match="names has 1 entries: expected 2"):
        draw_attention(torch.rand(2, 3, 3), list("abc"), names=["one"])
    with pytest.raises(ValueError, match="table has shape"):
        draw_positions(torch.rand(3))
