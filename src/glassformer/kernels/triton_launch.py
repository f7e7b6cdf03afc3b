"""Launch Triton kernels: on the right device, and early on GPUs that can.

Triton comes with torch's CUDA builds; without it `HAS_TRITON` is False.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

try:
    import triton

    HAS_TRITON = hasattr(triton, "jit")
except ImportError:
    HAS_TRITON = False


@cache
def launches_early(device: torch.device) -> bool:
    """Return whether a kernel can be launched on this device while the one before it still runs.

    Kernels that are launched so (`early_launch`) wait for the one before them before they read what it has written.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def early_launch(device: torch.device) -> dict[str, bool]:
    """Return the launch options of a kernel that waits for the one before it: programmatic dependent launch."""
    return {"launch_pdl": True} if launches_early(device) else {}


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that makes a device current, for Triton to launch on. `torch.compile` needs none."""
    return nullcontext() if torch.compiler.is_compiling() or device.type != "cuda" else torch.cuda.device(device)
