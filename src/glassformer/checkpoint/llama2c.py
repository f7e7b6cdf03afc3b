"""Read the model files of llama2.c (Karpathy's Llama in C): a header of seven integers, then float32 weights.

The weights are grouped by kind: the Q projections of all layers, then the K projections of all layers, and so on.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.gguf_file import halves_from_pairs
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.text.gguf_tokenizer import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, scored_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

HEADER = struct.Struct("<7i")
LATER_VERSIONS = 0x616B3432
"""The first integer of files of version 1 and later, which cannot be read."""
SPECIAL = ("<unk>", "<s>", "</s>")
# Limits for hostile files.
MAX_LAYERS = 1 << 12
MAX_TOKENIZER = 1 << 26


def read_llama2c(path: Path, tokenizer: Path | None = None) -> ExternalModel:
    """Open a llama2.c `.bin` file of version 0. Tensors are read when they are accessed.

    `tokenizer` is the path of llama2.c's tokenizer file. The default is `tokenizer.bin` in the model's folder, or else
    the only other file `tok*.bin` there; several raise ValueError. Without such a file the model has no tokenizer.
    """
    path = Path(path)
    config = _config(path)
    tokenizer = tokenizer or _tokenizer_beside(path)
    tokenizer_json: str | None = None
    tokenizer_config: dict[str, Any] = {}
    if tokenizer is not None:
        tokenizer_json = _tokenizer(Path(tokenizer), config["vocab_size"])
        unknown, begin, end = SPECIAL
        tokenizer_config = {"bos_token": begin, "eos_token": end, "unk_token": unknown}
        tokenizer_config |= {"add_bos_token": True, "add_eos_token": False}
    return ExternalModel(
        config=config,
        tensors=Llama2cTensors(path, config),
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
    )


class Llama2cTensors:
    """Lazy access to the tensors of a llama2.c file by HF's names (see `Tensors`)."""

    def __init__(self, path: Path, config: Mapping[str, Any]):
        self._config = config
        self._data = np.memmap(path, "<f4", "r", offset=HEADER.size)
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        at = 0
        for name, shape in _kinds(config):
            # Names with "{}" exist once per layer.
            for index in range(config["num_hidden_layers"] if "{}" in name else 1):
                self._places[name.format(index)] = at, shape
                at += math.prod(shape)

    def keys(self) -> Iterator[str]:
        """Return an iterator over the HF names of all tensors."""
        return (name for name in self._places if name not in ANGLES)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._places[name][1]

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor and return it. The rows of Q and K are reordered to HF's rotary order."""
        import torch

        at, shape = self._places[name]
        values = np.array(self._data[at : at + math.prod(shape)], np.float32).reshape(shape)
        if ".q_proj." in name:
            values = halves_from_pairs(values, self._config["num_attention_heads"])
        if ".k_proj." in name:
            values = halves_from_pairs(values, self._config["num_key_value_heads"])
        return torch.from_numpy(values)

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor, which is always F32."""
        return "F32"


ANGLES = ("freq_cis_real", "freq_cis_imag")
"""Names of the rotary tables in the file. They are not read, because the model computes them."""


def _kinds(config: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the HF name and shape of each kind of tensor, in file order.

    In a name, `{}` stands for the layer's number: every layer has such a tensor.
    """
    width, inner, n_heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    table = (config["vocab_size"], width)
    head_dim = width // n_heads
    k_rows, half = config["num_key_value_heads"] * head_dim, head_dim // 2
    layer = "model.layers.{}."
    kinds = [
        ("model.embed_tokens.weight", table),
        (layer + "input_layernorm.weight", (width,)),
        (layer + "self_attn.q_proj.weight", (width, width)),
        (layer + "self_attn.k_proj.weight", (k_rows, width)),
        (layer + "self_attn.v_proj.weight", (k_rows, width)),
        (layer + "self_attn.o_proj.weight", (width, width)),
        (layer + "post_attention_layernorm.weight", (width,)),
        (layer + "mlp.gate_proj.weight", (inner, width)),
        (layer + "mlp.down_proj.weight", (width, inner)),
        (layer + "mlp.up_proj.weight", (inner, width)),
        ("model.norm.weight", (width,)),
        *((name, (config["max_position_embeddings"], half)) for name in ANGLES),
    ]
    return kinds if config["tie_word_embeddings"] else [*kinds, ("lm_head.weight", table)]


