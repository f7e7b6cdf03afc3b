"""The number of programs that share a long cache; `test_triton_attention.py` compares what they compute."""

import pytest

from glassformer.kernels.triton_split_attention import choose_splits


@pytest.mark.parametrize(
    ("n_heads", "n_keys", "n_splits"),
    [(8, 32_000, 64), (2, 131_000, 128), (1, 1024, 8), (64, 4096, 8), (4096, 9000, 1)],
)
def test_long_caches_are_split_to_keep_a_gpu_busy(n_heads, n_keys, n_splits):
    assert choose_splits(n_heads, n_keys) == n_splits
