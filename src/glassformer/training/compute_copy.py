"""A copy of a model that computes the gradients of training: in another dtype, and with fused weights.

The model keeps its parameters in float32 under their own names: the optimizer, validations and checkpoints use them.
The copy holds the same values in the dtype of the training step, laid out for fast products:

- one matrix for the queries, keys and values of self-attention, one for the keys and values of cross-attention, and
  one for both inputs of a gated feed-forward,
- a vocabulary padded to a multiple of 64, because the fast product kernels of GPUs need one.

`ComputeCopy.pull` copies parameters from the model, `push` moves gradients to it. So autocast need not convert every
weight in every step, and gradients are summed over batches in float32. If an update has one batch only, Adam can read
the gradients of the copy itself (`copy_update.py`).
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from glassformer.models import Model
from glassformer.models.heads import LanguageModelHead
from glassformer.nn import Embeddings, FeedForward, Layer, MultiHeadAttention
from glassformer.runtime.packed_model import OUTPUT_ALIGNMENT, PaddedLinear
from glassformer.training.lora import AdaptedLinear


class _Place(NamedTuple):
    """Where the value of a parameter is in the copy: in the first rows of `parameter`, counted from `start`."""

    own: nn.Parameter
    parameter: nn.Parameter
    start: int

    def rows_of(self, tensor: Tensor) -> Tensor:
        return tensor[self.start : self.start + len(self.own)] if self.own.dim() else tensor


class ComputeCopy:
    """A copy of `model` in `dtype`, with fused weights, that computes losses and gradients.

    Its parameters are valid until the optimizer changes those of the model; then call `pull`.
    """

    def __init__(self, model: Model, dtype: torch.dtype):
        self.dtype = dtype
        self.module: Model = copy.deepcopy(model).to(dtype)
        places = {id(new): (new, 0) for new in self.module.parameters()}
        own = list(model.parameters())
        copied = list(self.module.parameters())
        for parameter in copied:
            parameter.grad = None
        for parts, fused in (*_fuse(self.module), *_pad_vocabulary(self.module)):
            start = 0
            for part in parts:
                places[id(part)] = fused, start
                start += len(part)
        self._places = [_Place(old, *places[id(new)]) for old, new in zip(own, copied, strict=True)]
        self._learned = [place for place in self._places if place.own.requires_grad]
        self.pull()

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters of the copy that have gradients, each once."""
        return list({id(place.parameter): place.parameter for place in self._learned}.values())

    def learned_pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Return the model's parameters that have gradients, each with its values in the copy."""
        return [(place.own, place.rows_of(place.parameter.detach())) for place in self._learned]

    def split(self, gradients: "Sequence[Tensor | None]") -> "list[Tensor | None]":
        """Return the gradients of `learned` as those of the parameters of `learned_pairs`, without copying them."""
        found = dict(zip(map(id, self.learned), gradients, strict=True))
        whole = [(place, found[id(place.parameter)]) for place in self._learned]
        return [None if gradient is None else place.rows_of(gradient) for place, gradient in whole]

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the values of the model's parameters."""
        targets = [place.rows_of(place.parameter) for place in self._places]
        torch._foreach_copy_(targets, [place.own for place in self._places])

    @contextmanager
    def pushing(self, *, add: bool) -> Iterator[None]:
        """Context manager for a backward pass: `push` each gradient as soon as it is there, to save memory."""
        by_parameter: dict[int, list[_Place]] = {}
        for place in self._learned:
            by_parameter.setdefault(id(place.parameter), []).append(place)

        def push(parameter: Tensor) -> None:
            assert parameter.grad is not None
            for place in by_parameter[id(parameter)]:
                rows = place.rows_of(parameter.grad).to(place.own.dtype, copy=True)
                place.own.grad = rows if not add or place.own.grad is None else place.own.grad.add_(rows)
            parameter.grad = None

        if not add:
            for place in self._learned:
                place.own.grad = None
        learned: list[Any] = list(self.learned)
        handles = [parameter.register_post_accumulate_grad_hook(push) for parameter in learned]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def prepare_gradients(self) -> None:
        """Remove the gradients of the copy, and give every parameter of the model memory for one."""
        for place in self._learned:
            place.parameter.grad = None
            if place.own.grad is None:
                place.own.grad = torch.zeros_like(place.own)

    @torch.no_grad()
    def push(self, *, add: bool) -> None:
        """Move the gradients of the copy to the model's parameters; with `add`, add them to those that are there.

        A parameter that has no gradient in the copy gets or keeps zeros.
        """
        for place in self._learned:
            if place.own.grad is None:
                place.own.grad = torch.zeros_like(place.own)
        found = [place for place in self._learned if place.parameter.grad is not None]
        to = [place.own.grad for place in found if place.own.grad is not None]
        gradients = [place.rows_of(place.parameter.grad) for place in found if place.parameter.grad is not None]
        if add:
            torch._foreach_add_(to, [gradient.to(one.dtype) for one, gradient in zip(to, gradients, strict=True)])
        else:
            torch._foreach_copy_(to, gradients)
        for place in self._learned:
            if not add and place.parameter.grad is None and place.own.grad is not None:
                place.own.grad.zero_()
        for place in found:
            place.parameter.grad = None


