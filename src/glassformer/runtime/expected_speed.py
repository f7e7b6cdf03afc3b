"""Estimate how fast a model computes here, from two short measurements of the machine; the weights are not loaded.

A decoding step of one text reads every matrix once, so that memory sets its speed. Reading a text computes with each
matrix for many tokens at once, so that arithmetic sets its speed. Both estimates are upper bounds: they leave out
everything but matrix products.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from glassformer.models import ModelConfig
from glassformer.models.costs import forward_flops

READ_LENGTH = 128
"""Length of the texts for which the speed of reading is estimated."""
COPIED_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Numbers that are copied to measure the memory, by device: more than the caches of most processors hold."""
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied, by device. Smaller ones leave a GPU mostly idle."""
REPEATS = 3


class MachineRates(NamedTuple):
    """The rates of a device, per second."""

    bytes_read: float
    flops: float


class ExpectedSpeed(NamedTuple):
    """Tokens per second, at most. `writing` is for one text, and None for an encoder."""

    reading: float
    writing: float | None


def measure_rates(device: torch.device, dtype: torch.dtype) -> MachineRates:
    """Measure the memory and the arithmetic of a device, in about a tenth of a second on a CPU."""
    kind = device.type if device.type in PRODUCT_SIZE else "cpu"
    numbers, size = torch.rand(COPIED_NUMBERS[kind], device=device), PRODUCT_SIZE[kind]
    target = torch.empty_like(numbers)
    copying = _best_time(lambda: target.copy_(numbers), device)
    matrix = numbers[: size * size].view(size, size).to(dtype)  # random: products of ones are faster on a GPU
    product = _best_time(lambda: matrix @ matrix, device)
    # A copy reads and writes.
    return MachineRates(2 * numbers.nbytes / copying, 2 * size**3 / product)


def expected_speed(config: ModelConfig, rates: MachineRates, bytes_per_number: float) -> ExpectedSpeed:
    """Return the speed that the rates of a machine allow. `bytes_per_number` is the size of a stored weight."""
    is_pair = config.kind == "encoder_decoder"
    length = min(READ_LENGTH, config.max_len or READ_LENGTH)
    if config.kind == "encoder":
        return ExpectedSpeed(length * rates.flops / forward_flops(config, batch=1, source_length=length), None)
    whole = forward_flops(config, batch=1, source_length=length * is_pair, target_length=length)
    # The cost of one more token, to which the encoder adds nothing.
    two, one = (forward_flops(config, batch=1, source_length=1 * is_pair, target_length=n) for n in (2, 1))
    # A linear layer takes two operations for each weight.
    return ExpectedSpeed(length * rates.flops / whole, rates.bytes_read / ((two - one) / 2 * bytes_per_number))


def describe_speed(speed: ExpectedSpeed) -> str:
    """Return the estimate as text: `reads up to 1,200 tokens/s, writes up to 85 tokens/s`."""
    found = [f"reads up to {_rounded(speed.reading)} tokens/s"]
    if speed.writing is not None:
        found.append(f"writes up to {_rounded(speed.writing)} tokens/s for one text")
    return ", ".join(found)


def _rounded(number: float) -> str:
    """Return a number with two digits that count: 1234 as 1,200."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 1 else f"{number:.2g}"


def _best_time(call: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of a few times that a function takes, in seconds, after one call to warm up."""
    found = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begin)
    return max(min(found[1:]), 1e-9)
