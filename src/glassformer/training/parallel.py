"""Train one model in several processes: DDP, FSDP2 and tensor parallelism, applied from outside the model.

`--parallel data=4,shard=2,tensor=2` arranges 16 processes in a mesh of 4 x 2 x 2:

    data     every process has the whole model, and takes a part of each batch (DistributedDataParallel)
    shard    every process has a part of each parameter; a layer is put together while it computes (FSDP2)
    tensor   every process computes some of the heads and some of the feed-forward columns of each layer

They are applied in the order tensor, shard, data, as the sizes of messages suggest: tensor parallelism sends
activations in every layer, so its processes belong on one machine.

The modules of torch that do so are imported only where they are used: together they take two seconds.

The loss of an update is the sum over all its tokens, divided by their number. Each process sums the loss of the rows
that it takes, divides by the tokens of *all* processes, and gradients are added up. So any number of processes computes
the same update, up to rounding. The processes of one tensor group take the same rows and draw the same dropout.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from glassformer.checkpoint.unread_weights import Values, take_unread
from glassformer.models.training_costs import STATE_BYTES
from glassformer.nn import FeedForward, Layer, MultiHeadAttention, Stack
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.runtime.shared_work import dividing
from glassformer.training.processes import STEP_TIMEOUT, Processes, SharedError
from glassformer.training.sharded_tensors import fill_parts, whole_tensor
from glassformer.training.train_config import TrainConfig

AnyBatch = TypeVar("AnyBatch", bound=Any)
DIMENSIONS = ("data", "shard", "tensor")


@dataclass(frozen=True)
class Layout:
    """The number of processes in each dimension of the mesh; `data` x `shard` x `tensor` is the number of all."""

    data: int = 1
    shard: int = 1
    tensor: int = 1
    is_sharded: bool = False
    """Whether FSDP2 holds the parameters. One process may use it too: `--parallel shard=1`."""

    @property
    def n_parts(self) -> int:
        """Number of parts that each batch is divided into."""
        return self.data * self.shard


def read_layout(text: str, n_processes: int) -> Layout:
    """Return the layout that `--parallel` asks for; without `data=`, all remaining processes share the data.

    Raises SharedError, with the exit code of a wrong option, unless the sizes multiply to the number of processes.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.strip().partition("=")
        if name not in DIMENSIONS or not size.isdecimal() or int(size) < 1 or name in sizes:
            raise SharedError(
                f"--parallel {text}: expected sizes of {', '.join(DIMENSIONS)}, each once, such as data=4,tensor=2", 2
            )
        sizes[name] = int(size)
    given = math.prod(sizes.values())
    if "data" not in sizes and n_processes % given == 0:
        sizes["data"] = n_processes // given
    elif given != n_processes:
        raise SharedError(
            f"--parallel {text} is a layout of {given} processes, but {n_processes} "
            f"{'was' if n_processes == 1 else 'were'} started: expected sizes that multiply to {n_processes}, or "
            f"{given} processes (torchrun --nproc-per-node {given}, train --devices {given})",
            2,
        )
    return Layout(**sizes, is_sharded="shard" in sizes or sizes.get("tensor", 1) > 1)


