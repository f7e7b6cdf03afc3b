"""Say how a model would compute here, and why, without loading its weights: for `glassformer info --runtime`."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from glassformer.kernels.build_cache import why_not_cached
from glassformer.kernels.cpp_kernels import HEAD_SIZES
from glassformer.kernels.cpp_library import KernelBuildError, is_library_built
from glassformer.kernels.kernel_registry import was_library_built
from glassformer.kernels.triton_kernels import has_triton_kernels
from glassformer.models import ModelConfig
from glassformer.models.costs import count_parameters
from glassformer.runtime.choose_runner import CompileChoice, check_compile
from glassformer.runtime.decision_rules import KERNEL_RULES, STEP_RULES, WEIGHT_RULES, Situation, decide
from glassformer.runtime.expected_speed import describe_speed, expected_speed, measure_rates
from glassformer.runtime.prepare_model import DtypeName, Quantization, choose_preparation, weight_bytes

BUILD_TIME = "about half a minute"


class ReportedDecision(NamedTuple):
    """A decision about a model, and the reason for it."""

    decision: str
    why: str


def report_runtime(
    config: ModelConfig,
    *,
    device: str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
    compile: CompileChoice = "auto",
    stored_bytes: int = 0,
    stored_as: str = "F32",
) -> dict[str, ReportedDecision]:
    """Return the decisions of `load` and generation for a model of this config, such as "device" -> cpu.

    The decisions are made by the rules that `load` and generation use themselves (`decision_rules.py`), for a batch
    without special wishes, such as attention weights. `stored_bytes` is the size of a GGUF file with quantized weights,
    and 0 for other models. `stored_as` is the format of most numbers in the file.
    """
    prepared = choose_preparation(device=device, dtype=dtype, quantize=quantize, stored_format=lambda: stored_as)
    problem, is_built = _kernel_library()
    situation = Situation(
        asked_device=device,
        device=prepared.device.type,
        has_gpu=prepared.device.type == "cuda",
        is_quantized=quantize != "none",
        has_4_bits=quantize == "int4",
        is_decoder_only=config.kind == "decoder",
        has_experts=config.n_experts > 0,
        keeps_gguf=stored_bytes > 0 and prepared.keeps_quantized,
        builds_kernels=problem is None,
        has_built_kernels=prepared.device.type == "cpu" and was_library_built(),
        in_float32=prepared.dtype == torch.float32,
        runs_triton=prepared.device.type == "cuda" and has_triton_kernels(prepared.device),
        records="compiled" if check_compile(compile) == "on" else "",
    )
    weights, kernels = decide(WEIGHT_RULES, situation), decide(KERNEL_RULES, situation)
    situation = replace(situation, can_replay=kernels.decision == "c++" and config.head_size in HEAD_SIZES)
    numbers = str(prepared.dtype).removeprefix("torch.")
    found: dict[str, Any] = {
        "device": (str(prepared.device), prepared.device_rule.why),
        "numbers": (numbers, prepared.number_rule.why),
        "weights": (weights.decision, weights.why),
    }
    if config.kind != "encoder":  # an encoder makes no steps
        steps = decide(STEP_RULES, situation)
        why = f"{kernels.why} ({problem})" if situation.device == "cpu" and problem is not None else kernels.why
        found["kernels"] = (kernels.decision, why)
        found["steps"] = (steps.decision, steps.why)
    found["warm-up"] = _warm_up(situation, kernels.decision, is_built, config)
    size = stored_bytes if situation.keeps_gguf else weight_bytes(config, prepared.dtype, quantize)
    found["memory"] = (
        f"{size / 1e6:,.0f} MB of weights",
        "loading takes about 1.2 times the larger of file and model",
    )
    rates = measure_rates(prepared.device, prepared.dtype)
    speed = expected_speed(config, rates, size / max(count_parameters(config), 1))
    found["speed"] = (
        describe_speed(speed),
        f"from {rates.bytes_read / 1e9:,.0f} GB/s of memory and {rates.flops / 1e9:,.0f} GFLOP/s measured here; matrix "
        "products only, so an upper bound",
    )
    return {what: ReportedDecision(*decision) for what, decision in found.items()}


def _kernel_library() -> tuple[str | None, bool]:
    """Return why the C++ kernels cannot be built here, None if they can, and whether they are built already."""
    try:
        return None, is_library_built()
    except KernelBuildError as error:
        return str(error), False


def _warm_up(situation: Situation, kernels: str, is_built: bool, config: ModelConfig) -> tuple[str, str]:
    """Return the cost of the first use beyond reading the weights, and its reason."""
    if situation.records == "compiled" and config.kind != "encoder":
        return "half a minute or more per batch shape", "torch compiles the first batch of a shape"
    if situation.device == "cuda" and config.kind != "encoder":
        return "slower first batches", "the first batch of a shape is recorded; later ones replay it"
    if kernels == "c++" and not is_built and (reason := why_not_cached()) is not None:
        return BUILD_TIME, f"every process builds the C++ kernels, because they cannot be kept: {reason}"
    if kernels == "c++" and not is_built:
        return BUILD_TIME, "the C++ kernels are not built yet; they are then kept in the cache folder"
    if kernels == "c++":
        return "none", "the C++ kernels are built and in the cache folder"
    return "none", "nothing is compiled"
