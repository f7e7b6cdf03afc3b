"""Copying numbers to the CPU."""

import torch

from glassformer.runtime.async_readback import AsyncReadback


def test_the_numbers_are_those_at_the_start_of_the_copy():
    numbers = torch.arange(6.0).view(1, 2, 3)
    readback = AsyncReadback(numbers)
    numbers.zero_()
    assert readback.read() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]
