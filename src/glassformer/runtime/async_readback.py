"""Copy numbers from a GPU without waiting for it."""

import torch
from torch import Tensor


class AsyncReadback:
    """A tensor (steps, k, N) on its way to the CPU: the copy starts now, `read` waits for it.

    The GPU can compute the next steps in the meantime.
    """

    def __init__(self, numbers: Tensor):
        self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=numbers.is_cuda)
        self._numbers.copy_(numbers, non_blocking=True)
        self._arrived = None
        if numbers.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> list[list[list[float]]]:
        """Wait for the copy and return the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[list[list[float]]] = self._numbers.tolist()
        return found
