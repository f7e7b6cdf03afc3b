"""Divide a loaded model among the processes that torchrun started: `--parallel tensor=N` for inference.

Every process makes the same decoding steps and gets the same logits, so that all of them choose the same tokens. The
first process writes the answers.
"""

import atexit
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from glassformer.base.freed_memory import give_back_freed
from glassformer.models import Model
from glassformer.nn import Layer
from glassformer.training.parallel import check_no_head_bias, read_layout, split_layers
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


class ModelSplitter:
    """Divides a model among processes: layer by layer while it is loaded, so that the whole model is never in memory.

    A process reads all tensors of a layer, keeps its heads and feed-forward columns, and drops the rest. Nothing is
    sent between processes, because all of them read the same file.
    """

    def __init__(self, n_processes: int, device: torch.device):
        from torch.distributed.device_mesh import init_device_mesh

        self._n_processes, self._device = n_processes, device
        self._mesh: Any = init_device_mesh(device.type, (n_processes,), mesh_dim_names=("tensor",))

    def take(self, module: nn.Module) -> None:
        """Divide a layer that has all its parameters, in place, and move it to the device. Other modules stay."""
        if isinstance(module, Layer):
            split_layers(module, self._mesh, source=None)
            module.to(self._device)
            give_back_freed()  # otherwise the heap keeps holes of the size of whole matrices

    def finish(self, model: Model) -> None:
        """Complete a model whose layers were divided: move the rest of it to the device.

        Its config then says how many heads this process has, because the key-value cache has as many.
        """
        check_no_head_bias(model, self._n_processes)
        config = model.config
        model.config = replace(
            config,
            n_heads=config.n_heads // self._n_processes,
            n_kv_heads=config.kv_heads // self._n_processes,
            head_dim=config.head_size,
        )
        model.to(self._device)


def split_model(model: Model, n_processes: int, device: torch.device) -> None:
    """Divide heads and feed-forward columns of a whole model among the processes, in place."""
    splitter = ModelSplitter(n_processes, device)
    for module in model.modules():
        splitter.take(module)
    splitter.finish(model)