class LossModule(nn.Module):
    """A model and its loss in one module: DDP and FSDP2 see one forward pass, whatever methods the loss calls."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Tensor]):
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        """Return the summed loss of a batch."""
        return self._loss(batch)


class Parallel:
    """How the processes of a run share a model and its batches. The default is one process."""

    def __init__(self, config: TrainConfig | None = None, processes: Processes | None = None):
        self.processes = processes or Processes()
        self.layout = read_layout("" if config is None else config.parallel, self.processes.size)
        self.is_active = self.layout.is_sharded or self.processes.size > 1
        """Whether anything differs from a run of one process."""
        self._root: Any = None
        self._mesh: Any = None
        self._writing: Any = None
        self._unread: Values | None = None
        self._device = torch.device("cpu")
        self.part = self.processes.rank // self.layout.tensor
        """Number of the part of each batch that this process takes."""
        if config is not None:
            self._check(config)

    @property
    def writers(self) -> Processes | None:
        """The processes that read and write checkpoints together; None for one process, which writes whole tensors."""
        return replace(self.processes, group=self._writing) if self.is_active else None

    def casts(self, precision: str) -> bool:
        """Whether FSDP2 converts parameters and inputs to this precision, so that autocast need not."""
        return self.layout.is_sharded and precision == "bf16"

    def _check(self, config: TrainConfig) -> None:
        refused = {"offload": config.offload and not self.layout.is_sharded}
        if self.is_active:
            refused["adversarial"] = bool(config.adversarial)
        if self.layout.is_sharded:
            refused |= {"lora_rank": bool(config.lora_rank), "optimizer": config.optimizer == "muon"}
        why = {
            "offload": "parameters are moved to the CPU in shards, expected --parallel shard=N beside it",
            "adversarial": "several processes cannot train this way, expected 0",
            "lora_rank": "adapters cannot be sharded, expected 0, or --parallel data=N",
            "optimizer": "whole matrices are needed, expected adam or adamw, or --parallel data=N",
        }
        for name, is_refused in refused.items():
            if is_refused:
                raise SharedError(f"{name}={getattr(config, name)}: {why[name]}", 2)

    def apply(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Put a model on the device and return the module to train: the model, or a copy whose parameters are sharded.

        If it is a copy, the memory of the model's own parameters is released; `collect` gives them values again.
        Weights that have not been read yet (`unread_weights.py`) are read by `wrap`, after they have been divided.
        """
        self._device = device
        if not self.is_active:
            return model.to(device)
        from torch.distributed.device_mesh import init_device_mesh

        self._mesh = init_device_mesh(
            device.type, (self.layout.data, self.layout.shard, self.layout.tensor), mesh_dim_names=DIMENSIONS
        )
        # Checkpoints may be written by a second thread, while the first one trains.
        self._writing = dist.new_group(backend="gloo", timeout=STEP_TIMEOUT)
        if not self.layout.is_sharded:
            return model.to(device)
        if device.type == "cuda":
            with self.processes.together():
                check_whole_fits(model, torch.cuda.get_device_properties(device).total_memory)
        # DTensor advises against collectives in several steps. Here they are rare: norms, validations and saves.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        self._unread = take_unread(model)
        trained = _taking_over(model)
        if self.processes.size > 1:
            for parameter in trained.parameters():
                if not parameter.is_meta:
                    dist.broadcast(parameter.data, src=0)
        _release(model)
        if self.layout.tensor > 1:
            split_layers(trained, self._mesh["tensor"])
        return trained

    def wrap(
        self, model: nn.Module, loss: Callable[[Any], Tensor], config: TrainConfig, precision: str, sample: Any
    ) -> Callable[[Any], Tensor]:
        """Apply DDP or FSDP2 to the model and its loss, and return the loss function to differentiate.

        `sample` is a batch, with which DDP finds out whether some parameters are not used.
        """
        if not self.is_active:
            return loss
        root = LossModule(model, loss)
        if self.layout.is_sharded:
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

            narrow = torch.bfloat16 if precision == "bf16" else None
            options: dict[str, Any] = {
                # A dimension of one process would add an all-reduce to every layer.
                "mesh": self._mesh["data", "shard"] if self.layout.data > 1 else self._mesh["shard"],
                "mp_policy": MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None),
                "offload_policy": CPUOffloadPolicy() if config.offload else OffloadPolicy(),
                # One process keeps its layers put together from the forward to the backward pass.
                "reshard_after_forward": self.layout.shard > 1 or config.offload,
            }
            for module in model.modules():
                if isinstance(module, Layer):
                    fully_shard(module, **options)
            self._root = fully_shard(root, **options)
            unread, self._unread = self._unread, None
            if unread is not None:
                with self.processes.together():
                    fill_parts(model, unread, torch.device("cpu") if config.offload else self._device)
        else:
            places = [self._device] if self._device.type == "cuda" else None
            is_partial = _has_unused_parameters(model, loss, sample.slice_rows(0, 1).to(self._device))
            self._root = DistributedDataParallel(root, device_ids=places, find_unused_parameters=is_partial)
        wrapped: Callable[[Any], Tensor] = self._root
        return wrapped

    @contextmanager
    def passing(self, *, is_last: bool) -> Iterator[None]:
        """Context manager of one pass of an update: DDP adds up the gradients of all processes in the last one only."""
        is_waiting = isinstance(self._root, DistributedDataParallel) and not is_last
        with self._root.no_sync() if is_waiting else nullcontext():
            yield

    def share(self, batches: list[AnyBatch]) -> list[tuple[AnyBatch, bool]]:
        """Return this process's part of an update's batches, each with whether it counts.

        All processes get the same number of batches, because each pass waits for all processes. If a batch has fewer
        examples than there are processes, some get an example of it that does not count.
        """
        n_parts = self.layout.n_parts
        if n_parts == 1:
            return [(batch, True) for batch in batches]
        if len(batches) % n_parts == 0:
            return [(batch, True) for batch in batches[self.part :: n_parts]]
        found = []
        for batch in batches:
            n_rows = _count_rows(batch)
            begin, end = n_rows * self.part // n_parts, n_rows * (self.part + 1) // n_parts
            found.append((batch.slice_rows(begin, end), True) if begin < end else (batch.slice_rows(0, 1), False))
        return found

    def total_loss(self, losses: "list[Tensor | float]", device: torch.device) -> "list[Tensor | float]":
        """Return the loss of an update, summed over the passes of all processes, as the only element of a list."""
        if not self.is_active:
            return losses
        total = torch.stack([torch.as_tensor(loss, device=device).double() for loss in losses]).sum()
        return [self.processes.add_up(total) / self.layout.tensor]

    def agree(self, received: int | None, *, has_failed: bool) -> tuple[int | None, bool]:
        """Return the largest signal number that any process has received, None if none, and whether any has failed."""
        if self.processes.size == 1:
            return received, has_failed
        numbers = torch.tensor([received or 0, has_failed])
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        number, failures = numbers.tolist()
        return number or None, bool(failures)

    def collect(self, trained: nn.Module, model: nn.Module) -> None:
        """Give the parameters of `model` the values of `trained`, if that is a sharded copy."""
        if trained is model:
            return
        own = dict(model.named_parameters())
        for name, parameter in trained.named_parameters():
            own[name].data = whole_tensor(parameter.data).to(self._device)

    def spread(self, model: nn.Module) -> None:
        """Give the parameters of a whole model the values that they have in the leader."""
        if self.processes.size > 1:
            for parameter in model.parameters():
                dist.broadcast(parameter.data, src=0)

    def sharing(self) -> AbstractContextManager[None]:
        """Return a context manager in which the processes divide validations among them."""
        return dividing(self.processes.divide) if self.processes.size > 1 else nullcontext()

    def evaluate(
        self, evaluate: Callable[[], dict[str, float]], trained: nn.Module, model: nn.Module
    ) -> dict[str, float]:
        """Return the scores of a validation. Each process computes a part of it, with the whole model."""
        self.collect(trained, model)
        scores: dict[str, float] = {}
        with self.processes.together(), self.sharing():
            scores = evaluate()
        if trained is not model:
            _release(model)
        return self.processes.broadcast(scores)


