"""The rules that decide where and how a model computes, each with its reason.

When a model is loaded, `prepare_model.py` decides by `DEVICE_RULES`, `NUMBER_RULES` and `WEIGHT_RULES`. For each batch,
`choose_runner.py` decides by `KERNEL_RULES` and `STEP_RULES`. `glassformer info --runtime` prints the rules that apply
to a model, and `docs/decoding.md` has the table of all (`rules_table`). In each list the first rule that applies
decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The facts about a model, the machine and a batch that the rules decide by."""

    asked_device: str = "auto"
    asked_dtype: str = "auto"
    device: str = "cpu"
    """The type of the device that computes, such as "cpu" or "cuda"."""
    stored_as: str = "F32"
    """The format in which the file stores most of its numbers, such as F32 or BF16."""
    has_gpu: bool = False
    is_quantized: bool = False
    """Whether the linear layers have 8-bit or 4-bit weights."""
    has_4_bits: bool = False
    """Whether `quantize` asks for 4-bit weights."""
    is_decoder_only: bool = False
    """Whether the model is a decoder without an encoder."""
    keeps_gguf: bool = False
    """Whether the model is a GGUF file with quantized weights, which stay as they are stored."""
    builds_kernels: bool = True
    """Whether the C++ kernels run on this machine, built already or after a first build."""
    has_built_kernels: bool = False
    """Whether the C++ kernels were built before this process, so that using them costs nothing."""
    in_float32: bool = True
    """Whether the parameters are float32. In a quantized model these are embeddings and norms."""
    runs_triton: bool = False
    """Whether the Triton kernels run on the device."""
    asks_for_kernels: bool = False
    """Whether the model was given to `use_compiled_kernels`."""
    is_watched: bool = False
    """Whether the model has forward hooks, as during a capture of attention."""
    under_autocast: bool = False
    needs_attention: bool = False
    """Whether the search reads attention weights."""
    has_experts: bool = False
    """Whether the layers have experts, of which each token uses a few."""
    can_replay: bool = False
    """Whether a CPU can replay the steps from C++: with the C++ kernels, and for a batch that is not too large."""
    records: Literal["", "recorded", "compiled"] = ""
    """How `record_steps` was asked to record the steps of the model."""


class Rule(NamedTuple):
    """A rule: what is decided, when it applies, and why."""

    decision: str
    when: str
    why: str
    applies: Callable[[Situation], bool]


