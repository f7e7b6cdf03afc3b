"""Read GGUF files (llama.cpp's format), converting metadata and tensor names to HF's and dequantizing the tensors.

`gguf_header.py` parses the header. The `gguf` package is used to dequantize the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.gguf_header import GgufHeader
from glassformer.checkpoint.gguf_rotary import DIVISORS, read_rope_scaling
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.text.gguf_tokenizer import token_id, tokenizer_from_metadata

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

MAX_CONTEXT = 1 << 24
"""Limit of the context length in a hostile header."""

Number = TypeVar("Number", bound=np.generic)

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of the modules of one layer: GGUF's -> HF's."""


def read_gguf(path: Path) -> ExternalModel:
    """Open a GGUF file of architecture llama, qwen2 or qwen3. Tensors are read when they are accessed.

    Whatever the file stores, tensors are returned in float32, and the rows of Q and K are in HF's order.
    """
    path, gguf = Path(path), _library()
    header = GgufHeader(path, gguf)
    try:
        config = _config(header)
        tensors = GgufTensors(header, config, gguf)
        tokenizer_json, tokenizer_config = tokenizer_from_metadata(header.metadata)
        count = len(header.metadata["tokenizer.ggml.tokens"]) if tokenizer_json else 0
        if count > config["vocab_size"]:
            raise ValueError(f"{count} tokens: expected at most {config['vocab_size']}, the rows of token_embd.weight")
        header.forget_lists()  # the tensors keep the header; lists of all tokens would stay in memory with it
    except CorruptFolderError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return ExternalModel(
        config=config, tensors=tensors, tokenizer_json=tokenizer_json, tokenizer_config=tokenizer_config
    )


