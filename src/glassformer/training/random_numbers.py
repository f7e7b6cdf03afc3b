"""The global random numbers of torch and Python: one training uses them at a time, and restores them at its end."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_IN_USE = Lock()


@contextmanager
def using_random_numbers() -> Iterator[None]:
    """Context manager of a training, which seeds torch's random numbers. At its end those of the caller are restored.

    Raises RuntimeError if another training runs in this process: it would draw from the same numbers.
    """
    if not _IN_USE.acquire(blocking=False):
        raise RuntimeError(
            "another training runs in this process: expected one at a time, because both would draw from torch's "
            "global random numbers. Wait until it has ended, or start this one in another process"
        )
    had_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if had_cuda else []):
            yield
    finally:
        random.setstate(python_state)  # rich draws from it when it is imported
        if not had_cuda:  # torch seeds the GPUs like the CPU unless told otherwise
            torch.cuda.manual_seed_all(torch.initial_seed())
        _IN_USE.release()
