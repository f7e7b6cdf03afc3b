"""The demonstration that `python -m glassformer.reference` runs."""

import os
import subprocess
import sys

import numpy as np
import pytest

from glassformer.reference.__main__ import BEGIN, END, MAX_LENGTH, MIN_LENGTH, PAD, batch

LEARN = """
import sys
from glassformer.reference.__main__ import learn_to_reverse
share = learn_to_reverse(seconds=600)  # it stops early once it has learned; the limit is for busy machines
assert "torch" not in sys.modules
assert share >= 0.97, share
"""


@pytest.mark.full
def test_the_numpy_model_learns_to_reverse_without_torch_on_one_core():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", LEARN], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_batch_holds_reversals_and_training_never_sees_held_out_sequences():
    for held_out in (False, True):
        source, target_in, target_out = batch(np.random.default_rng(0), 50, held_out=held_out)
        for row in range(50):
            symbols = source[row][source[row] != PAD].tolist()
            assert MIN_LENGTH <= len(symbols) <= MAX_LENGTH
            assert (sum(symbols) % 10 == 0) == held_out
            assert target_in[row][target_in[row] != PAD].tolist() == [BEGIN, *symbols[::-1]]
            assert target_out[row][target_out[row] != PAD].tolist() == [*symbols[::-1], END]
