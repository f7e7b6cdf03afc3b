"""Checks of a model on one text: shapes, attention rows, masks, scale, norms and gradients, each with its number.

They are the checks that document 004 recommends under "Testing Your Transformer Components", made on the real model.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.inspect.json_values import number
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import ModelText
from glassformer.inspect.recorder import RecordedActivations, record
from glassformer.models import EncoderDecoderModel
from glassformer.nn import MeanStdNorm
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.multi_head_attention import MultiHeadAttention
from glassformer.nn.norms import OffsetRMSNorm
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear

N_PADDING = 3
"""Padding tokens behind the text in the check of padding."""
MOST_WORK = 6e10
"""The most parameters times tokens for which gradients are computed."""
MOST_TOKENS = 256
"""Longer texts are cut for these checks, because all activations are kept."""


def check_health(read: ModelText, objective: Objective) -> list[dict[str, Any]]:
    """Run all checks on a text and return their results as JSON values."""
    short = _shortened(read)
    with torch.no_grad(), _NormWatch(read.model) as norms, record(read.model, "*") as recorded:
        read.model(**short)
    tolerance = 1e-5 if next(read.model.parameters()).dtype in (torch.float32, torch.float64) else 2e-2
    found = [
        _check_shapes(read, recorded, short),
        _check_finite(recorded),
        _check_rows(recorded, tolerance),
        _check_future(recorded),
        *_check_padding(read, short, tolerance),
        _check_scale(read),
        _check_kernel(recorded, tolerance),
        _check_norms(norms, tolerance),
        _check_gradients(read, objective, short),
    ]
    return [one for one in found if one is not None]


def failures(checks: list[dict[str, Any]]) -> list[str]:
    """Return the names of the checks that failed."""
    return [check["name"] for check in checks if not check["passed"]]


def _result(name: str, passed: bool, value: float | str, limit: float | str, explanation: str) -> dict[str, Any]:
    value = value if isinstance(value, str) else _shown(value)
    return {"name": name, "passed": bool(passed), "value": value, "limit": limit, "explanation": explanation}


def _shown(value: float) -> float | str:
    found = number(value)
    return "not a number" if found is None else found


def _shortened(read: ModelText) -> dict[str, Tensor]:
    return {name: tokens[:, :MOST_TOKENS] for name, tokens in read.inputs().items()}


def _check_shapes(read: ModelText, recorded: RecordedActivations, inputs: dict[str, Tensor]) -> dict[str, Any]:
    config, wrong = read.model.config, []
    lengths = {name: tokens.shape[1] for name, tokens in inputs.items()}
    for name, value in recorded.items():
        side = "source" if name.startswith(("encoder", "source")) else "target"
        length = lengths.get(side, lengths.get("tokens", 0))
        keys = lengths.get("source", length) if ".cross_attn." in name else length
        owner, part = name.rpartition(".")[0], name.rpartition(".")[2]
        heads, width = (config.n_heads, config.head_size)
        expected: tuple[int, ...] = (1, length, config.d_model)
        if owner.endswith("_attn"):
            expected = {
                "q": (1, heads, length, width),
                "k": (1, config.kv_heads, keys, width),
                "v": (1, config.kv_heads, keys, width),
                "weights": (1, heads, length, keys),
                "heads": (1, heads, length, width),
            }.get(part, expected)
        elif part in ("act", "router"):
            expected = (1, length, config.d_ff if part == "act" else config.n_experts)
        elif owner == "head":
            expected = (1, *value.shape[1:])
        if tuple(value.shape) != expected:
            wrong.append(f"{name} {tuple(value.shape)}")
    text = f"{len(recorded)} activations" if not wrong else ", ".join(wrong[:5])
    return _result("shapes", not wrong, text, "as configured", "every activation has the shape that the config gives")


def _check_finite(recorded: RecordedActivations) -> dict[str, Any]:
    bad = [name for name, value in recorded.items() if not value.isfinite().all()]
    text = ", ".join(bad[:5]) or f"{len(recorded)} activations"
    return _result("finite", not bad, text, "no NaN, no infinity", "NaN or infinity anywhere spoils every later number")


def _weights(recorded: RecordedActivations) -> dict[str, Tensor]:
    return {name: value.double() for name, value in recorded.items() if name.endswith(".weights")}


def _check_rows(recorded: RecordedActivations, tolerance: float) -> dict[str, Any]:
    worst = max(float((weights.sum(-1) - 1).abs().max()) for weights in _weights(recorded).values())
    text = "softmax makes the attention weights of each query add up to 1"
    return _result("attention rows sum to 1", worst <= tolerance, worst, tolerance, text)


def _check_future(recorded: RecordedActivations) -> dict[str, Any] | None:
    causal = [w for name, w in _weights(recorded).items() if name.startswith("decoder") and ".self_attn." in name]
    if not causal:
        return None
    worst = max(float(weights.triu(1).abs().max()) for weights in causal)
    text = "a decoder must not see the tokens that it is to predict"
    return _result("no weight on the future", worst == 0.0, worst, 0.0, text)


def _check_padding(read: ModelText, inputs: dict[str, Tensor], tolerance: float) -> list[dict[str, Any]]:
    """Append padding to the text, and compare with the run without it."""
    model = read.model
    padded = {name: nn.functional.pad(tokens, (0, N_PADDING)) for name, tokens in inputs.items() if name != "target"}
    masks = {name: nn.functional.pad(torch.ones_like(tokens), (0, N_PADDING)) for name, tokens in inputs.items()}
    if isinstance(model, EncoderDecoderModel):
        more = {"target": inputs["target"], "source_mask": masks["source"].bool()}
    else:
        more = {"mask": masks["tokens"].bool()}
        limit = model.config.max_len
        if limit is not None and padded["tokens"].shape[1] > limit and model.plain_positions:
            return []
    with torch.no_grad(), record(model, "*_attn.weights") as recorded:
        expected = model(**inputs).float()
        found = model(**padded, **more).float()
    looked = [w for name, w in _weights(recorded).items() if name.startswith("encoder") or ".cross_attn." in name]
    looked = looked or list(_weights(recorded).values())
    real = inputs["source" if "source" in inputs else "tokens"].shape[1]
    worst = max(float(weights[:, :, :real, real:].abs().max()) for weights in looked)
    if found.shape[1:] != expected.shape[1:]:
        found = found[:, : expected.shape[1]]
    change = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
    return [
        _result("no weight on padding", worst == 0.0, worst, 0.0, "padding is no part of the text"),
        _result(
            "padding changes nothing",
            change <= 50 * tolerance,
            change,
            50 * tolerance,
            "the output of a text does not depend on padding behind it (relative difference)",
        ),
    ]


def _check_scale(read: ModelText) -> dict[str, Any]:
    config = read.model.config
    modules = [m for m in read.model.modules() if isinstance(m, MultiHeadAttention)]
    wrong = 0.0
    for index, module in enumerate(modules):
        by_depth = 1 / (index + 1) if config.scale_by_depth else 1.0
        wrong = max(wrong, abs(module.attend.scale / (config.scale * by_depth) - 1))
    usual = math.isclose(config.scale, config.head_size**-0.5)
    text = "scores are divided by the root of the head size, so that their softmax does not become too sharp"
    if not usual:
        text = f"this model multiplies scores by {config.scale:.4g} instead of 1/sqrt(head size), as its config says"
    value = f"{modules[0].attend.scale:.6g}"
    return _result("scale of the scores", wrong < 1e-6, value, f"{config.scale:.6g}", text)


def _check_kernel(recorded: RecordedActivations, tolerance: float) -> dict[str, Any]:
    worst = 0.0
    for name, weights in _weights(recorded).items():
        owner = name.removesuffix(".weights")
        values = recorded[f"{owner}.v"].double()
        expected = weights @ values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
        size = expected.abs().max().clamp_min(1e-6)
        worst = max(worst, float((recorded[f"{owner}.heads"].double() - expected).abs().max() / size))
    text = "the fused kernel gives the weighted sum of the values (relative difference)"
    return _result("attention equals its formula", worst <= 20 * tolerance, worst, 20 * tolerance, text)


class _NormWatch:
    """Context manager that collects the input and output of every norm module."""

    def __init__(self, model: nn.Module):
        kinds = (nn.LayerNorm, nn.RMSNorm, OffsetRMSNorm, MeanStdNorm)
        self.modules = [module for module in model.modules() if isinstance(module, kinds)]
        self.seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def __enter__(self) -> "list[tuple[nn.Module, Tensor, Tensor]]":
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            self.seen.append((module, args[0].detach().double(), output.detach().double()))

        self.handles = [module.register_forward_hook(hook) for module in self.modules]
        return self.seen

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def _check_norms(seen: list[tuple[nn.Module, Tensor, Tensor]], tolerance: float) -> dict[str, Any] | None:
    """Undo weight and bias of each norm's output; what is left must have mean 0 and variance 1 (RMS norms: RMS 1)."""
    worst, n_rows = 0.0, 0
    for module, x, output in seen:
        weight: Any = getattr(module, "weight", None)
        bias: Any = getattr(module, "bias", None)
        if weight is None:
            continue
        weight = weight.detach().double() + (1.0 if isinstance(module, OffsetRMSNorm) else 0.0)
        usable = weight.abs() > 1e-3
        if int(usable.sum()) < weight.numel():
            continue  # a weight of zero cannot be undone
        plain = (output - (0.0 if bias is None else bias.detach().double())) / weight
        square = plain.square().mean(-1)
        # Where a row's variance is not far above eps, the result is below 1.
        is_centered = isinstance(module, nn.LayerNorm | MeanStdNorm)
        spread = x.var(-1, correction=0) if is_centered else x.square().mean(-1)
        eps: Any = getattr(module, "eps", None) or 1e-7
        rows = spread > 1000 * eps
        if not rows.any():
            continue
        n_rows += int(rows.sum())
        worst = max(worst, float((square[rows].sqrt() - 1).abs().max()))
        if is_centered:
            worst = max(worst, float(plain.mean(-1)[rows].abs().max()))
    if not n_rows:
        return None
    limit = max(0.05, 10 * tolerance)
    text = f"each of {n_rows:,} normalized vectors has mean 0 and variance 1 (RMS norms: RMS 1) before weight and bias"
    return _result("norm statistics", worst <= limit, worst, limit, text)