def halves_from_pairs(rows: NDArray[Number], n_heads: int) -> NDArray[Number]:
    """Reorder the rows of a Q or K projection to HF's order, from that of llama2.c and llama.cpp's architecture llama.

    RoPE rotates the rows of each head in pairs. Within a head, these two store pair after pair; HF stores the first
    rows of all pairs and then the second rows.
    """
    return rows.reshape(n_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class GgufTensors:
    """Lazy access to the tensors of a GGUF file by HF's names (see `Tensors`).

    The constructor raises ValueError unless the file has exactly the tensors that `config` implies, in their shapes.
    """

    def __init__(self, header: GgufHeader, config: Mapping[str, Any], gguf: ModuleType):
        self._header, self._config, self._gguf = header, config, gguf
        self._names = {}
        expected = _expected(config)
        for name, (gguf_name, shape) in expected.items():
            if gguf_name not in header.tensors:
                raise ValueError(f"there is no tensor {gguf_name}: expected one of shape {shape}")
            if header.tensors[gguf_name].shape != shape:
                raise ValueError(f"{gguf_name} has the shape {header.tensors[gguf_name].shape}: expected {shape}")
            self._names[name] = gguf_name
        extra = sorted(set(header.tensors) - set(self._names.values()) - {DIVISORS})  # which the config holds
        if extra:
            raise ValueError(f"{', '.join(extra[:5])}: expected no such tensor in a model of {config['model_type']}")
        for kind in {header.tensors[gguf_name].kind for gguf_name in self._names.values()}:
            self._check_kind(kind)

    def keys(self) -> Iterator[str]:
        """Return an iterator over the HF names of all tensors."""
        return iter(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._header.tensors[self._names[name]].shape

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor, dequantize it and return it in float32."""
        import torch

        values = self.read_rows(name, 0, self.shape(name)[0])
        # Training must not write into a read-only or mapped array.
        return torch.from_numpy(np.require(values, np.float32, ["C", "W", "A"]))

    def read_rows(self, name: str, begin: int, end: int) -> NDArray[np.float32]:
        """Read some rows of a tensor and dequantize them. Their number is a multiple of `row_step`."""
        stored = self._header.tensors[self._names[name]]
        raw = self.read_raw(name, begin, end)
        with np.errstate(all="ignore"):  # a NaN stays a NaN, without a warning
            values = self._gguf.dequantize(raw, stored.kind).reshape(-1, *stored.shape[1:])
        return self.reorder_rows(name, values)

    def read_raw(self, name: str, begin: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes of some rows of a tensor, in the file's order and number format: (rows, bytes)."""
        stored = self._header.tensors[self._names[name]]
        size = stored.size // stored.shape[0]
        # Use a plain read: mapped pages would count as memory beside the model's.
        raw = np.fromfile(self._header.path, np.uint8, (end - begin) * size, offset=stored.start + begin * size)
        return raw.reshape(end - begin, -1)

    def row_step(self, name: str) -> int:
        """Return the number of rows that `reorder_rows` exchanges with each other: those of a head, or 1."""
        heads = self._reordered_heads(name)
        return self.shape(name)[0] // heads if heads else 1

    def reorder_rows(self, name: str, rows: NDArray[Number]) -> NDArray[Number]:
        """Return rows of this tensor in HF's order. They must be those of one or several whole heads (`row_step`)."""
        if not self._reordered_heads(name):
            return rows
        return halves_from_pairs(rows, len(rows) // self.row_step(name))

    def is_quantized(self, name: str) -> bool:
        """Return whether a tensor is stored in blocks of quantized numbers."""
        block, _ = self._gguf.GGML_QUANT_SIZES[self._header.tensors[self._names[name]].kind]
        return int(block) > 1

    def _reordered_heads(self, name: str) -> int:
        """Return the number of heads of a Q or K projection that is not in HF's order; 0 for other tensors."""
        if self._config["model_type"] != "llama":
            return 0
        heads = {".q_proj.": "num_attention_heads", ".k_proj.": "num_key_value_heads"}
        return next((int(self._config[key]) for part, key in heads.items() if part in name), 0)

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as Q4_K."""
        return str(self._header.tensors[self._names[name]].kind.name)

    def _check_kind(self, kind: Any) -> None:
        size = self._gguf.GGML_QUANT_SIZES[kind][1]
        try:
            self._gguf.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError as error:
            raise ValueError(f"tensors in {kind.name}: expected floating point or a supported quantization") from error


def _config(header: GgufHeader) -> dict[str, Any]:
    """Convert the header's metadata to HF's `config.json` values. Raises ValueError for an unsupported model."""
    values, tensors = header.metadata, header.tensors
    kind = values.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"general.architecture={str(kind)[:80]!r}: expected one of {', '.join(ARCHITECTURES)}")
    _refuse_unsupported(values, kind)
    if len(tensors["token_embd.weight"].shape if "token_embd.weight" in tensors else ()) != 2:
        raise ValueError("there is no table token_embd.weight: expected one row for each token")
    vocab_size, _ = tensors["token_embd.weight"].shape
    width = _whole(values, f"{kind}.embedding_length")
    # Every layer has tensors, so their number bounds the number of layers.
    n_layers = _whole(values, f"{kind}.block_count", len(tensors))
    n_heads = _whole(values, f"{kind}.attention.head_count", width)
    n_kv_heads = _whole(values, f"{kind}.attention.head_count_kv", n_heads, default=n_heads)
    head_dim = _whole(values, f"{kind}.attention.key_length", default=width // n_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if _whole(values, f"{kind}.{key}", default=head_dim) != head_dim:
            raise ValueError(f"{kind}.{key}={values[f'{kind}.{key}']}: expected {head_dim}, the size of a head")
    if head_dim % 2 or n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} heads of size {head_dim}: expected an even size, and {n_kv_heads} to divide them")
    length = _whole(values, f"{kind}.context_length", MAX_CONTEXT)
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": _whole(values, f"{kind}.feed_forward_length"),
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rms_norm_eps": _positive(values, f"{kind}.attention.layer_norm_rms_epsilon"),
        "rope_theta": _positive(values, f"{kind}.rope.freq_base", default=10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": token_id(values, "bos", vocab_size),
        "eos_token_id": token_id(values, "eos", vocab_size),
    }
    if scaling := read_rope_scaling(header, kind, head_dim, length):
        config["rope_scaling"] = scaling
    # HF's Qwen3 defaults to head_dim=128; the other families default to hidden_size / heads.
    if kind == "qwen3" or head_dim * n_heads != width:
        config["head_dim"] = head_dim
    if kind == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if kind == "qwen3":
        config["attention_bias"] = False
    return config


def _refuse_unsupported(values: Mapping[str, Any], kind: str) -> None:
    for key, meaning in (("expert_count", "experts"), ("attention.sliding_window", "a sliding window")):
        if values.get(f"{kind}.{key}", 0) != 0:
            raise ValueError(f"{kind}.{key}={str(values[f'{kind}.{key}'])[:80]}: expected a model without {meaning}")


def _expected(config: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors that a model of this config has: HF's name -> (GGUF's name, shape)."""
    width, inner, vocab_size = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", width // config["num_attention_heads"])
    q_rows, k_rows = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    # (rows, columns) of matrices. A bias has one value per row.
    matrices = {
        "attn_q": (q_rows, width),
        "attn_k": (k_rows, width),
        "attn_v": (k_rows, width),
        "attn_output": (width, q_rows),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    vectors = {"attn_norm": width, "ffn_norm": width}
    if config["model_type"] == "qwen3":
        vectors |= {"attn_q_norm": head_dim, "attn_k_norm": head_dim}
    biases: list[str] = []
    if config["model_type"] == "qwen2":
        biases += ["attn_q", "attn_k", "attn_v"]
    if config.get("attention_bias"):
        biases += ["attn_q", "attn_k", "attn_v", "attn_output"]
    if config.get("mlp_bias"):
        biases += ["ffn_gate", "ffn_up", "ffn_down"]
    layer: dict[str, tuple[int, ...]] = {f"{part}.weight": shape for part, shape in matrices.items()}
    layer |= {f"{part}.weight": (size,) for part, size in vectors.items()}
    layer |= {f"{part}.bias": matrices[part][:1] for part in biases}
    expected = {
        "model.embed_tokens.weight": ("token_embd.weight", (vocab_size, width)),
        "model.norm.weight": ("output_norm.weight", (width,)),
    }
    for index in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            part, _, end = name.partition(".")
            expected[f"model.layers.{index}.{PARTS[part]}.{end}"] = (f"blk.{index}.{name}", shape)
    if not config["tie_word_embeddings"]:
        expected["lm_head.weight"] = ("output.weight", (vocab_size, width))
    return expected


def _whole(values: Mapping[str, Any], key: str, most: int = 1 << 31, *, default: int | None = None) -> int:
    value = values.get(key, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{key}={str(value)[:80]}: expected a whole number from 1 to {most}")
    return value


def _positive(values: Mapping[str, Any], key: str, *, default: float | None = None) -> float:
    value = values.get(key, default)
    if type(value) is not float or not 0 < value < math.inf:
        raise ValueError(f"{key}={str(value)[:80]}: expected a positive number")
    # The value is stored in float32. Return the shortest decimal that rounds to it.
    return float(str(np.float32(value)))


def _library() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise ImportError("reading GGUF files needs the gguf package: pip install 'glassformer[gguf]'") from error
    return gguf
