"""Compute the gradients of training batches: eagerly, or on a GPU by replaying a CUDA graph.

Training a small model on a large GPU is bound by kernel launches. A CUDA graph launches all kernels of a step at once.
Each batch shape is recorded once; batches come in few shapes.

`Trainer._update` (`trainer.py`) adds the gradients of several batches so that they equal those of one large batch.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.nn import Stack
from glassformer.runtime.cuda_graphs import CaptureError, capture_graph
from glassformer.training.cpu_linear import fast_linears, is_worthwhile

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
    of training, in which `loss` is computed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Batch], Tensor],
        *,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
    ):
        self.model = model
        self.parameters = list(model.parameters())
        self.loss = loss
        self.device = device
        self.autocast = autocast

    def clear(self) -> None:
        """Remove the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    def add(self, batch: Batch, *, divisor: float, scale: float) -> float:
        """Add the gradient of loss / divisor * scale to the parameters, and return loss / divisor.

        `divisor` is the number of target tokens of the whole update, `scale` the loss scale of fp16.
        """
        return self._backward(batch.to(self.device), 1 / divisor, scale).item()  # type: ignore[arg-type]

    def _backward(self, batch: Batch, factor: "float | Tensor", scale: "float | Tensor") -> Tensor:
        with self.autocast(), fast_linears(self.model) if is_worthwhile(self.device) else nullcontext():
            loss = self.loss(batch) * factor
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
        self._pool = torch.cuda.graph_pool_handle()

    @override
    def clear(self) -> None:
        """Set the gradients to zero in place, because the graphs contain their addresses."""
        if self.is_off:
            super().clear()
            return
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)

    @override
    def add(self, batch: Batch, *, divisor: float, scale: float) -> float:
        assert isinstance(batch, tuple)
        key = tuple((x.shape, x.dtype) for x in batch)
        if key not in self._recordings and not self.is_off and len(self._recordings) < MAX_GRAPHS:
            self._try_to_record(key, batch)
        if key not in self._recordings:
            return super().add(batch, divisor=divisor, scale=scale)
        recording = self._recordings[key]
        for kept, new in zip(recording.batch, batch, strict=True):
            kept.copy_(new, non_blocking=True)
        self._numbers.copy_(torch.tensor([1 / divisor, scale]))
        recording.graph.replay()
        return recording.loss.item()

    def _try_to_record(self, key: tuple[object, ...], batch: Batch) -> None:
        """Record the training step of this batch's shape under `key`. If that fails, switch graphs off and warn."""
        kept: Any = batch.to(self.device)
        if not self._recordings:
            self._warm_up(kept)
        gradients = [parameter.grad for parameter in self.parameters]
        try:
            graph, loss = capture_graph(
                lambda: self._backward(kept, *self._numbers.unbind()), pool=self._pool, device=self.device
            )
        except CaptureError as error:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient  # the failed recording may have allocated uninitialized gradients
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
        """Run two steps before the first recording, so that libraries initialize and gradients are allocated."""
        state = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # capture requires a warm-up on a side stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._backward(batch, *self._numbers.unbind())
        torch.cuda.current_stream().wait_stream(stream)
        self.clear()
        torch.cuda.set_rng_state(state, self.device)


def can_graph(model: nn.Module, device: torch.device) -> bool:
    """Whether training steps can be CUDA graphs: on CUDA, if the model always launches the same kernels.

    Layer drop and gradient checkpointing rule that out.
    """
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return device.type == "cuda" and not any(stack.layer_drop or stack.gradient_checkpointing for stack in stacks)
