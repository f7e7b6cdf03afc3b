"""The memory and the time of one training step on a GPU, from the config alone: what `glassformer plan` computes with.

Memory is counted tensor by tensor, as bf16 training with AdamW and fused attention keeps them. Time is the sum of
matrix products, of passes over the activations, and of the optimizer. `glassformer plan --check` compares them with the
measured runs in `benchmarks/measured_runs.json`.
"""

import math
from typing import NamedTuple

from glassformer.models.config import ModelConfig
from glassformer.models.costs import count_parameters, shapes_by_name, training_flops

MATMUL_SHARE, FULL_WIDTH = 0.70, 900
"""Share of the peak that matrix products reach from a width of FULL_WIDTH on. Narrower models reach less."""
PASSES, DROPOUT_PASSES = 4, 6
"""How often activations are read or written outside of matrix products, without dropout and with it."""
BANDWIDTH_SHARE = 0.8
"""Share of the memory bandwidth that these passes reach."""
OPTIMIZER_BYTES = 40
"""Bytes that an update reads and writes per parameter: weights, gradients and moments in float32, and the bf16 copy."""
STATE_BYTES = {"weights": 4, "gradients": 4, "moments": 8, "bf16 copy": 2, "bf16 gradients": 2}
"""Bytes per parameter that are kept between and during updates."""
ALIGNMENT = 64
"""The vocabulary of the bf16 copy is padded to a multiple of this."""
CONTEXT_BYTES = 600 * 10**6
"""Memory of the CUDA context and of the libraries' workspaces, which torch's own statistics do not contain."""


class StepMemory(NamedTuple):
    """Bytes of one device during a training step, without the CUDA context."""

    states: int
    """Weights, moments and the bf16 copy, and gradients that are kept for the next step of an update."""
    gradients: int
    """Gradients of all parameters, in bf16 and in float32. They replace activations in the backward pass."""
    activations: int
    """Bytes that the layers keep for the backward pass."""
    working: int
    """Gradients of one layer's activations during its backward pass."""
    logits: int
    """The output of the last layer, which becomes its own gradient."""

    @property
    def total(self) -> int:
        """Return the peak: at the start of the backward pass, or at its end."""
        return self.states + max(self.gradients, self.activations + self.working + self.logits)


class StepShape(NamedTuple):
    """The sequences of one step on one device."""

    rows: float
    source_length: int = 0
    target_length: int = 0


def state_bytes(
    parameters: float, learned: float | None = None, *, moments: float | None = None, copy: float = 0.0
) -> float:
    """Return the bytes that training keeps for its whole duration: weights, gradients, moments, and the copy.

    `plan` and the estimate of `train` both count so. `plan` knows the numbers of a config, and `train` measures them.

    Args:
        parameters: Number of parameters on this device.
        learned: Number of those that have a gradient; None is all of them.
        moments: Bytes of the optimizer's moments; None is those of AdamW for all that have a gradient.
        copy: Bytes of the copy that computes the gradients, and of its own gradients.
    """
    learned = parameters if learned is None else learned
    moments = STATE_BYTES["moments"] * learned if moments is None else moments
    return STATE_BYTES["weights"] * parameters + STATE_BYTES["gradients"] * learned + moments + copy


def layer_units(config: ModelConfig, *, has_memory: bool, tensor: int = 1) -> float:
    """Return how many vectors of `d_model` numbers a layer keeps per token of its own side for the backward pass.

    They are the residual, the output of each norm, queries, keys, values and the output of each attention, and the
    inputs and outputs of the activation. `tensor` processes share what is inside attention and feed-forward.
    """
    width = config.n_heads * config.head_size / config.d_model
    narrow = config.kv_heads * config.head_size / config.d_model
    attention = 2 * width + 2 * narrow
    feed_forward = (3 if config.gated else 2) * _feed_forward_width(config) / config.d_model
    n_attention = 2 if has_memory else 1
    return 1 + (n_attention + 1) + (n_attention * attention + feed_forward) / tensor


def _feed_forward_width(config: ModelConfig) -> float:
    """Return the mean inner width of the feed-forward networks that compute a token, over all layers."""
    if not config.n_experts:
        return config.d_ff
    dense = len(config.dense_layers) / config.n_decoder_layers
    # An expert's input and output are kept once for each of a token's experts.
    copies = 2 * config.experts_per_token * config.d_model / (3 if config.gated else 2)
    width = config.experts_per_token * config.expert_width + (config.shared_expert_d_ff or 0) + copies
    return dense * config.d_ff + (1 - dense) * width


