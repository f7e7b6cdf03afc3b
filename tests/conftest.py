import os

# Two workers on two cores: one thread each is faster than four threads fighting. Set before torch or NumPy start
# theirs. Who sets OMP_NUM_THREADS wants to see whether the tests pass with that many.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import settings

if os.environ["OMP_NUM_THREADS"].isdigit():
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
# The same examples everywhere, however slow the machine, and a line with which to repeat those that fail.
settings.register_profile("glassformer", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("glassformer")


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