DEVICE_RULES = (
    Rule("cpu", "`quantize`", "quantized weights are computed on a CPU only", lambda s: s.is_quantized),
    Rule("the one asked for", "`device` names one", "it was asked for", lambda s: s.asked_device != "auto"),
    Rule("cuda", "there is a GPU", "a GPU is faster", lambda s: s.has_gpu),
    Rule("cpu", "otherwise", "no GPU is available", lambda s: True),
)
AS_STORED = "as stored"
"""The decision to compute in the number format of the file."""
NUMBER_RULES = (
    Rule("the one asked for", "`dtype` names one", "it was asked for", lambda s: s.asked_dtype != "auto"),
    Rule(
        AS_STORED,
        "a GPU, and a file in bfloat16 or float16",
        "float32 would be slower, and no closer to the file",
        lambda s: s.device == "cuda" and s.stored_as in ("BF16", "F16"),
    ),
    Rule("float32", "otherwise", "exact on every device", lambda s: True),
)
TWO_BYTE_ACTIVATIONS = "8-bit, projections fused, 2-byte activations"
"""The decision for models whose activations have outliers, for which one byte is too coarse."""
WEIGHT_RULES = (
    Rule(
        "4-bit, projections fused",
        "`quantize` is int4",
        "it was asked for; fewer bytes are read for each token",
        lambda s: s.has_4_bits,
    ),
    Rule(
        TWO_BYTE_ACTIVATIONS,
        "`quantize` is int8, decoder-only",
        "1 byte: perplexity +4 %",
        lambda s: s.is_quantized and s.is_decoder_only,
    ),
    Rule(
        "8-bit, projections fused",
        "`quantize` is int8",
        "it was asked for; fewer and larger products are faster",
        lambda s: s.is_quantized,
    ),
    Rule(
        "projections fused, in a twin",
        "a GPU",
        "fewer and larger products are faster; the twin shares the weights",
        lambda s: s.device == "cuda",
    ),
    Rule(
        "as stored, projections fused",
        "a quantized GGUF file, without `dtype`",
        "they stay as small as in the file",
        lambda s: s.keeps_gguf,
    ),
    Rule(
        "as stored",
        "otherwise",
        "fused float weights gain 2 to 4 % on a CPU",
        lambda s: True,
    ),
)
KERNEL_RULES = (
    Rule(
        "triton",
        "a GPU on which Triton runs",
        "one kernel launch for the attention or the choice of a step",
        lambda s: s.device == "cuda" and s.runs_triton,
    ),
    Rule("torch", "another device than a CPU", "there are no other kernels for it", lambda s: s.device != "cpu"),
    Rule(
        "torch",
        "no compiler, or a CPU without C++ kernels",
        "nothing else runs there; torch has 8-bit products, too",
        lambda s: not s.builds_kernels,
    ),
    Rule("c++", "quantized weights on a CPU", "they multiply these fastest", lambda s: s.is_quantized or s.keeps_gguf),
    Rule("c++", "`use_compiled_kernels`", "it was asked for", lambda s: s.asks_for_kernels),
    Rule(
        "torch",
        "another dtype than float32",
        "the C++ kernels compute in float32",
        lambda s: not s.in_float32,
    ),
    Rule(
        "c++",
        "the C++ kernels are built already",
        "they cost nothing then; steps are replayed",
        lambda s: s.has_built_kernels,
    ),
    Rule(
        "torch",
        "otherwise",
        "building the C++ kernels takes half a minute, which only hundreds of texts repay",
        lambda s: True,
    ),
)
STEP_RULES = (
    Rule("plain", "the model has forward hooks", "a recording runs no hooks", lambda s: s.is_watched),
    Rule("plain", "autocast", "a recording keeps the dtypes it was made with", lambda s: s.under_autocast),
    Rule(
        "plain",
        "attention weights are needed, as by `coverage_penalty`",
        "a recording does not return them",
        lambda s: s.needs_attention,
    ),
    Rule("compiled", "`compile` is on", "it was asked for", lambda s: s.records == "compiled"),
    Rule("recorded", "`record_steps`", "it was asked for", lambda s: s.records == "recorded"),
    Rule(
        "plain",
        "a model with experts",
        "a recording has fixed shapes, so it would compute all experts for every token",
        lambda s: s.has_experts,
    ),
    Rule("recorded", "a GPU", "a CUDA graph launches all kernels of a step at once", lambda s: s.device == "cuda"),
    Rule(
        "replayed",
        "a CPU with C++ kernels, up to 1,024 texts or beams",
        "Python would take much of the time",
        lambda s: s.device == "cpu" and s.can_replay,
    ),
    Rule(
        "plain",
        "otherwise",
        "compiling takes half a minute or more per shape, so `compile` auto never does it",
        lambda s: True,
    ),
)
DECISIONS = {
    "device": DEVICE_RULES,
    "numbers": NUMBER_RULES,
    "weights": WEIGHT_RULES,
    "kernels": KERNEL_RULES,
    "steps": STEP_RULES,
}
"""All rules. The keys are the questions that they answer."""


def decide(rules: Sequence[Rule], situation: Situation) -> Rule:
    """Return the first of the rules that applies. The last rule of each list applies always."""
    return next(rule for rule in rules if rule.applies(situation))


def rules_table() -> str:
    """Return all rules as a Markdown table, in the order in which they are tried."""
    lines = ["| what | first that applies | decision | reason |", "|---|---|---|---|"]
    for what, rules in DECISIONS.items():
        lines += [f"| {what} | {rule.when} | {rule.decision} | {rule.why} |" for rule in rules]
    return "\n".join(lines)