def can_copy(model: nn.Module) -> bool:
    """Whether a `ComputeCopy` of the model can be made: of our models in float32 without adapters or hooks.

    The layers of LoRA have additional parameters, and hooks would see the copy instead of the model.
    """
    if not isinstance(model, Model):
        return False
    modules = list(model.modules())
    is_plain = not any(
        isinstance(module, AdaptedLinear) or parametrize.is_parametrized(module) or module._forward_hooks
        for module in modules
    )
    return is_plain and all(parameter.dtype == torch.float32 for parameter in model.parameters())


def _fuse(model: nn.Module) -> Iterator[tuple[Sequence[Tensor], nn.Parameter]]:
    """Fuse the projections of all layers, in place, and yield the parameters that each new one consists of.

    Projections of which some are frozen stay as they are.
    """
    for module in list(model.modules()):
        if isinstance(module, Layer):
            own, cross = module.self_attn, module.cross_attn
            linears = [own.q_proj, own.k_proj, own.v_proj]
            if type(own) is MultiHeadAttention and _can_fuse(linears):
                yield from _fuse_linears(linears, own, "qkv_proj")
                del own.q_proj, own.k_proj, own.v_proj
            if type(cross) is MultiHeadAttention and _can_fuse([cross.k_proj, cross.v_proj]):
                yield from _fuse_linears([cross.k_proj, cross.v_proj], cross, "kv_proj")
                del cross.k_proj, cross.v_proj
        elif type(module) is FeedForward and module.gate_proj is not None:
            linears = [module.gate_proj, module.up_proj]
            if _can_fuse(linears):
                yield from _fuse_linears(linears, module, "gate_up_proj")
                del module.gate_proj, module.up_proj


def _can_fuse(linears: list[nn.Linear]) -> bool:
    first = linears[0]
    return all(
        type(linear) is nn.Linear
        and (linear.bias is None) == (first.bias is None)
        and linear.weight.requires_grad == first.weight.requires_grad
        for linear in linears
    )


def _fuse_linears(
    linears: list[nn.Linear], owner: nn.Module, name: str
) -> Iterator[tuple[Sequence[Tensor], nn.Parameter]]:
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    fused = nn.Linear(linears[0].in_features, sum(map(len, weights)), bias=bool(biases), device="meta")
    fused.weight = _stacked(weights)
    yield weights, fused.weight
    if biases:
        fused.bias = _stacked(biases)
        yield biases, fused.bias
    setattr(owner, name, fused)


def _stacked(parts: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=parts[0].requires_grad)


def _pad_vocabulary(model: Model) -> Iterator[tuple[Sequence[Tensor], nn.Parameter]]:
    """Pad the output layer and the table tied to it, in place, and yield each old and new parameter."""
    head = model.head
    if not isinstance(head, LanguageModelHead) or len(head.out_proj.weight) % OUTPUT_ALIGNMENT == 0:
        return
    before, bias = head.out_proj.weight, head.out_proj.bias
    head.out_proj = PaddedLinear(head.out_proj)  # type: ignore[assignment]
    head.out_proj.weight = _padded(before)
    yield [before], head.out_proj.weight
    if bias is not None:
        head.out_proj.bias = _padded(bias)
        yield [bias], head.out_proj.bias
    for module in model.modules():
        if isinstance(module, Embeddings) and module.tokens.weight is before:
            module.tokens.weight = head.out_proj.weight


def _padded(parameter: Tensor) -> nn.Parameter:
    missing = -len(parameter) % OUTPUT_ALIGNMENT
    rows = torch.cat([parameter.detach(), parameter.new_zeros(missing, *parameter.shape[1:])])
    return nn.Parameter(rows, requires_grad=parameter.requires_grad)
