"""Mapped zeros are ordinary zeros that take no memory before they are written."""

import mmap
import resource
import sys

import pytest
import torch

from glassformer.runtime.mapped_zeros import SMALLEST, map_zeros


@pytest.mark.parametrize("sizes", [(0,), (3, 4), (SMALLEST // 4, 1), (5, SMALLEST // 8, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_zeros_have_the_asked_sizes_and_can_be_written(sizes, dtype):
    zeros = map_zeros(sizes, dtype)
    assert (zeros.shape, zeros.dtype) == (sizes, dtype)
    assert not zeros.any()
    zeros.add_(1)
    assert torch.equal(zeros, torch.ones(sizes, dtype=dtype))


def test_two_tensors_share_no_memory():
    first, second = (map_zeros((SMALLEST,), torch.float32) for _ in range(2))
    first.fill_(7)
    assert not second.any()


def test_memory_stays_while_a_view_uses_it():
    part = map_zeros((SMALLEST,), torch.float32)[5:9]
    part.fill_(3)
    assert part.tolist() == [3, 3, 3, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_unwritten_zeros_take_no_memory_and_freed_ones_give_it_back():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    size = 256 * 2**20
    before = resident()
    zeros = map_zeros((size,), torch.uint8)
    assert resident() - before < size // 4
    zeros[: size // 2] = 1
    assert resident() - before > size // 3
    del zeros
    assert resident() - before < size // 4


def test_without_private_mappings_torch_allocates(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    assert not map_zeros((SMALLEST,), torch.float32).any()
