"""Each initialization scheme gives the parameters its distribution."""

import math

import pytest

from glassformer.models import build_model, preset


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
