"""Compute the gradients of training batches: eagerly, or on a GPU by replaying a CUDA graph.

Training a small model on a large GPU is bound by kernel launches. A CUDA graph launches all kernels of a step at once.
Each batch shape is recorded once; batches come in few shapes.

`Trainer._update` (`trainer.py`) adds the gradients of several batches so that they equal those of one large batch.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.nn import Stack
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.runtime.cuda_graphs import CaptureError, capture_graph
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.cpu_linear import fast_linears, is_worthwhile
from glassformer.training.sharded_tensors import local_tensors, whole_tensor

MAX_GRAPHS = 512
"""Number of batch shapes that are recorded. Batches of further shapes are computed eagerly."""


class TrainBatch(Protocol):
    """The interface that the trainer requires of a batch."""

    @property
    def n_target_tokens(self) -> int:
        """Number of target tokens, by which the summed loss is divided."""

    def slice_rows(self, begin: int, end: int) -> Self:
        """Return some of the batch's examples. It is called only while the batch grows (`--batch-ramp`)."""

    def to(self, device: torch.device | str) -> "TrainBatch":
        """Return the batch with its tensors on `device`."""


Batch = TypeVar("Batch", bound=TrainBatch)


class Gradients(Generic[Batch]):
    """Accumulates the gradients of several batches in the parameters of a model, eagerly.

    `loss` returns the *sum* of a batch's token losses. `autocast` returns the context manager, for the precision
    of training, in which `loss` is computed. `copy` is the copy of the model that `loss` belongs to, if it is one.
    `attention` returns the context manager that chooses the attention kernels, for the backward pass. `layers` returns
    the one in which faster layers replace those of the model and products may be in bf16, for both passes.

    With `stays_in_copy`, the gradient of one batch is not moved to the model: it is `in_copy`, in the copy's dtype.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Batch], Tensor],
        *,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
        copy: ComputeCopy | None = None,
        attention: Callable[[], AbstractContextManager[object]] = nullcontext,
        layers: Callable[[], AbstractContextManager[object]] = nullcontext,
        stays_in_copy: bool = False,
    ):
        self.model = model
        self.parameters = list(model.parameters())
        self.loss = loss
        self.device = device
        self.autocast = autocast
        self.attention = attention
        self.layers = layers
        self.copy = copy
        self.stays_in_copy = stays_in_copy
        self.in_copy: list[Tensor | None] = []
        """With `stays_in_copy`: the gradients of `copy.learned`, valid until the next batch."""
        self.recording_seconds = 0.0
        """Seconds spent on recording steps, once per batch shape."""
        self._is_empty = True
        """Whether the gradients were cleared and none has been added since."""

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters that `loss` depends on and that are not frozen: those of the copy, if there is one."""
        return [p for p in self.parameters if p.requires_grad] if self.copy is None else self.copy.learned

    def of_model(self) -> list[Tensor]:
        """Return the gradients of the model's parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def clear(self) -> None:
        """Remove the gradients of all parameters."""
        self._is_empty = True
        self.in_copy = []
        for parameter in (*self.parameters, *(self.learned if self.stays_in_copy else ())):
            parameter.grad = None

    def add(self, batch: Batch, *, divisor: float, scale: float) -> Tensor:
        """Add the gradient of loss / divisor * scale to the parameters, and return loss / divisor, on the device.

        `divisor` is the number of target tokens of the whole update, `scale` the loss scale of fp16.
        """
        if self.stays_in_copy and not self._is_empty:
            raise ValueError("the gradient of another batch is in the copy: expected one batch per update")
        loss = self._backward(batch.to(self.device), 1 / divisor, scale)  # type: ignore[arg-type]
        self._is_empty = False
        if self.stays_in_copy:
            self.in_copy = self._left_in_copy()
        return loss

    def _left_in_copy(self) -> "list[Tensor | None]":
        """Return the gradients of `learned` that the last batch has left."""
        return [parameter.grad for parameter in self.learned]

    def _backward(self, batch: Batch, factor: "float | Tensor", scale: "float | Tensor") -> Tensor:
        """Compute the loss times `factor`, and add its gradient times `scale` to the parameters of the model."""
        if self.copy is None or self.stays_in_copy:
            return self._differentiate(batch, factor, scale)
        with self.copy.pushing(add=not self._is_empty):
            return self._differentiate(batch, factor, scale)

    def _differentiate(self, batch: Batch, factor: "float | Tensor", scale: "float | Tensor") -> Tensor:
        """Compute the loss times `factor`, and leave its gradient in the parameters that it depends on."""
        # Gradient checkpointing computes layers again in the backward pass, and has to choose the same kernels.
        with self.layers(), fast_linears(self.model) if is_worthwhile(self.device) else nullcontext():
            with self.autocast():
                loss = self.loss(batch) * factor
            with self.attention():
                (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class _Recording(NamedTuple):
    graph: Any
    batch: tuple[Tensor, ...]
    """The tensors that the graph reads its batch from."""
    loss: Tensor


class GraphedGradients(Gradients[Batch]):
    """Accumulates gradients by replaying CUDA graphs, one per batch shape. Batches must be tuples of tensors.

    Dropout follows torch's seed, as without graphs.

    If a step cannot be recorded, this and all later steps are computed eagerly, and `warn` is called once.
    """

    def __init__(self, *arguments: Any, warn: Callable[[str], None] = print, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.is_off = False
        """True after a step could not be recorded."""
        self._warn = warn
        self._recordings: dict[tuple[object, ...], _Recording] = {}
        self._numbers = torch.ones(2, device=self.device)  # 1 / divisor and scale, read by all graphs
        self._kept: list[Tensor | None] = []
        """With `stays_in_copy`: where all graphs write their gradients."""
        self._pool = torch.cuda.graph_pool_handle()

    @override
    def _backward(self, batch: Batch, factor: "float | Tensor", scale: "float | Tensor") -> Tensor:
        if self.copy is None or self.is_off:
            return super()._backward(batch, factor, scale)
        loss = self._differentiate(batch, factor, scale)
        # All at once, and in place: the graphs contain the addresses.
        if self.stays_in_copy:
            self._keep()
        else:
            self.copy.push(add=not self._is_empty)
        return loss

    @override
    def _left_in_copy(self) -> "list[Tensor | None]":
        return super()._left_in_copy() if self.is_off else self._kept

    @torch.no_grad()
    def _keep(self) -> None:
        """Move the gradients of the copy to `_kept`."""
        places, gradients = [], []
        for kept, parameter in zip(self._kept, self.learned, strict=True):
            assert kept is not None
            if parameter.grad is None:
                kept.zero_()
            else:
                places.append(kept)
                gradients.append(parameter.grad)
                parameter.grad = None
        torch._foreach_copy_(places, gradients)

    @override
    def clear(self) -> None:
        """Set the gradients to zero in place, because the graphs contain their addresses. A copy replaces them."""
        if self.is_off:
            super().clear()
            return
        self._is_empty = True
        if self.copy is not None:
            return
        if gradients := self.of_model():
            torch._foreach_zero_(gradients)

    @override
    def add(self, batch: Batch, *, divisor: float, scale: float) -> Tensor:
        assert isinstance(batch, tuple)
        replaces = self.copy is not None and self._is_empty
        key = (replaces, *((x.shape, x.dtype) for x in batch))
        if key not in self._recordings and not self.is_off and len(self._recordings) < MAX_GRAPHS:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # recording waits for the last update, whose time is its own
            began = time.perf_counter()
            self._try_to_record(key, batch)
            self.recording_seconds += time.perf_counter() - began
        if key not in self._recordings:
            return super().add(batch, divisor=divisor, scale=scale)
        recording = self._recordings[key]
        for kept, new in zip(recording.batch, batch, strict=True):
            kept.copy_(new, non_blocking=True)
        for place, number in zip(self._numbers, (1 / divisor, scale), strict=True):
            place.fill_(number)  # a copy from the CPU would wait until the device is idle
        recording.graph.replay()
        self._is_empty = False
        self.in_copy = self._left_in_copy()
        return recording.loss.clone()  # the next replay writes over it, perhaps before the trainer has read it

    def _try_to_record(self, key: tuple[object, ...], batch: Batch) -> None:
        """Record the training step of this batch's shape under `key`. If that fails, switch graphs off and warn."""
        kept: Any = batch.to(self.device)
        if not self._recordings or self.copy is not None:
            self._warm_up(kept)
        self._prepare_gradients()
        gradients = [parameter.grad for parameter in self.parameters]
        try:
            graph, loss = capture_graph(
                lambda: self._backward(kept, *self._numbers.unbind()), pool=self._pool, device=self.device
            )
        except CaptureError as error:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient  # the failed recording may have allocated uninitialized gradients
            self._prepare_gradients()
            self._recordings.clear()  # after a failed capture they would draw other random numbers
            self.is_off = True
            reason = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
            self._warn(
                f"CUDA graphs are off: a training step could not be recorded ({reason}). Training continues "
                "without them, with the same results, and may be slower"
            )
        else:
            self._recordings[key] = _Recording(graph, tuple(kept), loss)

    def _warm_up(self, batch: Any) -> None:
        """Run two steps before the first recording, so that libraries initialize and gradients are allocated.

        The layers of a copy may be compiled, which has to happen before any recording of a new shape. The gradients of
        the model do not change.
        """
        state = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # capture requires a warm-up on a side stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2 if not self._recordings else 1):
                self._differentiate(batch, *self._numbers.unbind())
        torch.cuda.current_stream().wait_stream(stream)
        if self.copy is None:
            self.clear()
        torch.cuda.set_rng_state(state, self.device)

    def _prepare_gradients(self) -> None:
        """Remove the gradients of the copy, and allocate those that the graphs write."""
        if self.copy is None:
            return
        if not self.stays_in_copy:
            self.copy.prepare_gradients()
            return
        for parameter in self.learned:
            parameter.grad = None
        if not self._kept:
            self._kept = [torch.zeros_like(parameter) for parameter in self.learned]


