"""Run `parallel_program.py` in one process or in several, for the tests that compare them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("parallel_program.py")
SOURCE = Path(__file__).parents[2] / "src"


def environment():
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def torchrun(n_processes, *options):
    """Return the beginning of a command that runs a program in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_processes}"]
    return [*command, *options]


def run_cases(folder, cases, n_processes):
    """Train the cases in this many processes, and return the results of each."""
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    command = [sys.executable] if n_processes == 1 else torchrun(n_processes)
    command += [str(PROGRAM), str(folder / "cases.json"), str(folder)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(len(cases))]


def difference(one, other):
    """The largest difference of two runs: in losses, validation scores and parameters.

    The gradients of `k_proj.bias` and `k_norm.bias` are zero, because a softmax does not change if all its inputs do.
    Adam makes steps of their rounding errors, so that they are not compared.
    """
    assert len(one["losses"]) == len(other["losses"])
    numbers = [abs(a - b) for name in ("losses", "scores") for a, b in zip(one[name], other[name], strict=True)]
    names = [name for name in one["parameters"] if not name.endswith(("k_proj.bias", "k_norm.bias"))]
    assert one["parameters"].keys() == other["parameters"].keys()
    return max(*numbers, *((one["parameters"][n] - other["parameters"][n]).abs().max().item() for n in names))
