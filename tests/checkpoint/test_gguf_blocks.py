"""Blocks of GGUF tensors become codes, scales and minimums with exactly the values that the gguf package computes."""

import gguf
import numpy as np
import pytest
import torch

from glassformer.checkpoint.gguf_blocks import FORMATS, unpack_blocks
from glassformer.kernels.groupwise_matrix import GROUP_SIZE, GroupwiseMatrix


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_held_exactly(name):
    kind, (form, block_bytes, _) = gguf.GGMLQuantizationType[name], FORMATS[name]
    assert gguf.GGML_QUANT_SIZES[kind][1] == block_bytes
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (12, 2 * block_bytes), np.uint8)
    factors = [start for start in (0, 2) if start == 0 or form.has_mins]
    for block in (0, block_bytes):  # finite float16 factors instead of random bytes
        for start in factors:
            numbers = (rng.normal(size=12) / 8).astype("<f2")
            raw[:, block + start : block + start + 2] = numbers.view(np.uint8).reshape(12, 2)
    rows = unpack_blocks(raw, name)
    expected = torch.from_numpy(gguf.dequantize(raw, kind))
    assert torch.equal(rows.dequantized(), expected)
    assert rows.codes.shape == (12, rows.scales.shape[1] * GROUP_SIZE)
    assert (rows.mins is not None) == form.has_mins
    matrix = GroupwiseMatrix(*expected.shape, form)
    matrix.write_rows(0, rows)
    assert torch.equal(matrix.read_rows(torch.arange(12)), expected)


@pytest.mark.parametrize(("name", "bits"), [("Q4_0", 4.5), ("Q4_1", 5), ("Q8_0", 8.5), ("Q4_K", 6)])
def test_the_memory_of_a_format_is_the_documented_one(name, bits):
    assert GroupwiseMatrix(16, 256, FORMATS[name][0]).nbytes == 16 * 256 * bits / 8