def _check_gradients(read: ModelText, objective: Objective, inputs: dict[str, Tensor]) -> dict[str, Any] | None:
    model = read.model
    n_tokens = sum(tokens.shape[1] for tokens in inputs.values())
    is_quantized = any(isinstance(one, Int8Linear | TorchInt8Linear | GroupwiseLinear) for one in model.modules())
    if is_quantized or model.n_parameters() * n_tokens > MOST_WORK or n_tokens < 2:
        return None
    parameters = dict(model.named_parameters())
    were_on = {name: parameter.requires_grad for name, parameter in parameters.items()}
    asked = list(parameters.values())
    with torch.inference_mode(False), torch.enable_grad():
        for parameter in asked:
            parameter.requires_grad_()
        output = model(**{name: tokens.clone() for name, tokens in inputs.items()})
        # A fixed direction instead of the loss: a confident model has almost no loss.
        direction = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
        gradients = torch.autograd.grad((output.float() * direction).sum(), asked, allow_unused=True)
    for name, parameter in parameters.items():
        parameter.requires_grad_(were_on[name])
    by_id = {id(parameter): gradient for parameter, gradient in zip(asked, gradients, strict=True)}
    # Adding the same number to all keys does not change a softmax, so the bias of the keys has no gradient.
    named = [name for name in parameters if not name.endswith("k_proj.bias")]
    without = [name for name in named if (g := by_id[id(parameters[name])]) is None or not bool(g.any())]
    bad = [name for name in named if (g := by_id[id(parameters[name])]) is not None and not bool(g.isfinite().all())]
    text = f"{len(named) - len(without)} of {len(named)} parameters" + (f"; not {without[0]}" if without else "")
    if bad:
        text += f"; not finite: {bad[0]}"
    why = "a parameter without a gradient cannot learn (the bias of the keys never has one)"
    return _result("gradients reach every parameter", not without and not bad, text, f"all {len(named)}", why)