def can_graph(model: nn.Module, device: torch.device) -> bool:
    """Whether training steps can be CUDA graphs: on CUDA, if the model always launches the same kernels.

    Layer drop, gradient checkpointing and experts, which get different numbers of tokens, rule that out.
    """
    if any(isinstance(module, ExpertFeedForward) for module in model.modules()):
        return False
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return device.type == "cuda" and not any(stack.layer_drop or stack.gradient_checkpointing for stack in stacks)


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together. Sharded ones are of all processes."""
    by_mesh: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        mesh = getattr(gradient, "device_mesh", None)
        if mesh is not None and mesh.size() == 1:  # each operation on a DTensor takes 50 us
            mesh, (gradient,) = None, local_tensors([gradient])
        by_mesh.setdefault(mesh, []).append(gradient)
    whole = [whole_tensor(nn.utils.get_total_norm(some)) for some in by_mesh.values()]
    return whole[0] if len(whole) == 1 else nn.utils.get_total_norm(whole)


def mix_seed(*numbers: int) -> int:
    """Return a seed for torch's random numbers, computed from several numbers; other numbers give another seed."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 0x9E3779B97F4A7C15 + number + 1) % 2**63
    return mixed


def seed_device(seed: int, device: torch.device) -> None:
    """Seed torch's random numbers on the CPU and on a device, as `torch.manual_seed` does for all devices.

    `torch.manual_seed` takes half a millisecond: it formats a traceback for every kind of device that is missing.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
