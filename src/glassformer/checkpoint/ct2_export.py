"""Export encoder-decoder models to CTranslate2."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from glassformer.checkpoint.limits import ROTARY_SCALING_FIELDS, FormatLimits, refuse, unset
from glassformer.checkpoint.output_folder import new_folder
from glassformer.models import EncoderDecoderModel, ModelConfig
from glassformer.models.config_names import EXPERT_FIELDS
from glassformer.nn import Embeddings, Layer, LearnedPositions, MultiHeadAttention, SinusoidalPositions, Stack

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
LIMITS = FormatLimits(
    format="CTranslate2",
    written=frozenset(
        {
            "vocab_size",
            "source_vocab_size",
            "n_encoder_layers",
            "n_decoder_layers",
            "d_model",
            "d_ff",
            "max_len",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "qkv_bias",
            "out_bias",
            "activation",
            "gated",
            "ffn_bias",
            "norm_eps",
            "final_norm",
            "position_offset",
            "sinusoid_halves",
            "sinusoid_full_range",
            "rope_theta",
            "scale_embeddings",
            "embedding_norm",
            "tie",
            "output_bias",
            "scale_output",
        }
    ),
    required={
        "attention_scale": (None,),
        "scale_by_depth": (False,),
        "qk_norm": (False,),
        "sliding_window": (None,),
        "norm": ("layer", "rms"),
        "norm_placement": ("pre", "post"),
        "positions": ("sinusoidal", "learned", "rotary"),
        **unset("relative_bias", "key_bias", "conv_kernel", "conv_activation", "first_norm"),
        **unset("embedding_multiplier", "residual_multiplier", "output_multiplier"),
        **unset("norm_bias", "norm_weight", "parallel_ffn", "qk_norm_over", "clip_qkv", "attention_softcap"),
        **unset("n_experts", *EXPERT_FIELDS),
        **unset("global_layers", "local_rope_theta", "unrotated_layers", "output_softcap"),
        **unset("rope_width", "rope_scaling", *ROTARY_SCALING_FIELDS),
        "token_types": (0,),
        "embedding_width": (None,),
        "share_layers": (False,),
        "head": ("language_model",),
        "n_labels": (None,),
        "head_transform": (False,),
        **unset("head_activation", "head_norm", "head_bias", "head_width", "unit_length"),
        "pooling": (None,),
    },
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What CTranslate2 stores of the tokenizers: the source and target tokens in id order, and the special tokens."""

    source: Sequence[str]
    target: Sequence[str]
    begin: str
    """The token that starts a translation."""
    end: str
    unknown: str
    reads_end: bool = True
    """Whether CTranslate2 appends `end` to every source text before it encodes the text."""


def export_ct2(model: EncoderDecoderModel, folder: Path, vocabulary: Vocabulary, *, overwrite: bool = False) -> None:
    """Write a CTranslate2 model folder. An existing model folder is replaced only with `overwrite`.

    Raises UnsupportedModelError naming the model's settings that CTranslate2 cannot express.
    """
    config = model.config
    refuse("CTranslate2", blocking_ct2(config))
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError("CTranslate2's format needs its package: pip install ctranslate2") from error
    specs = ctranslate2.specs
    shape: dict[str, Any] = {
        "pre_norm": config.norm_placement == "pre",
        "activation": getattr(specs.Activation, ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms",
    }
    if config.positions == "rotary":
        # Rotate the whole head, pairing its first half with its second, as HF does.
        shape |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rope_theta}
    if config.kv_heads != config.n_heads:
        shape["num_heads_kv"] = config.kv_heads
    try:
        encoder = specs.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **shape)
        decoder = specs.TransformerDecoderSpec(config.n_decoder_layers, config.n_heads, **shape)
    except TypeError as error:  # older versions lack encoders with rotary positions or grouped heads
        raise ImportError(
            f"ctranslate2 {ctranslate2.__version__} cannot express this model: expected 4.8 or later; "
            "pip install --upgrade ctranslate2"
        ) from error
    spec = specs.TransformerSpec(encoder, decoder)
    if config.positions == "rotary":
        del spec.encoder.position_encodings  # the decoder has none
    _stack(spec.encoder, model.encoder, model.source_embeddings, config)
    _stack(spec.decoder, model.decoder, model.target_embeddings, config)
    _embed(spec.encoder.embeddings[0], model.source_embeddings)
    _embed(spec.decoder.embeddings, model.target_embeddings)
    head = model.get_submodule("head.out_proj")
    assert isinstance(head, nn.Linear)
    _linear(spec.decoder.projection, [head])
    if config.scale_output:
        spec.decoder.scale_outputs = np.dtype("float32").type(config.d_model**-0.5)
    spec.register_source_vocabulary(list(vocabulary.source))
    spec.register_target_vocabulary(list(vocabulary.target))
    settings: dict[str, Any] = {
        "bos_token": vocabulary.begin,
        "eos_token": vocabulary.end,
        "unk_token": vocabulary.unknown,
    }
    settings |= {"decoder_start_token": vocabulary.begin, "layer_norm_epsilon": config.norm_eps}
    settings |= {"add_source_bos": False, "add_source_eos": vocabulary.reads_end}
    for name, value in settings.items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize()
    with new_folder(folder, overwrite=overwrite) as work:
        spec.save(str(work))


