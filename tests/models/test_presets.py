"""Full-size presets have the known parameter counts, and each initialization scheme its distribution."""

import math

import pytest
import torch

from glassformer import reference
from glassformer.models import build_model, preset

# As the families' own code counts them. BART and Marian differ in what counts as a parameter: their output bias does
# here and does not there; Marian's two fixed tables of sinusoids count there.
KNOWN = {
    "transformer-base": 63_082_496,  # the paper rounds its count to 65 million
    "bert-base": 109_514_298,
    "albert-base": 11_221_680,
    "gpt2": 124_439_808,
    "llama": 134_515_008,
    "t5-small": 60_506_624,
    "t5-v1.1-small": 76_961_152,
    "bart-base": 139_420_416 + 50_265,
    "marian": 74_410_496 - 2 * 512 * 512 + 58_101,
}


@pytest.mark.parametrize("name", KNOWN)
def test_presets_have_the_known_parameter_counts(name):
    shapes = reference.parameter_shapes(reference.Config.from_dict(preset(name).to_dict()))
    assert sum(math.prod(shape) for shape in shapes.values()) == KNOWN[name]


def test_xavier_fills_matrices_within_its_bound():
    model = build_model(preset("tiny-transformer-base"))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= bound, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.25), name
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


def test_gpt2_initializes_residual_projections_smaller():
    model = build_model(preset("gpt2", d_model=192, d_ff=384, n_heads=4, n_decoder_layers=8, vocab_size=500))
    layer = model.decoder.layers[0]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert layer.self_attn.out_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.ffn.down_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)


def test_t5_initializes_each_matrix_by_its_width():
    model = build_model(
        preset("t5-small", d_model=256, d_ff=512, n_heads=4, vocab_size=500, n_encoder_layers=1, n_decoder_layers=1)
    )
    layer = model.encoder.layers[0]
    assert model.source_embeddings.tokens.weight.std().item() == pytest.approx(1, rel=0.1)
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx((256 * 64) ** -0.5, rel=0.1)
    assert layer.self_attn.k_proj.weight.std().item() == pytest.approx(256**-0.5, rel=0.1)
    assert layer.ffn.down_proj.weight.std().item() == pytest.approx(512**-0.5, rel=0.1)


@pytest.mark.parametrize("tie", ["none", "output", "embeddings", "all"])
def test_tied_embeddings_are_one_parameter(tie):
    model = build_model(preset("tiny-marian", tie=tie))
    source, target, output = (
        model.source_embeddings.tokens.weight,
        model.target_embeddings.tokens.weight,
        model.head.out_proj.weight,
    )
    assert (source is target) == (tie in ("embeddings", "all"))
    assert (output is target) == (tie in ("output", "all"))


def test_the_same_seed_builds_the_same_model():
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(build_model(preset("tiny-bart-base")))
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(first, second)