def check_whole_fits(model: nn.Module, memory: int) -> None:
    """Raise SharedError if a device of `memory` bytes cannot hold the whole model in float32, for validations."""
    needed = STATE_BYTES["weights"] * sum(parameter.numel() for parameter in model.parameters())
    if needed > memory:
        raise SharedError(
            f"the model has {needed / 1e9:.0f} GB in float32: expected at most {memory / 1e9:.0f} GB, the memory of a "
            "device, because a validation puts it together on every device"
        )


def _has_unused_parameters(model: nn.Module, loss: Callable[[Any], Tensor], batch: Any) -> bool:
    """Return whether some parameters of the model get no gradient: in this batch, or by layer drop."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    drops = any(isinstance(module, Stack) and module.layer_drop for module in model.modules())
    with torch.random.fork_rng([batch[0].device] if batch[0].is_cuda else []):
        gradients = torch.autograd.grad(loss(batch), learned, allow_unused=True)
    return bool(drops) or any(gradient is None for gradient in gradients)


def _count_rows(batch: Any) -> int:
    """Return the number of examples of a batch, a named tuple of tensors.

    Some batches have several rows per example in all tensors, and say how many examples they have (`n_examples`). The
    others have one row per example in at least one tensor; tensors may be empty.
    """
    said: int | None = getattr(batch, "n_examples", None)
    return min(len(tensor) for tensor in batch if len(tensor)) if said is None else said


def split_layers(model: nn.Module, mesh: Any, *, source: int | None = 0) -> None:
    """Divide attention heads and feed-forward columns of all layers among the processes of `mesh`, in place.

    The input projections of a block are split by their outputs and its output projection by its inputs, so that one sum
    over the processes per block completes it (Shoeybi et al. 2019). All else is the same in every process. `source` is
    the process that has the values; None if all of them have the same and do not train.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    n_processes = mesh.size()
    check_no_head_bias(model, n_processes)
    plan: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            _check_divides(module, ("n_heads", "n_kv_heads"), n_processes)
            module.n_heads //= n_processes
            module.n_kv_heads //= n_processes
            plan |= {f"{name}.{one}": ColwiseParallel() for one in ("q_proj", "k_proj", "v_proj")}
            plan[f"{name}.out_proj"] = RowwiseParallel()
            if source is not None and module.q_norm is not None:
                # All heads share the weight of a norm: add up its gradients. Dimension 1 of (B, H, T, D) is divided.
                plan |= {f"{name}.{one}": SequenceParallel(use_local_output=True) for one in ("q_norm", "k_norm")}
        elif isinstance(module, ExpertFeedForward):
            raise SharedError(
                f"--parallel tensor={n_processes}: {name} has experts, which cannot be split; expected shard=N", 2
            )
        elif isinstance(module, FeedForward):
            _check_divides(module, ("d_ff",), n_processes)
            names = [one for one in ("up_proj", "gate_proj") if getattr(module, one) is not None]
            plan |= {f"{name}.{one}": ColwiseParallel() for one in names}
            plan[f"{name}.down_proj"] = RowwiseParallel()
    parallelize_module(model, mesh, plan, src_data_rank=source)