def step_memory(
    config: ModelConfig,
    shape: StepShape,
    *,
    shard: int = 1,
    tensor: int = 1,
    checkpointing: bool = False,
    keeps_gradients: bool = False,
    is_alone: bool = False,
) -> StepMemory:
    """Return the memory of a step in bf16 with AdamW on one of `shard` x `tensor` devices that share the model.

    `keeps_gradients` says that an update has several steps, between which gradients are kept. `is_alone` says that the
    run has one device. Then it has no gradients in float32 (`training/copy_update.py`), but without checkpointing a
    second set in bf16, in which CUDA graphs leave them.
    """
    parameters = count_parameters(config)
    n_copied: float = parameters
    if shard > 1:  # FSDP2: float32 states in parts. In bf16 two layers at a time are whole, and embeddings and head.
        inner = sum(math.prod(shape) for name, shape in shapes_by_name(config).items() if ".layers." in name)
        n_copied = parameters - inner + 2 * inner / max(1, config.n_encoder_layers + config.n_decoder_layers)
    own = parameters / (shard * tensor)
    moments, copied = STATE_BYTES["moments"] * own, n_copied * STATE_BYTES["bf16 copy"] / tensor
    states = state_bytes(own, own if keeps_gradients else 0.0, moments=moments, copy=copied)
    gradients = n_copied * STATE_BYTES["bf16 gradients"] / tensor
    if not keeps_gradients and not (is_alone and checkpointing):
        gradients += STATE_BYTES["bf16 gradients" if is_alone else "gradients"] * own
    unit = 2 * config.d_model
    has_both = config.kind == "encoder_decoder"
    activations = largest = 0.0
    for n_layers, length, has_memory in (
        (config.n_encoder_layers, shape.source_length, False),
        (config.n_decoder_layers, shape.target_length, has_both),
    ):
        if n_layers:
            layer = layer_units(config, has_memory=has_memory, tensor=tensor) * unit * shape.rows * length
            activations += n_layers * (unit * shape.rows * length if checkpointing else layer)
            largest = max(largest, layer)
    if checkpointing:
        activations += largest
    logits = 0.0
    if config.head == "language_model":
        length = shape.target_length or shape.source_length
        logits = 2 * shape.rows * length * (-(-config.vocab_size // ALIGNMENT) * ALIGNMENT) / tensor
    return StepMemory(*map(round, (states, gradients, activations, largest, logits)))


def validation_bytes(parameters: float, own: float) -> float:
    """Return the memory of a device during a validation of a model that `shard` or `tensor` divides.

    The whole model is put together there, in float32, beside the device's own weights and moments.

    Args:
        parameters: Number of parameters of the whole model.
        own: Number of those that this device holds.
    """
    return STATE_BYTES["weights"] * parameters + state_bytes(own, 0.0, moments=STATE_BYTES["moments"] * own)


def step_flops(config: ModelConfig, shape: StepShape) -> float:
    """Return the floating-point operations of a step, without the recomputation of gradient checkpointing."""
    lengths = {"source_length": shape.source_length, "target_length": shape.target_length}
    return shape.rows * training_flops(config, batch=1, **lengths)


def step_seconds(
    config: ModelConfig,
    shape: StepShape,
    *,
    peak_flops: float,
    bandwidth: float,
    shard: int = 1,
    tensor: int = 1,
    checkpointing: bool = False,
    updates: float = 1.0,
) -> float:
    """Return the seconds of a step on one device, without communication.

    `peak_flops` is that of bf16 products and `bandwidth` that of the device's memory in bytes per second. `updates` is
    the number of optimizer steps per step: 0.5 if gradients of two steps are accumulated.
    """
    width = config.d_model / tensor if tensor > 1 else config.d_model
    efficiency = MATMUL_SHARE * min(1.0, width / FULL_WIDTH)
    more = 4 / 3 if checkpointing else 1.0
    products = more * step_flops(config, shape) / tensor / (peak_flops * efficiency)
    memory = step_memory(config, shape, shard=shard, tensor=tensor)
    passes = DROPOUT_PASSES if config.dropout or config.embedding_dropout else PASSES
    elementwise = more * passes * (memory.activations + memory.logits) / (bandwidth * BANDWIDTH_SHARE)
    optimizer = updates * OPTIMIZER_BYTES * count_parameters(config) / (shard * tensor)
    return products + elementwise + optimizer / (bandwidth * BANDWIDTH_SHARE)
