"""Divide a loaded model among the processes that torchrun started: `--parallel tensor=N` for inference.

Every process makes the same decoding steps and gets the same logits, so that all of them choose the same tokens. The
first process writes the answers.
"""

import atexit
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from glassformer.models import Model
from glassformer.training.parallel import read_layout, split_layers
from glassformer.training.processes import SharedError, joined


def join_for_inference(parallel: str, device: torch.device) -> int:
    """Join the processes that torchrun started, until this one ends, and return their number.

    Raises SharedError unless `parallel` is tensor=N for N processes.
    """
    stack = ExitStack()
    processes = stack.enter_context(joined(device.type, is_needed=True))
    atexit.register(stack.close)
    layout = read_layout(parallel, processes.size)
    if layout.data * layout.shard > 1 or layout.tensor != processes.size:
        raise SharedError(f"--parallel {parallel}: expected tensor={processes.size}, which divides a loaded model", 2)
    return processes.size


def split_model(model: Model, n_processes: int, device: torch.device) -> None:
    """Divide heads and feed-forward columns of a model among the processes, in place, and move it to the device.

    Its config then says how many heads this process has, because the key-value cache has as many.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh: Any = init_device_mesh(device.type, (n_processes,), mesh_dim_names=("tensor",))
    split_layers(model, mesh)
    config = model.config
    model.config = replace(
        config,
        n_heads=config.n_heads // n_processes,
        n_kv_heads=config.kv_heads // n_processes,
        head_dim=config.head_size,
    )
    model.to(device)
