"""Export Llama-style models to GGUF, for llama.cpp and tools built on it."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.gguf_rotary import DIVISORS, blocking_rope_scaling, write_rope_scaling
from glassformer.checkpoint.hf import FAMILIES, blocking_settings, export_model, rewritten
from glassformer.checkpoint.limits import ROTARY_SCALING_FIELDS, FormatLimits, refuse, unset
from glassformer.checkpoint.output_folder import check_output_file
from glassformer.checkpoint.safe_files import replacing
from glassformer.models import DecoderModel, ModelConfig
from glassformer.models.config_names import EXPERT_FIELDS
from glassformer.text.word_patterns import CUTS, GPT2_WORDS

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
Numbers = Literal["f32", "f16", "q8_0"]


def _limits(architecture: str, **biases_and_norms: tuple[bool, ...]) -> FormatLimits:
    """Return which configs a llama.cpp architecture (llama, qwen2 or qwen3) can express.

    All three have a SiLU gate, RMSNorm and rotary positions. They differ in biases and Q/K norms: `biases_and_norms`
    maps each of these settings, such as `qkv_bias`, to its allowed values.
    """
    return FormatLimits(
        format=f"llama.cpp's architecture {architecture!r}",
        written=frozenset(
            {
                "vocab_size",
                "n_decoder_layers",
                "d_model",
                "d_ff",
                "max_len",
                "n_heads",
                "n_kv_heads",
                "head_dim",
                "norm_eps",
                "rope_theta",
                *ROTARY_SCALING_FIELDS,
                "tie",
            }
        ),
        required={
            "source_vocab_size": (None,),
            "n_encoder_layers": (0,),
            "attention_scale": (None,),
            "scale_by_depth": (False,),
            "sliding_window": (None,),
            "activation": ("silu",),
            "gated": (True,),
            "norm": ("rms",),
            "norm_placement": ("pre",),
            "final_norm": (True,),
            "positions": ("rotary",),
            "position_offset": (0,),
            "rope_width": (None,),
            "rope_scaling": ("none", "linear", "llama3", "yarn", "longrope"),
            "scale_embeddings": (False,),  # the scale has been folded into the table
            **unset("relative_bias", "key_bias", "conv_kernel", "conv_activation", "first_norm"),
            **unset("embedding_multiplier", "residual_multiplier", "output_multiplier"),
            **unset("norm_bias", "norm_weight", "parallel_ffn", "qk_norm_over", "clip_qkv", "attention_softcap"),
            **unset("n_experts", *EXPERT_FIELDS),
            **unset("global_layers", "local_rope_theta", "unrotated_layers", "output_softcap"),
            "token_types": (0,),
            "embedding_norm": (False,),
            "embedding_width": (None,),
            "share_layers": (False,),
            "head": ("language_model",),
            "n_labels": (None,),
            "head_transform": (False,),
            **unset("head_activation", "head_norm", "head_bias", "head_width", "unit_length"),
            "pooling": (None,),
            "output_bias": (False,),
            "scale_output": (False,),
            **biases_and_norms,
        },
    )


BOTH, NO, YES = (True, False), (False,), (True,)
LIMITS = {
    "llama": _limits("llama", qkv_bias=BOTH, out_bias=BOTH, ffn_bias=BOTH, qk_norm=NO),
    "qwen2": _limits("qwen2", qkv_bias=YES, out_bias=NO, ffn_bias=NO, qk_norm=NO),
    "qwen3": _limits("qwen3", qkv_bias=NO, out_bias=NO, ffn_bias=NO, qk_norm=YES),
}


MAGIC = b"GGUF"


def write_gguf(
    path: Path,
    model: DecoderModel,
    *,
    numbers: Numbers = "f16",
    tokenizer_json: str | None = None,
    roles: Mapping[str, int | None] | None = None,
    chat_template: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model and its tokenizer to a GGUF file atomically.

    An existing GGUF file is replaced only with `overwrite`. Missing parent folders are created.

    Args:
        numbers: Number format of the matrices: f32, f16 or q8_0. Vectors stay float32. With q8_0, a matrix whose row
            length is not a multiple of 32 is stored in f16.
        tokenizer_json: Contents of a `tokenizer.json`: a byte-level BPE or a SentencePiece-style BPE. None writes a
            file without a tokenizer, and then `roles` and `chat_template` are ignored.
        roles: Token ids of the special tokens, with the keys `bos`, `eos` and `pad`. A token whose id is None is left
            out.
        chat_template: The Jinja template that formats a chat as a prompt.
    """
    contents = None if tokenizer_json is None else json.loads(tokenizer_json)
    kind = _architecture_of(model.config, contents)
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF needs one more package: pip install 'glassformer[gguf]'") from error
    values, tensors = export_model(model, FAMILIES[kind])
    check_output_file(path, MAGIC, overwrite=overwrite)
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as work:
        writer = gguf.GGUFWriter(work, kind)
        _write_config(writer, values)
        divisors = write_rope_scaling(writer, gguf, model.config)
        if contents is None:
            writer.add_tokenizer_model("none")  # llama.cpp refuses files without this key
        else:
            _write_tokenizer(writer, gguf, contents, roles or {}, chat_template)
        if divisors is not None:
            writer.add_tensor(DIVISORS, divisors)
        for name, tensor in tensors.items():
            array: NDArray[Any] = tensor.float().cpu().numpy()
            if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
                heads = values["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
                array = pairs_from_halves(array, heads)
            _add(writer, gguf, gguf_name(name), np.ascontiguousarray(array), numbers)
        with closing(writer):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            _write_tensors(writer)


def blocking_gguf(config: ModelConfig) -> dict[str, list[str]]:
    """Return, for each supported llama.cpp architecture, the settings of `config` that it cannot express."""
    found = {}
    for kind, limits in LIMITS.items():
        plain = rewritten(FAMILIES[kind], config)
        problems = limits.blocking(plain) + blocking_rope_scaling(plain)
        if kind == "qwen2" and plain.head_size * plain.n_heads != plain.d_model:
            problems.append(
                f"head_dim={plain.head_dim} (expected d_model / n_heads, {plain.d_model / plain.n_heads:g})"
            )
        named = {problem.partition("=")[0] for problem in problems}
        more = blocking_settings(FAMILIES[kind], config)
        found[kind] = problems + [problem for problem in more if problem.partition("=")[0] not in named]
    return found


def _architecture_of(config: ModelConfig, tokenizer: Mapping[str, Any] | None) -> str:
    """Return the first llama.cpp architecture that can express all settings of `config`.

    Raises UnsupportedModelError if there is none, or if llama.cpp does not support the tokenizer. The message names the
    settings that the closest architecture cannot express, and the unsupported parts of the tokenizer.
    """
    found = blocking_gguf(config)
    nearest = min(found, key=lambda kind: len(found[kind]))
    of_tokenizer = [] if tokenizer is None else _blocking_tokenizer(tokenizer)
    refuse(f"llama.cpp's architecture {nearest!r}", [*found[nearest], *of_tokenizer])
    return nearest


def gguf_name(name: str) -> str:
    """Convert an HF tensor name to llama.cpp's: `model.layers.0.mlp.up_proj.weight` to `blk.0.ffn_up.weight`."""
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        number, inner = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{NAMES[inner]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def pairs_from_halves(rows: NDArray[Any], n_heads: int) -> NDArray[Any]:
    """Reorder the rows of a Q or K projection from HF's order to that of llama.cpp's architecture llama.

    RoPE rotates the rows of each head in pairs. Within a head, HF stores the first rows of all pairs and then the
    second rows; llama.cpp stores pair after pair.
    """
    split = rows.reshape(n_heads, 2, len(rows) // n_heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _add(writer: Any, gguf: Any, name: str, array: NDArray[Any], numbers: Numbers) -> None:
    is_matrix = array.ndim == 2
    if is_matrix and numbers == "q8_0" and array.shape[1] % 32 == 0:
        packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    elif is_matrix and numbers != "f32":
        writer.add_tensor(name, array.astype(np.float16))
    else:
        writer.add_tensor(name, array.astype(np.float32))


def _write_tensors(writer: Any) -> None:
    """Write the tensors like `GGUFWriter.write_tensors_to_file`, but with the `write` method of Python's files.

    The gguf package uses NumPy's `tofile`, which ignores a full disk and leaves a truncated file.
    """
    writer.write_ti_data_to_file()
    (file,), (tensors,) = writer.fout, writer.tensors
    writer.write_padding(file, file.tell())
    for about in tensors.values():
        file.write(about.tensor.data)
        writer.write_padding(file, about.nbytes)


def _write_config(writer: Any, values: Mapping[str, Any]) -> None:
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(values["num_attention_heads"])
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_key_length(values["head_dim"])
    writer.add_value_length(values["head_dim"])
    writer.add_rope_dimension_count(values["head_dim"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    writer.add_rope_freq_base(values["rope_theta"])
    writer.add_vocab_size(values["vocab_size"])


def _write_tokenizer(
    writer: Any, gguf: Any, contents: Mapping[str, Any], roles: Mapping[str, int | None], chat_template: str | None
) -> None:
    inner = contents["model"]
    vocabulary = dict(inner.get("vocab", {}))
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in inner["merges"]]
    special = {}
    for token in contents.get("added_tokens", []):
        vocabulary[token["content"]] = token["id"]
        special[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    order = sorted(vocabulary, key=lambda token: vocabulary[token])
    if inner.get("byte_fallback"):  # SentencePiece style: a score per token gives the merge order
        ranks: dict[str, int] = {}
        for rank, parts in enumerate(merges):
            ranks.setdefault("".join(parts), rank)
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(ranks.get(token, len(merges))) for token in order])
        for number in range(256):
            special.setdefault(vocabulary.get(f"<0x{number:02X}>", -1), gguf.TokenType.BYTE)
        special.setdefault(vocabulary.get(inner.get("unk_token") or "", -1), gguf.TokenType.UNKNOWN)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_rule_of_words(contents))
        writer.add_token_merges([" ".join(parts) for parts in merges])
    writer.add_token_list(order)
    writer.add_token_types([special.get(vocabulary[token], gguf.TokenType.NORMAL) for token in order])
    for role, index in roles.items():
        if index is not None:
            getattr(writer, f"add_{role}_token_id")(index)
    if chat_template:
        writer.add_chat_template(chat_template)


def _blocking_tokenizer(contents: Mapping[str, Any]) -> list[str]:
    """Return descriptions of the parts of a `tokenizer.json` that llama.cpp does not support, for an error message.

    A description names the `TokenizerConfig` setting that causes it, `lowercase` or `prefix_space`, if there is one.
    """
    inner, normalizer, cutter = contents["model"], contents.get("normalizer"), contents.get("pre_tokenizer") or {}
    if inner.get("type") != "BPE":
        return [f"a tokenizer of type {inner.get('type')!r} (expected 'BPE')"]
    if inner.get("byte_fallback"):
        return []
    found = []
    # llama.cpp does not normalize. NFC only changes text that is not composed yet.
    if normalizer is not None and normalizer.get("type") != "NFC":
        cause = "lowercase=True, " if normalizer.get("type") == "Lowercase" else ""
        found.append(f"a tokenizer with {cause}normalizer {json.dumps(normalizer)[:80]} (expected none)")
    if _rule_of_words(contents) is None:
        cause = "prefix_space=True, " if cutter.get("add_prefix_space") else ""
        found.append(
            f"a tokenizer with {cause}pre_tokenizer {json.dumps(cutter)[:200]} (expected one that cuts words as "
            f"{', '.join(CUTS)}, and adds no space)"
        )
    return found


def _rule_of_words(contents: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for the pre-tokenizer of a byte-level `tokenizer.json`; None if llama.cpp lacks it."""
    cutter = contents.get("pre_tokenizer") or {}
    steps = cutter.get("pretokenizers", []) if cutter.get("type") == "Sequence" else [cutter]
    patterns = [pattern for step in steps for pattern in _patterns(step)]
    return next((name for name, cuts in CUTS.items() if list(cuts) == patterns), None)


def _patterns(step: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions by which one `pre_tokenizer` step splits text, for `_rule_of_words`.

    For an unsupported step the list holds a string that equals no pattern of llama.cpp, so the caller returns None.
    """
    kind = step.get("type")
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return [GPT2_WORDS] if step.get("use_regex", True) else []
    if kind == "Digits" and step.get("individual_digits"):
        return [r"\p{N}"]
    if kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        return [str(step.get("pattern", {}).get("Regex"))]
    return [f"another rule: {kind}"]
