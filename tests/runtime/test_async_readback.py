"""Copying numbers to the CPU and back."""

import torch

from glassformer.runtime.async_readback import AsyncReadback, upload


def test_the_numbers_are_those_at_the_start_of_the_copy():
    numbers = torch.arange(6.0).view(1, 2, 3)
    readback = AsyncReadback(numbers)
    numbers.zero_()
    assert readback.read() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]


def test_uploaded_numbers_are_whole():
    found = upload([[1, 2], [3, 4]], torch.device("cpu"))
    assert found.tolist() == [[1, 2], [3, 4]]
    assert found.dtype == torch.long
