"""Choose how to divide a training run among many GPUs: memory, time and communication of every layout, from formulas.

The layouts are those of `--parallel data=D,shard=S,tensor=T`. The fastest one that fits into memory is chosen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from glassformer.base.plurals import counted
from glassformer.models.config import ModelConfig
from glassformer.models.costs import count_parameters
from glassformer.models.training_costs import (
    CONTEXT_BYTES,
    StepMemory,
    StepShape,
    step_flops,
    step_memory,
    step_seconds,
)

MEMORY_SHARE = 0.92
"""Share of a device's memory that a plan may use; the rest is for fragmentation and validations."""
OVERLAP = 0.8
"""Share of the time of computation behind which communication can be hidden."""
NETWORK_SHARE = 0.8
"""Share of the stated bandwidth that collective operations reach."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A kind of GPU and how it is connected. Bandwidths are bytes per second, in one direction, for each GPU."""

    name: str
    memory: float
    peak_flops: float
    """Floating-point operations per second of dense bf16 products."""
    bandwidth: float
    """Bandwidth of its memory."""
    per_node: int = 8
    """GPUs in one machine."""
    link: float = 450e9
    """Bandwidth between the GPUs of a machine (NVLink)."""
    network: float = 50e9
    """Bandwidth to other machines: 50 GB/s is one 400 Gbit/s adapter for each GPU."""


MACHINES = {
    "h200": Machine(name="H200", memory=141e9, peak_flops=989e12, bandwidth=4.8e12),
    "h100": Machine(name="H100", memory=80e9, peak_flops=989e12, bandwidth=3.35e12),
    "a100": Machine(name="A100", memory=80e9, peak_flops=312e12, bandwidth=2.0e12, link=300e9, network=25e9),
}
"""GPUs by name, with their data sheets' numbers for the SXM modules."""


class ClusterPlan(NamedTuple):
    """A layout and its predicted costs."""

    data: int
    shard: int
    tensor: int
    accumulate: int
    """Number of steps per update."""
    checkpointing: bool
    memory: StepMemory
    """Memory of each device, without the CUDA context."""
    seconds: float
    """Time of an update."""
    communication: float
    """Part of that time that is communication which is not hidden."""
    tokens_per_second: float
    mfu: float
    """Model FLOPs utilization: the share of the peak that the model's own operations have."""

    @property
    def device_bytes(self) -> int:
        """Return the memory of each device with the CUDA context."""
        return self.memory.total + CONTEXT_BYTES

    @property
    def train_accumulate(self) -> int:
        """Return the value of `--accumulate`: an update has so many batches, and each device takes whole ones."""
        return self.accumulate * self.data * self.shard if self.accumulate > 1 else 1

    @property
    def parallel(self) -> str:
        """Return the value of `--parallel`."""
        sizes = {"data": self.data, "shard": self.shard, "tensor": self.tensor}
        return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "data=1"


