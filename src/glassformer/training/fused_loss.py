"""Output layer and label-smoothed cross-entropy in one operation, in chunks of rows, with the gradient in closed form.

Logits of a whole batch are the largest tensors of a training step, and autograd reads and writes several of their size.
Here the logits of a chunk are computed, overwritten by their gradient, and multiplied into the gradients of the hidden
states and of the output layer at once, so that only one chunk of logits exists. On a CPU the output layer is not
computed for ignored positions, such as padding.

With label smoothing ε, V classes, logits z and p = softmax(z), the loss of target t is

    logsumexp(z) - (1 - ε) z_t - ε mean(z)     with the gradient     p - ε / V - (1 - ε) [target = t].
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.cpu_products import linear_forward, write_linear_gradients
from glassformer.kernels.cpu_training import replace_by_gradient
from glassformer.models.heads import LanguageModelHead
from glassformer.runtime.packed_model import PaddedLinear
from glassformer.training.float8_linear import Float8Output
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.output_loss import can_replace_logits, replaced_logits_loss

CPU_CHUNK, BF16_CHUNK, GPU_CHUNK = 2**22, 2**23, 2**27
"""Logits per chunk: on a CPU in float32, on a CPU by AMX kernels, and on a GPU. On a CPU, chunks larger than its caches
are slower, and so are products of few rows: for each chunk, AMX kernels round all weights."""
MIN_BF16_ROWS = 256
"""The fewest rows of a chunk by AMX kernels."""


_HAS_CPU_KERNEL = ContextVar("_HAS_CPU_KERNEL", default=False)
_IN_BF16 = ContextVar("_IN_BF16", default=False)


@contextmanager
def with_cpu_kernel(*, in_bf16: bool = False) -> Iterator[None]:
    """Context manager in which a C++ kernel computes the loss of float32 logits on a CPU.

    With `in_bf16`, AMX kernels compute the output layer. Call `build_training_kernels` first.
    """
    tokens = _HAS_CPU_KERNEL.set(True), _IN_BF16.set(in_bf16)
    try:
        yield
    finally:
        _HAS_CPU_KERNEL.reset(tokens[0])
        _IN_BF16.reset(tokens[1])


def token_loss(
    model: nn.Module, forward: Callable[[], Tensor], targets: Tensor, *, smoothing: float, ignore: int
) -> Tensor:
    """Return the summed loss of the logits (..., V) that `forward` computes with `model`, for target ids (...).

    Output layer and loss are one operation where `model` allows it.
    """
    with without_output_layer(model) as layer:
        found = forward()
    if layer is None:
        return label_smoothed_cross_entropy(found, targets, smoothing=smoothing, ignore=ignore, reduction="sum")
    return output_layer_loss(found.flatten(0, -2), layer, targets.flatten(), smoothing=smoothing, ignore=ignore)


def output_layer_loss(hidden: Tensor, layer: nn.Linear, targets: Tensor, *, smoothing: float, ignore: int) -> Tensor:
    """Return the summed loss of hidden states (N, C) and target ids (N,): `layer`, then smoothed cross-entropy.

    It equals `label_smoothed_cross_entropy(layer(hidden), targets, reduction="sum", ...)` up to rounding, and so do its
    gradients. Under autocast the products are computed in the dtype of autocast, and the loss in float32. In
    `with_cpu_kernel(in_bf16=True)` the products round their inputs to bfloat16.
    """
    if can_replace_logits(hidden, layer.weight):
        return replaced_logits_loss(hidden, layer, targets, smoothing=smoothing, ignored=ignore)
    if hidden.device.type == "cpu":  # elsewhere, counting the rows would wait for the device
        rows = (targets != ignore).nonzero().flatten()
        if len(rows) < len(targets):
            hidden, targets = hidden[rows], targets[rows]
    arguments = hidden, layer.weight, layer.bias, targets, smoothing, ignore
    loss: Tensor = _OutputLayerLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss


@contextmanager
def without_output_layer(model: nn.Module) -> Iterator[nn.Linear | None]:
    """Context manager in which `model` returns the input of its output layer instead of logits.

    It yields that layer. It yields None, and changes nothing, if the model's head has no plain output layer that
    `output_layer_loss` could stand for: one with adapters, for example, with forward hooks, or with bounded logits.
    """
    heads = [module for module in model.modules() if isinstance(module, LanguageModelHead)]
    layer: Any = heads[0].out_proj if len(heads) == 1 and heads[0].softcap is None else None
    # A padded layer or one in fp8 belongs to a copy of the model on a GPU, where its logits can be replaced.
    is_padded = type(layer) in (PaddedLinear, Float8Output) and can_replace_logits(layer.weight, layer.weight)
    if layer is None or not (type(layer) is nn.Linear or is_padded) or layer._forward_hooks or layer._forward_pre_hooks:
        yield None
        return
    heads[0].skips_output_layer = True
    try:
        yield layer
    finally:
        heads[0].skips_output_layer = False


class _OutputLayerLoss(torch.autograd.Function):
    """Computes loss and gradients in the forward pass; the backward pass scales the gradients."""

    @staticmethod
    @override
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, ignore: int
    ) -> Tensor:
        """Return the loss of `output_layer_loss`, and store the gradients of hidden states, weight and bias."""
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        with torch.autocast(kind, enabled=False):
            loss, gradients = _loss_and_gradients(
                hidden.to(dtype),
                weight.to(dtype),
                None if bias is None else bias.to(dtype),
                targets,
                smoothing,
                ignore,
                ctx.needs_input_grad[:3],
            )
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [None if x is None else x.dtype for x in (hidden, weight, bias)]
        return loss

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the stored gradients, multiplied by the gradient of the loss."""
        (by,) = upstream
        scaled = [
            None if x is None else (x * by.to(x.dtype)).to(dtype)
            for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None


def _loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    ignore: int,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the summed loss, and its gradients by hidden states, weight and bias; None for those not wanted."""
    n_rows, n_classes = len(hidden), len(weight)
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    layout = torch.contiguous_format
    of_hidden = torch.empty_like(hidden, memory_format=layout) if wanted[0] else None
    of_weight = torch.empty_like(weight, dtype=wide, memory_format=layout) if wanted[1] else None
    of_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and wanted[2] else None
    total = torch.zeros((), dtype=wide, device=hidden.device)
    if of_weight is not None and not n_rows:
        of_weight.zero_()
    in_bf16 = _IN_BF16.get() and weight.dtype == hidden.dtype == torch.float32 and hidden.device.type == "cpu"
    chunk_logits = BF16_CHUNK if in_bf16 else CPU_CHUNK if hidden.device.type == "cpu" else GPU_CHUNK
    chunk_rows = max(MIN_BF16_ROWS if in_bf16 else 1, chunk_logits // n_classes)
    size = -(-n_rows // max(1, -(-n_rows // chunk_rows)))  # chunks of equal size
    for first in range(0, n_rows, max(1, size)):
        rows = slice(first, first + size)
        chunk = hidden[rows]
        if in_bf16 and of_weight is not None:
            (logits,) = linear_forward(chunk, [weight], [bias])
            total += _overwrite_with_gradient(logits, targets[rows], smoothing, ignore)
            to_hidden = None if of_hidden is None else of_hidden[rows]
            write_linear_gradients([logits], chunk, [weight], [of_weight], [of_bias], to_hidden, adds=first > 0)
            continue
        logits = (chunk @ weight.t() if bias is None else torch.addmm(bias, chunk, weight.t())).to(wide)
        total += _overwrite_with_gradient(logits, targets[rows], smoothing, ignore)
        gradient = logits.to(weight.dtype)
        if of_hidden is not None:
            torch.mm(gradient, weight, out=of_hidden[rows])
        if of_weight is not None and weight.dtype == wide:
            of_weight.addmm_(gradient.t(), chunk, beta=int(first > 0))  # not addmm(out=...), which copies of_weight
        elif of_weight is not None:
            product = gradient.t() @ chunk
            _ = of_weight.add_(product) if first else of_weight.copy_(product)
        if of_bias is not None:
            of_bias += logits.sum(0)
    return total, [of_hidden, of_weight, of_bias]


def _overwrite_with_gradient(logits: Tensor, targets: Tensor, smoothing: float, ignore: int) -> Tensor:
    """Return the summed loss of logits (n, V), and replace the logits by its gradient."""
    if _HAS_CPU_KERNEL.get() and logits.device.type == "cpu" and logits.dtype == torch.float32:
        return replace_by_gradient(logits, targets, smoothing)
    is_counted = (targets != ignore)[:, None]
    index = torch.where(is_counted, targets[:, None], 0)
    target_logit = logits.gather(1, index)
    highest = logits.amax(1, keepdim=True)
    mean = logits.mean(1, keepdim=True)
    torch.softmax(logits, 1, out=logits)
    # The highest probability is 1 / Σ exp(z - highest), so its logarithm gives logsumexp without another pass.
    log_sum = highest - logits.amax(1, keepdim=True).log()
    loss = torch.where(is_counted, log_sum - (1 - smoothing) * target_logit - smoothing * mean, 0.0)
    logits.sub_(smoothing / logits.shape[1])
    logits.scatter_add_(1, index, torch.full_like(target_logit, smoothing - 1))
    if logits.device.type != "cpu":  # on a CPU, ignored rows were removed before
        logits.mul_(is_counted)
    return loss.sum()