def check_no_head_bias(model: nn.Module, n_processes: int) -> None:
    """Raise SharedError if a stack of the model adds a bias per head to the scores, which cannot be divided."""
    for name, module in model.named_modules():
        if isinstance(module, Stack) and (module.score_bias is not None or module.relative is not None):
            raise SharedError(
                f"--parallel tensor={n_processes}: {name} adds a bias to the scores of each head, which cannot be "
                "split; expected rotary, sinusoidal or learned positions, or shard=N instead",
                2,
            )


def _check_divides(module: nn.Module, names: tuple[str, ...], n_processes: int) -> None:
    """Raise SharedError if a size of a layer cannot be divided by the number of processes."""
    sizes: Mapping[str, int] = {
        name: module.up_proj.out_features if isinstance(module, FeedForward) else int(getattr(module, name))
        for name in names
    }
    for name, size in sizes.items():
        if size % n_processes:
            raise SharedError(f"--parallel tensor={n_processes}: {name}={size}, expected a divisor of it", 2)
    if getattr(module, "norms_all_heads", False):
        raise SharedError(
            f"--parallel tensor={n_processes}: qk_norm_over=all_heads, which cannot be split; expected shard=N", 2
        )


def _taking_over(model: nn.Module) -> nn.Module:
    """Return a copy of a model that has its parameters, without copying their values."""
    own = {id(one): nn.Parameter(one.data, requires_grad=one.requires_grad) for one in model.parameters()}
    return copy.deepcopy(model, dict(own))


def _release(model: nn.Module) -> None:
    """Free the memory of the model's parameters. The objects stay, so that tied ones stay tied."""
    for parameter in model.parameters():
        if parameter.is_meta:  # its data cannot be set: it becomes a parameter of the CPU
            empty = nn.Parameter(torch.empty(0), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]
        else:
            parameter.data = parameter.data.new_empty(0)