def plan_cluster(
    config: ModelConfig, machine: Machine, *, devices: int, rows: int, source_length: int = 0, target_length: int = 0
) -> list[ClusterPlan]:
    """Return the layouts that fit into memory, fastest first.

    `rows` is the number of sequences of an update, of all devices together. Raises ValueError if there are fewer rows
    than devices could share, or if nothing fits.
    """
    found: list[ClusterPlan] = []
    least = float("inf")
    for data, shard, tensor in _layouts(config, machine, devices):
        parts = data * shard
        if rows % parts:
            continue
        for accumulate in (1, 2, 4, 8, 16, 32, 64):
            if (rows // parts) % accumulate:
                break
            shape = StepShape(rows / parts / accumulate, source_length, target_length)
            for checkpointing in (False, True):
                one = predict_update(
                    config,
                    machine,
                    shape,
                    data=data,
                    shard=shard,
                    tensor=tensor,
                    accumulate=accumulate,
                    checkpointing=checkpointing,
                )
                least = min(least, one.device_bytes)
                if one.device_bytes <= MEMORY_SHARE * machine.memory:
                    found.append(one)
    if least == float("inf"):
        fewest = devices // _widest(config, machine, devices)
        enough = -(-rows // devices) * devices * max(source_length, target_length)
        other = f", or of {fewest:,} with tensor parallelism" if fewest < devices else ""
        raise ValueError(
            f"{counted(rows, 'sequences')} per update cannot be divided among {counted(devices, 'devices')}: expected "
            f"a multiple of {devices:,}, such as --batch-tokens {enough}{other}"
        )
    if not found:
        raise ValueError(
            f"no layout fits: at least {least / 1e9:,.1f} GB per device are needed and {machine.memory / 1e9:,.1f} GB "
            f"are there, of which {MEMORY_SHARE:.0%} may be used; expected more devices or shorter sequences"
        )
    # Of layouts that are equally fast to a percent, the simplest one.
    first = min(one.seconds for one in found)
    return sorted(
        found, key=lambda one: (round(one.seconds / first, 2), one.tensor, one.shard, one.accumulate, one.seconds)
    )


def _layouts(config: ModelConfig, machine: Machine, devices: int) -> Iterator[tuple[int, int, int]]:
    for tensor in (1, 2, 4, 8):
        if tensor > _widest(config, machine, devices):
            return
        rest = devices // tensor
        for shard in (size for size in range(1, rest + 1) if rest % size == 0):
            yield rest // shard, shard, tensor


def _widest(config: ModelConfig, machine: Machine, devices: int) -> int:
    """Return the largest size of a tensor group: inside one machine, and a divisor of heads and feed-forward.

    It is 1 for models that `train` does not divide so: with experts, biases per head, or a norm over all heads.
    """
    has_head_bias = config.has_relative_bias or config.positions not in ("sinusoidal", "learned", "rotary", "none")
    has_wide_norm = config.qk_norm and config.qk_norm_over == "all_heads"
    if config.n_experts or has_head_bias or has_wide_norm:
        return 1
    sizes = (config.n_heads, config.kv_heads, config.d_ff, devices)
    return max(t for t in (1, 2, 4, 8) if t <= machine.per_node and not any(size % t for size in sizes))


def predict_update(
    config: ModelConfig,
    machine: Machine,
    shape: StepShape,
    *,
    data: int = 1,
    shard: int = 1,
    tensor: int = 1,
    accumulate: int = 1,
    checkpointing: bool = False,
) -> ClusterPlan:
    """Return the predicted memory and time of an update in one layout, for `plan` and for runs of `train` on GPUs.

    `shape` is the shape of one step on one device; an update has `accumulate` steps.
    """
    memory = step_memory(
        config,
        shape,
        shard=shard,
        tensor=tensor,
        checkpointing=checkpointing,
        keeps_gradients=accumulate > 1,
        is_alone=data * shard * tensor == 1,
    )
    compute = accumulate * step_seconds(
        config,
        shape,
        peak_flops=machine.peak_flops,
        bandwidth=machine.bandwidth,
        shard=shard,
        tensor=tensor,
        checkpointing=checkpointing,
        updates=1 / accumulate,
    )
    own = count_parameters(config) / tensor
    # Whole parameters in bf16 are gathered for the forward and for the backward pass of every step, and gradients in
    # float32 are scattered. They cross the network if the group is larger than a machine.
    in_node = NETWORK_SHARE * machine.link
    across = NETWORK_SHARE * machine.network
    shard_link = in_node if shard * tensor <= machine.per_node else across
    hidden = accumulate * own * (2 + 2 + 4) * (shard - 1) / shard / shard_link
    data_link = in_node if data * shard * tensor <= machine.per_node else across
    hidden += 2 * own * 4 / shard * (data - 1) / data / data_link
    # Four all-reduces of activations in every layer, in bf16, for which the next product waits.
    tokens = shape.rows * (
        config.n_encoder_layers * shape.source_length + config.n_decoder_layers * shape.target_length
    )
    more = 1.5 if checkpointing else 1.0
    waiting = accumulate * more * 4 * tokens * config.d_model * 2 * 2 * (tensor - 1) / tensor / in_node
    exposed = max(0.0, hidden - OVERLAP * compute) + waiting
    seconds = compute + exposed
    length = shape.target_length or shape.source_length
    rows = shape.rows * accumulate * data * shard
    flops = step_flops(config, shape._replace(rows=rows))
    devices = data * shard * tensor
    return ClusterPlan(
        data,
        shard,
        tensor,
        accumulate,
        checkpointing,
        memory,
        seconds,
        exposed,
        rows * length / seconds,
        flops / seconds / (devices * machine.peak_flops),
    )


ASSUMPTIONS = (
    "bf16 with float32 weights, gradients and moments of AdamW; attention by fused kernels; layers compiled",
    "gradients of parameters replace activations in the backward pass, unless an update has several steps",
    "every sequence has the full length; the loss needs the logits once, in bf16",
    "matrix products reach 70 % of the peak from a width of 900 on, and less in proportion for narrower models",
    "activations are read or written 4 times (6 with dropout) at 80 % of the memory bandwidth",
    "FSDP2 gathers bf16 weights twice and scatters float32 gradients once in every step",
    "collectives reach 80 % of the stated bandwidth; those of data and shard hide behind 80 % of the computation, "
    "those of tensor parallelism do not",
    "no time is lost by reading data, validations, checkpoints, stragglers or failures",
    "the two constants of the time were fitted to the runs of benchmarks/measured_runs.json, which are on one device",
)
"""Assumptions of a plan."""
