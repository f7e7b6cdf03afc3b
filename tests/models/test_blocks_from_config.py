"""Config fields reach the blocks that they describe."""

import pytest
import torch

from glassformer.models import preset
from glassformer.models.blocks_from_config import make_embeddings, make_head, make_layer, make_stack
from glassformer.models.heads import EmbeddingHead, LanguageModelHead, SequenceClassHead, TokenClassHead
from glassformer.nn import Alibi, LearnedPositions, RelativeBias, Rotary, SinusoidalPositions

GPT2, BERT = preset("tiny-gpt2"), preset("tiny-bert-base")


@pytest.mark.parametrize(
    ("positions", "added", "rotary", "score_bias"),
    [
        ("sinusoidal", SinusoidalPositions, None, None),
        ("learned", LearnedPositions, None, None),
        ("rotary", None, Rotary, None),
        ("relative", None, None, RelativeBias),
        ("alibi", None, None, Alibi),
        ("none", None, None, None),
    ],
)
def test_each_kind_of_positions_is_built_in_one_place(positions, added, rotary, score_bias):
    config = preset("tiny-gpt2", positions=positions)
    stack = make_stack(config, 2, bidirectional=False, cross=False, backend="sdpa")
    found = make_embeddings(config, 40).positions, stack.rotary, stack.score_bias
    assert [type(module) for module in found] == [kind or type(None) for kind in (added, rotary, score_bias)]


def test_shared_layers_are_built_once():
    config = preset("tiny-gpt2", share_layers=True)
    stack = make_stack(config, 3, bidirectional=False, cross=False, backend="sdpa")
    assert (len(stack.layers), stack.depth) == (1, 3)


def test_a_layer_has_the_sizes_and_the_cross_attention_that_were_asked_for():
    config = preset("tiny-llama", n_heads=4, n_kv_heads=2, head_dim=6, d_ff=20, norm_placement="post")
    layer = make_layer(config, cross=True, backend="math")
    assert (layer.self_attn.n_kv_heads, layer.cross_attn.head_dim, layer.ffn.down_proj.in_features) == (2, 6, 20)
    assert layer.ffn_sublayer.placement == "post"
    assert layer.self_attn.attend.backend == "math"
    assert make_layer(config, cross=False, backend="sdpa").cross_attn is None


@pytest.mark.parametrize(
    ("head", "kind", "shape"),
    [
        ("language_model", LanguageModelHead, (2, 3, 40)),
        ("sequence_class", SequenceClassHead, (2, 5)),
        ("token_class", TokenClassHead, (2, 3, 5)),
        ("span", TokenClassHead, (2, 3, 2)),
        ("embedding", EmbeddingHead, (2, 16)),
    ],
)
def test_each_head_returns_its_shape(head, kind, shape):
    found = make_head(BERT.with_head(head, n_labels=5 if head.endswith("class") else None))
    assert type(found) is kind
    assert found(torch.randn(2, 3, BERT.d_model)).shape == shape
    assert make_head(BERT.with_head("none")) is None
