"""Small models whose texts end at different times, for tests of recorded steps."""

from dataclasses import replace

import pytest
import torch

from glassformer.models import DecoderModel, EncoderDecoderModel, ModelConfig

END, BEGIN = 2, 1
SMALL = ModelConfig(
    vocab_size=23, n_decoder_layers=2, d_model=16, n_heads=4, d_ff=24, head="language_model", max_len=40
)
DECODERS = {
    "learned positions": replace(SMALL, positions="learned"),
    "rotary, grouped": replace(SMALL, positions="rotary", n_kv_heads=2),
    "alibi": replace(SMALL, positions="alibi"),
    "relative": replace(SMALL, positions="relative"),
    "window": replace(SMALL, positions="rotary", sliding_window=3),
}
PAIR = replace(SMALL, n_encoder_layers=1)


def make(config: ModelConfig) -> DecoderModel | EncoderDecoderModel:
    torch.manual_seed(0)
    kind = EncoderDecoderModel if config.n_encoder_layers else DecoderModel
    model = kind(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)  # so that ends come at different times
    return model


def assert_same(plain, recorded):
    for first, second in zip(plain, recorded, strict=True):
        assert [w.tokens for w in first] == [w.tokens for w in second]
        for a, b in zip(first, second, strict=True):
            assert (a.score is None) == (b.score is None)
            if a.score is not None:
                assert a.score == pytest.approx(b.score, abs=1e-9)
            if a.log_probs is not None:
                assert a.log_probs == pytest.approx(b.log_probs, abs=1e-9)