def blocking_ct2(config: ModelConfig) -> list[str]:
    """Return the settings that CTranslate2 cannot express, each as `name=value (expected ...)`.

    These are the settings that `LIMITS` rules out and, in addition: a `head_dim` other than d_model / n_heads, a
    post-norm model with a final norm, and a pre-norm model without one.
    """
    problems = {
        f"head_dim={config.head_dim} (expected d_model / n_heads, {config.d_model / config.n_heads:g})": (
            config.head_size * config.n_heads != config.d_model
        ),
        f"final_norm={config.final_norm} with norm_placement={config.norm_placement!r} (expected None)": (
            config.has_final_norm != (config.norm_placement == "pre")
        ),
    }
    return [*LIMITS.blocking(config), *(name for name, is_problem in problems.items() if is_problem)]


def _stack(spec: Any, stack: Stack, embeddings: Embeddings, config: ModelConfig) -> None:
    spec.scale_embeddings = embeddings.scale is not None
    if embeddings.positions is not None:
        spec.position_encodings.encodings = _positions(embeddings)
    if embeddings.norm is not None:
        _norm(spec.layernorm_embedding, embeddings.norm)
    if stack.norm is not None:
        _norm(spec.layer_norm, stack.norm)
    for inner, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, Layer)
        own = layer.self_attn
        _linear(inner.self_attention.linear[0], [own.q_proj, own.k_proj, own.v_proj])
        _linear(inner.self_attention.linear[1], [own.out_proj])
        _norm(inner.self_attention.layer_norm, layer.self_attn_sublayer.norm)
        if layer.cross_attn is not None and layer.cross_attn_sublayer is not None:
            cross: MultiHeadAttention = layer.cross_attn
            _linear(inner.attention.linear[0], [cross.q_proj])
            _linear(inner.attention.linear[1], [cross.k_proj, cross.v_proj])
            _linear(inner.attention.linear[2], [cross.out_proj])
            _norm(inner.attention.layer_norm, layer.cross_attn_sublayer.norm)
        ffn: Any = layer.ffn  # a model with experts was refused
        if ffn.gate_proj is not None:
            _linear(inner.ffn.linear_0, [ffn.gate_proj])
            _linear(inner.ffn.linear_0_noact, [ffn.up_proj])
        else:
            _linear(inner.ffn.linear_0, [ffn.up_proj])
        _linear(inner.ffn.linear_1, [ffn.down_proj])
        _norm(inner.ffn.layer_norm, layer.ffn_sublayer.norm)


def _positions(embeddings: Embeddings) -> NDArray[np.float32]:
    if isinstance(embeddings.positions, LearnedPositions):
        return _array(embeddings.positions.weight[embeddings.positions.offset :])
    assert isinstance(embeddings.positions, SinusoidalPositions)
    return _array(embeddings.positions.table())


def _embed(spec: Any, embeddings: Embeddings) -> None:
    spec.weight = _array(embeddings.tokens.weight)


def _linear(spec: Any, linears: list[nn.Linear]) -> None:
    """Set the weight and bias of CTranslate2's layer `spec` to those of `linears`, concatenated along the outputs."""
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    if linears[0].bias is not None:
        spec.bias = _array(torch.cat([linear.bias for linear in linears]))


def _norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _array(norm.get_parameter("weight"))
    if "bias" in dict(norm.named_parameters()):
        spec.beta = _array(norm.get_parameter("bias"))


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array
