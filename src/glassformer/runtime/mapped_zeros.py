"""Zeros that take memory only where something is written: for caches whose capacity is rarely used up."""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

SMALLEST = 2**20
"""Size in bytes from which memory is mapped. Smaller tensors come from torch, which reuses freed memory."""


def map_zeros(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a CPU tensor of zeros, like `torch.zeros`, whose memory the system provides page by page as it is used.

    `torch.zeros` writes every byte. A cache for 256 tokens of which a sentence uses 30 would pay for all 256, in time
    and in memory. So would a cache in huge pages, which span the unused parts, too; here pages are small. The system
    frees the memory when the last tensor that uses it is gone.
    """
    n_bytes = math.prod(sizes) * dtype.itemsize
    private = getattr(mmap, "MAP_PRIVATE", None)  # absent on Windows
    if n_bytes < SMALLEST or private is None:
        return torch.zeros(sizes, dtype=dtype)
    memory = mmap.mmap(-1, n_bytes, flags=private | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # raised by a kernel that was built without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(sizes)
