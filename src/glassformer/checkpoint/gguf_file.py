"""Read GGUF files (llama.cpp's format), converting metadata and tensor names to HF's and dequantizing the tensors.

This module parses the header and checks every length against the file size, because the reader of the `gguf` package
trusts the lengths and takes seconds for a vocabulary. The package is used to dequantize the tensors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.text.gguf_tokenizer import token_id, tokenizer_from_metadata

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Limits for hostile headers. The largest real headers stay below three quarters of each.
MAX_HEADER = 1 << 26
MAX_ENTRIES = 1 << 16
MAX_ITEMS = 1 << 21
MAX_CONTEXT = 1 << 24

# Value type numbers. 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

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
    header = _Header(path, gguf)
    try:
        config = _config(header)
        tensors = GgufTensors(header, config, gguf)
        tokenizer_json, tokenizer_config = tokenizer_from_metadata(header.metadata)
        count = len(header.metadata["tokenizer.ggml.tokens"]) if tokenizer_json else 0
        if count > config["vocab_size"]:
            raise ValueError(f"{count} tokens: expected at most {config['vocab_size']}, the rows of token_embd.weight")
    except CorruptFolderError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return ExternalModel(
        config=config, tensors=tensors, tokenizer_json=tokenizer_json, tokenizer_config=tokenizer_config
    )


def halves_from_pairs(rows: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a Q or K projection to HF's order, from that of llama2.c and llama.cpp's architecture llama.

    RoPE rotates the rows of each head in pairs. Within a head, these two store pair after pair; HF stores the first
    rows of all pairs and then the second rows.
    """
    return rows.reshape(n_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class GgufTensors:
    """Lazy access to the tensors of a GGUF file by HF's names (see `Tensors`).

    The constructor raises ValueError unless the file has exactly the tensors that `config` implies, in their shapes.
    """

    def __init__(self, header: _Header, config: Mapping[str, Any], gguf: ModuleType):
        self._header, self._config, self._gguf = header, config, gguf
        self._names = {}
        expected = _expected(config)
        for name, (foreign, shape) in expected.items():
            if foreign not in header.tensors:
                raise ValueError(f"there is no tensor {foreign}: expected one of shape {shape}")
            if header.tensors[foreign].shape != shape:
                raise ValueError(f"{foreign} has the shape {header.tensors[foreign].shape}: expected {shape}")
            self._names[name] = foreign
        extra = sorted(set(header.tensors) - set(self._names.values()))
        if extra:
            raise ValueError(f"{', '.join(extra[:5])}: expected no such tensor in a model of {config['model_type']}")
        for kind in {header.tensors[foreign].kind for foreign in self._names.values()}:
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

        stored = self._header.tensors[self._names[name]]
        # Use a plain read: mapped pages would count as memory beside the model's.
        rows = np.fromfile(self._header.path, np.uint8, stored.size, offset=stored.start)
        with np.errstate(all="ignore"):  # a NaN stays a NaN, without a warning
            values = self._gguf.dequantize(rows.reshape(*stored.shape[:-1], -1), stored.kind).reshape(stored.shape)
        if self._config["model_type"] == "llama" and ".q_proj." in name:
            values = halves_from_pairs(values, self._config["num_attention_heads"])
        if self._config["model_type"] == "llama" and ".k_proj." in name:
            values = halves_from_pairs(values, self._config["num_key_value_heads"])
        # Training must not write into a read-only or mapped array.
        return torch.from_numpy(np.require(values, np.float32, ["C", "W", "A"]))

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, such as Q4_K."""
        return str(self._header.tensors[self._names[name]].kind.name)

    def _check_kind(self, kind: Any) -> None:
        size = self._gguf.GGML_QUANT_SIZES[kind][1]
        try:
            self._gguf.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError as error:
            raise ValueError(f"tensors in {kind.name}: expected floating point or a supported quantization") from error


@dataclass(frozen=True)
class _Stored:
    """Shape, number format (`kind`) and byte range (`start`, `size`) of one tensor in a GGUF file."""

    shape: tuple[int, ...]
    kind: Any
    start: int
    size: int


class _Header:
    """The header of a GGUF file: metadata values by key, and the location of each tensor."""

    def __init__(self, path: Path, gguf: ModuleType):
        self.path = path
        if path.stat().st_size < 24:
            raise CorruptFolderError(f"{path} has {path.stat().st_size} bytes: expected a GGUF file")
        self.data = np.asarray(np.memmap(path, np.uint8, "r"))
        self._view, self._at, self._items = self.data.data, 0, 0
        magic = bytes(self._take(4))
        if magic != MAGIC:
            raise CorruptFolderError(f"{path} starts with {magic!r}: expected {MAGIC!r}")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"{path} is GGUF of version {version}: expected little-endian, version 2 or 3")
        n_tensors, n_values = self._count("tensors"), self._count("values")
        self.metadata: dict[str, Any] = {}
        for _ in range(n_values):
            key = self._text()
            if key in self.metadata:
                raise CorruptFolderError(f"{path} has {key[:80]!r} twice: expected one value")
            self.metadata[key] = self._value(self._number("I"))
        self.tensors = self._places(n_tensors, gguf)

    def _take(self, count: int) -> memoryview:
        """Return the next `count` bytes. Raises CorruptFolderError if they exceed the file or `MAX_HEADER` bytes."""
        start, end = self._at, self._at + count
        if end > len(self._view):
            raise CorruptFolderError(f"{self.path} ends at byte {len(self._view)}: its header expects {end} or more")
        if end > MAX_HEADER:
            raise CorruptFolderError(f"{self.path} has a header of {end} bytes or more: expected at most {MAX_HEADER}")
        self._at = end
        return self._view[start:end]

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, what: str) -> int:
        count = self._number("Q")
        if count > MAX_ENTRIES:
            raise CorruptFolderError(f"{self.path} has {count} {what}: expected at most {MAX_ENTRIES}")
        return count

    def _text(self) -> str:
        start, piece = self._at, bytes(self._take(self._number("Q")))
        try:
            return piece.decode()
        except UnicodeDecodeError as error:
            raise CorruptFolderError(f"{self.path} has a string at byte {start} that is not UTF-8: {error}") from error

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            raise CorruptFolderError(f"{self.path} has a value of type {kind} at byte {self._at}: expected 0 to 12")
        kind, count = self._number("I"), self._number("Q")
        self._items += count
        if self._items > MAX_ITEMS:
            raise CorruptFolderError(f"{self.path} has arrays of {self._items} items: expected at most {MAX_ITEMS}")
        if kind == STRING:
            return self._texts(count)
        if kind not in SCALARS:
            raise CorruptFolderError(f"{self.path} has an array of type {kind} at byte {self._at}: expected scalars")
        code = "<" + SCALARS[kind]
        return np.frombuffer(self._take(count * struct.calcsize(code)), code).tolist()

    def _texts(self, count: int) -> list[str]:
        """Read an array of `count` strings in one loop, because `_text` per string is slow for a vocabulary."""
        view, at, texts, length_at = self._view, self._at, [], struct.Struct("<Q").unpack_from
        last = min(len(view), MAX_HEADER)
        for _ in range(count):
            if at + 8 > last or (end := at + 8 + length_at(view, at)[0]) > last:
                break
            try:
                texts.append(str(view[at + 8 : end], "utf-8"))
            except UnicodeDecodeError:
                break
            at = end
        self._at = at
        if len(texts) < count:
            self._text()  # raises the error for the next string
        return texts

    def _places(self, count: int, gguf: ModuleType) -> dict[str, _Stored]:
        """Read the entries of `count` tensors and check that their byte ranges lie in the file and do not overlap."""
        found: dict[str, _Stored] = {}
        for _ in range(count):
            name, n_dims = self._text(), self._number("I")
            if name in found or not 1 <= n_dims <= 4:
                raise CorruptFolderError(f"{self.path} has {name[:80]!r} twice or in {n_dims} dimensions: expected 1-4")
            dims, code, offset = [self._number("Q") for _ in range(n_dims)], self._number("I"), self._number("Q")
            try:
                kind = gguf.GGMLQuantizationType(code)
                block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            except (ValueError, KeyError) as error:
                raise CorruptFolderError(f"{self.path}: {name} is stored in {code}: expected a known type") from error
            if 0 in dims or dims[0] % block:
                raise CorruptFolderError(f"{self.path}: {name} has {dims} numbers: expected rows of {block} in a block")
            found[name] = _Stored(tuple(reversed(dims)), kind, offset, math.prod(dims) // block * block_bytes)
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CorruptFolderError(f"{self.path}: general.alignment={alignment}: expected a power of two")
        end = data_start = -(-self._at // alignment) * alignment
        for name, stored in sorted(found.items(), key=lambda item: item[1].start):
            start = data_start + stored.start
            if start < end or stored.start % alignment or start + stored.size > len(self._view):
                raise CorruptFolderError(
                    f"{self.path}: {name} takes {stored.size} bytes from {start}: expected a separate range between "
                    f"{end} and {len(self._view)}, the end of the file"
                )
            end, found[name] = start + stored.size, _Stored(stored.shape, stored.kind, start, stored.size)
        return found


def _config(header: _Header) -> dict[str, Any]:
    """Convert the header's metadata to HF's `config.json` values. Raises ValueError for an unsupported model."""
    values, tensors = header.metadata, header.tensors
    kind = values.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"general.architecture={str(kind)[:80]!r}: expected one of {', '.join(ARCHITECTURES)}")
    _refuse_unsupported(values, kind, tensors)
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
        "max_position_embeddings": _whole(values, f"{kind}.context_length", MAX_CONTEXT),
        "rms_norm_eps": _positive(values, f"{kind}.attention.layer_norm_rms_epsilon"),
        "rope_theta": _positive(values, f"{kind}.rope.freq_base", default=10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": token_id(values, "bos", vocab_size),
        "eos_token_id": token_id(values, "eos", vocab_size),
    }
    # HF's Qwen3 defaults to head_dim=128; the other families default to hidden_size / heads.
    if kind == "qwen3" or head_dim * n_heads != width:
        config["head_dim"] = head_dim
    if kind == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if kind == "qwen3":
        config["attention_bias"] = False
    return config


def _refuse_unsupported(values: Mapping[str, Any], kind: str, tensors: Mapping[str, _Stored]) -> None:
    scaling = values.get(f"{kind}.rope.scaling.type", "none")
    factors = [values.get(f"{kind}.rope.{key}", 1.0) for key in ("scaling.factor", "scale_linear")]
    if scaling != "none" or any(factor not in (0, 1) for factor in factors) or "rope_freqs.weight" in tensors:
        raise ValueError(
            f"{kind}.rope.scaling.type={scaling!r}, factors {factors}, rope_freqs.weight "
            f"{'there' if 'rope_freqs.weight' in tensors else 'not there'}: expected rotary angles that are not scaled"
        )
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
