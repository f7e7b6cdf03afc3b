"""Unpack the quantized blocks of GGUF tensors into codes, scales and minimums, without changing their values.

| stored as        | kept as groups of 32 weights, each with                                                 |
|------------------|-----------------------------------------------------------------------------------------|
| Q4_0, Q4_1       | 4-bit codes, float16 scale (and minimum): as many bytes as in the file                  |
| Q4_K             | 4-bit codes, float32 scale and minimum: 6 bits per weight instead of 4.5                |
| Q8_0, Q5_0, Q5_1 | 8-bit codes, float16 scale (and minimum)                                                |
| Q5_K             | 8-bit codes, float32 scale and minimum                                                  |
| others (Q6_K)    | 8-bit codes, float32 scale, rounded: off by at most 1/254 of a group's largest magnitude |

The K formats store a scale as the product of a float16 and a 6-bit number, which float32 holds exactly.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.kernels.groupwise_matrix import GROUP_SIZE, GroupwiseFormat, GroupwiseRows

Raw = NDArray[np.uint8]
Numbers = NDArray[np.float32]
Parts = tuple[NDArray[np.int8], Numbers, Numbers | None]
"""Codes (blocks, weights), and scales and minimums (blocks, groups) or None."""

SUPER_BLOCK = 256
"""The weights of a block of the K formats, which has 8 groups."""

ROUNDED = GroupwiseFormat(8, has_mins=False, number_dtype=torch.float32)
"""The format for kinds that are not in `FORMATS`, whose weights are dequantized and rounded."""


def unpack_blocks(raw: Raw, kind: str) -> GroupwiseRows:
    """Convert rows of a tensor stored as `kind`, one of `FORMATS`: bytes (rows, bytes of a row)."""
    _, block_bytes, unpack = FORMATS[kind]
    with np.errstate(all="ignore"):  # a NaN stays a NaN, without a warning
        codes, scales, mins = unpack(raw.reshape(-1, block_bytes))
    rows = len(raw)
    return GroupwiseRows(
        torch.from_numpy(np.ascontiguousarray(codes)).view(rows, -1),
        torch.from_numpy(np.ascontiguousarray(scales)).view(rows, -1),
        None if mins is None else torch.from_numpy(np.ascontiguousarray(mins)).view(rows, -1),
    )


def _halves(raw: Raw) -> Numbers:
    """Read little-endian float16 numbers: (blocks, 2 n) bytes -> (blocks, n)."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(raw: Raw) -> Raw:
    """Return the low halves of all bytes and then the high ones: (..., n) -> (..., 2 n)."""
    return np.concatenate([raw & 15, raw >> 4], -1)


def _fifth_bits(raw: Raw) -> Raw:
    """Return 32 bits, each as the number 16 or 0: (blocks, 4) bytes -> (blocks, 32)."""
    return np.left_shift(np.unpackbits(raw, axis=-1, bitorder="little"), 4, dtype=np.uint8)


def _q4_0(blocks: Raw) -> Parts:
    return _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8), _halves(blocks[:, :2]), None


def _q4_1(blocks: Raw) -> Parts:
    return _nibbles(blocks[:, 4:]).view(np.int8), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: Raw) -> Parts:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return codes.view(np.int8) - np.int8(16), _halves(blocks[:, :2]), None


def _q5_1(blocks: Raw) -> Parts:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes.view(np.int8), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q8_0(blocks: Raw) -> Parts:
    return blocks[:, 2:].view(np.int8), _halves(blocks[:, :2]), None


def _q4_k(blocks: Raw) -> Parts:
    scales, mins = _sub_scales(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, GROUP_SIZE))  # each run of 32 bytes holds two groups
    return codes.reshape(-1, SUPER_BLOCK).view(np.int8), scales, mins


def _q5_k(blocks: Raw) -> Parts:
    scales, mins = _sub_scales(blocks)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, GROUP_SIZE)).reshape(-1, 8, GROUP_SIZE)
    # Bit g of byte i is the fifth bit of weight i of group g.
    high = (blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1).swapaxes(1, 2)
    return (codes | high << 4).reshape(-1, SUPER_BLOCK).view(np.int8), scales, mins


def _sub_scales(blocks: Raw) -> tuple[Numbers, Numbers]:
    """Return the scales and minimums of the 8 groups of Q4_K and Q5_K blocks, each (blocks, 8).

    The first 4 bytes of a block are a float16 factor for scales and one for minimums. Its next 12 bytes hold 6-bit
    scales and minimums: those of groups 0 to 3 in the low bits of bytes 0 to 3 and 4 to 7; those of groups 4 to 7 with
    4 bits in the halves of bytes 8 to 11, and 2 bits in the high bits of the other bytes.
    """
    factors, packed = _halves(blocks[:, :4]), blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], -1).astype(np.float32)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], -1).astype(np.float32)
    return factors[:, :1] * scales, -(factors[:, 1:] * mins)


_HALF, _SINGLE = torch.float16, torch.float32

FORMATS: dict[str, tuple[GroupwiseFormat, int, Callable[[Raw], Parts]]] = {
    "Q4_0": (GroupwiseFormat(4, False, _HALF), 18, _q4_0),
    "Q4_1": (GroupwiseFormat(4, True, _HALF), 20, _q4_1),
    "Q4_K": (GroupwiseFormat(4, True, _SINGLE), 144, _q4_k),
    "Q5_0": (GroupwiseFormat(8, False, _HALF), 22, _q5_0),
    "Q5_1": (GroupwiseFormat(8, True, _HALF), 24, _q5_1),
    "Q5_K": (GroupwiseFormat(8, True, _SINGLE), 176, _q5_k),
    "Q8_0": (GroupwiseFormat(8, False, _HALF), 34, _q8_0),
}
"""For each kind: the format that holds it exactly, the bytes of a block, and the function that unpacks blocks."""