def _config(path: Path) -> dict[str, Any]:
    """Convert the header to HF's `config.json` values. Raises CorruptFolderError if it does not fit the file's size."""
    size = path.stat().st_size
    if size < HEADER.size:
        raise CorruptFolderError(f"{path} has {size} bytes: expected a header of {HEADER.size}")
    with path.open("rb") as stream:
        width, inner, n_layers, n_heads, n_kv_heads, vocab_size, length = HEADER.unpack(stream.read(HEADER.size))
    if width == LATER_VERSIONS:
        raise ValueError(f"{path} is a later version of llama2.c's format: expected the first, export.py --version 0")
    sizes = (width, inner, n_layers, n_heads, n_kv_heads, abs(vocab_size), length)
    if min(sizes) < 1 or n_layers > MAX_LAYERS or width % n_heads or width // n_heads % 2 or n_heads % n_kv_heads:
        raise CorruptFolderError(
            f"{path} has the header {(*sizes[:5], vocab_size, length)}: expected dim, hidden_dim, n_layers, n_heads, "
            f"n_kv_heads, vocab_size and seq_len, at most {MAX_LAYERS} layers, heads that divide dim into even parts"
        )
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": abs(vocab_size),
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        # A negative vocab_size means an untied output table.
        "tie_word_embeddings": vocab_size > 0,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    numbers = sum(math.prod(shape) * (n_layers if "{}" in name else 1) for name, shape in _kinds(config))
    if size != HEADER.size + 4 * numbers:
        raise CorruptFolderError(
            f"{path} has {size} bytes: expected {HEADER.size + 4 * numbers} by its header "
            f"{(*sizes[:5], vocab_size, length)}"
        )
    return config


def _tokenizer_beside(path: Path) -> Path | None:
    whole = path.with_name("tokenizer.bin")
    if whole.is_file():
        return whole
    found = sorted(file for file in path.parent.glob("tok*.bin") if file.name != path.name)
    if len(found) > 1:
        raise ValueError(f"{path.parent} has {', '.join(file.name for file in found)}: expected one, or tokenizer=")
    return found[0] if found else None


def _tokenizer(path: Path, count: int) -> str:
    """Convert llama2.c's tokenizer file to the contents of a `tokenizer.json`.

    The file stores the score, length and text of each of `count` tokens.
    """
    size = path.stat().st_size
    if not len(SPECIAL) <= count <= size <= MAX_TOKENIZER:
        raise CorruptFolderError(
            f"{path} has {size} bytes for {count} tokens: expected {len(SPECIAL)} tokens or more in {MAX_TOKENIZER}"
        )
    data = path.read_bytes()
    at, tokens, scores = 4, [], []
    try:
        (longest,) = struct.unpack_from("<i", data)
        for index in range(count):
            score, length = struct.unpack_from("<fi", data, at)
            at += 8
            if not 0 <= length <= min(longest, len(data) - at):
                raise CorruptFolderError(
                    f"{path}: token {index} has {length} bytes: expected at most {longest}, within {len(data)}"
                )
            tokens.append(data[at : at + length].decode().replace(" ", SPACE))
            scores.append(score)
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptFolderError(f"{path} is no vocabulary of {count} tokens at byte {at}: {error}") from error
    if at != len(data):
        raise CorruptFolderError(f"{path} has {len(data)} bytes: expected {at} for {count} tokens")
    # The first three are always the special tokens, stored with added whitespace.
    tokens[:3] = SPECIAL
    types = [BYTE if re.fullmatch("<0x[0-9A-F]{2}>", token) else NORMAL for token in tokens]
    types[:3] = [UNKNOWN, CONTROL, CONTROL]
    try:
        return scored_tokenizer(tokens, scores, types, begin=1).to_str()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
