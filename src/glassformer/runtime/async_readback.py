"""Copy numbers from a GPU to the CPU and back while the GPU computes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class AsyncReadback:
    """A copy of a tensor to the CPU. The constructor starts it, and `read` waits for it.

    A GPU can compute the next steps in the meantime. `numbers` is usually (steps, k, N): k numbers per sequence.
    """

    def __init__(self, numbers: Tensor):
        self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=numbers.is_cuda)
        self._numbers.copy_(numbers, non_blocking=True)
        self._arrived = None
        if numbers.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> list[list[list[float]]]:
        """Wait for the copy and return the numbers as nested lists."""
        found: list[list[list[float]]] = self.read_array().tolist()
        return found

    def read_array(self) -> np.ndarray:
        """Wait for the copy and return the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: np.ndarray = self._numbers.numpy()
        return found


def upload(numbers: Any, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Return a tensor of these numbers, nested lists or an array, on `device`.

    A GPU is not waited for, as `torch.tensor` would. On a CPU the tensor may share the memory of an array.
    """
    found = torch.as_tensor(numbers, dtype=dtype)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)
