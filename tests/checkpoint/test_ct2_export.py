"""Exported models give the same outputs in CTranslate2."""

import random
from dataclasses import replace

import pytest
import torch

from glassformer.checkpoint.ct2_export import Vocabulary, export_ct2
from glassformer.models import build_model, preset
from glassformer.pipelines.agreement import verify

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{index}" for index in range(36))]


def random_config(seed):
    """Return a random encoder-decoder config that CTranslate2 supports."""
    choose = random.Random(f"CTranslate2 {seed}").choice
    source_vocab, is_learned = choose([None, 42]), choose([True, False])
    return replace(
        preset("tiny-transformer-base"),
        source_vocab_size=source_vocab,
        n_encoder_layers=choose([1, 2]),
        n_decoder_layers=choose([1, 3]),
        d_model=choose([16, 24]),
        d_ff=choose([24, 40]),
        qkv_bias=choose([True, False]),
        out_bias=choose([True, False]),
        ffn_bias=choose([True, False]),
        activation=choose(["relu", "gelu", "gelu_tanh", "silu"]),
        gated=choose([True, False]),
        norm=choose(["layer", "rms"]),
        norm_placement=choose(["pre", "post"]),
        norm_eps=choose([1e-5, 1e-2]),
        positions="learned" if is_learned else "sinusoidal",
        position_offset=choose([0, 2]),
        sinusoid_halves=choose([True, False]),
        sinusoid_full_range=choose([True, False]),
        scale_embeddings=choose([True, False]),
        embedding_norm=choose([True, False]),
        tie=choose(["none", "output"] + (["embeddings", "all"] if source_vocab is None else [])),
        output_bias=choose([True, False]),
        scale_output=choose([True, False]),
    )


def test_random_models_give_the_same_outputs(tmp_path, count):
    pytest.importorskip("ctranslate2")
    for seed in range(count(5, 100)):
        config = random_config(seed)
        torch.manual_seed(seed)
        model = build_model(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        source = [*WORDS, "one", "more"][: config.source_vocab]
        words = Vocabulary(source=source, target=WORDS, begin="<s>", end="</s>", unknown="<unk>")
        export_ct2(model, tmp_path / str(seed), words)
        found = verify(tmp_path, model, tmp_path / str(seed), "ct2")
        assert found.largest_difference < 1e-4, (seed, config)
