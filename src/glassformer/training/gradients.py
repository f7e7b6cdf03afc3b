"""The gradients of a batch: computed step by step, or on a GPU replayed as one recorded graph.

A small model on a large GPU spends most of a step waiting for Python to ask for the next kernel. A CUDA graph asks for
all of them at once. Each shape of batch is recorded once; the batches come in few shapes, so that soon all are.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from glassformer.nn import Stack
from glassformer.runtime.cuda_graphs import CaptureError, capture_graph

MAX_GRAPHS = 512
"""Shapes recorded; what comes in yet another one is computed step by step."""


class TrainBatch(Protocol):
    """What the trainer needs to know of a batch."""

    @property
    def n_target_tokens(self) -> int:
        """What the loss is averaged over."""

    def to(self, device: torch.device | str) -> "TrainBatch":
        """The same batch on another device."""


Batch = TypeVar("Batch", bound=TrainBatch)


class Gradients(Generic[Batch]):
    """Adds the gradients of batches to the parameters' own; `loss` gives the *sum* of a batch's token losses."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Batch], Tensor],
        *,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
    ):
        self.parameters = list(model.parameters())
        self.loss = loss
        self.device = device
        self.autocast = autocast

    def clear(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def add(self, batch: Batch, *, divisor: float, scale: float) -> float:
        """Add the gradients of loss / divisor · scale; the value of loss / divisor."""
        return self._backward(batch.to(self.device), 1 / divisor, scale).item()  # type: ignore[arg-type]

    def _backward(self, batch: Batch, share: "float | Tensor", scale: "float | Tensor") -> Tensor:
        with self.autocast():
            loss = self.loss(batch) * share
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class _Recording(NamedTuple):
    graph: Any
    batch: tuple[Tensor, ...]
    """Where the graph reads its batch from."""
    loss: Tensor


class GraphedGradients(Gradients[Batch]):
    """The same by CUDA graphs, for batches that are tuples of tensors. Seeds mean what they mean elsewhere.

    If a step cannot be recorded, this and all later steps are computed without graphs, and `warn` is called once.
    """

    def __init__(self, *arguments: Any, warn: Callable[[str], None] = print, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.is_off = False
        """Whether a step could not be recorded."""
        self._warn = warn
        self._recordings: dict[tuple[object, ...], _Recording] = {}
        self._numbers = torch.ones(2, device=self.device)  # share and scale, where all graphs read them
        self._pool = torch.cuda.graph_pool_handle()

    def clear(self) -> None:
        """Zero them in place: the graphs know their addresses."""
        if self.is_off:
            super().clear()
            return
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)

    def add(self, batch: Batch, *, divisor: float, scale: float) -> float:
        """As above."""
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
        """Record a step of this shape, or switch the graphs off."""
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
                parameter.grad = gradient  # the recording may have made places that nothing was written to
            self._recordings.clear()  # they would draw other random numbers than the seed asks for
            self.is_off = True
            reason = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
            self._warn(
                f"CUDA graphs are off: a training step could not be recorded ({reason}). The training continues "
                "without them, with the same results, and may be slower"
            )
        else:
            self._recordings[key] = _Recording(graph, tuple(kept), loss)

    def _warm_up(self, batch: Any) -> None:
        """Once, before the first recording: libraries set themselves up, and gradients get their place."""
        state = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # recording needs what ran on a side stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._backward(batch, *self._numbers.unbind())
        torch.cuda.current_stream().wait_stream(stream)
        self.clear()
        torch.cuda.set_rng_state(state, self.device)


def can_graph(model: nn.Module, device: torch.device) -> bool:
    """Whether every step of this model asks for the same kernels, on a device that can record them."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return device.type == "cuda" and not any(stack.layer_drop or stack.gradient_checkpointing for stack in stacks)
