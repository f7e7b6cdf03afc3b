import os

# Two workers on two cores: one thread each is faster than four threads fighting. Set before torch or NumPy start
# theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("glassformer", deadline=None, derandomize=True)
settings.load_profile("glassformer")


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
