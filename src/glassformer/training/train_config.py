"""The training settings that all tasks share."""

from dataclasses import dataclass
from typing import Annotated, Literal

from glassformer.base.fields import Checked, Count, Decay, NotNegative, Positive, Probability, Range, Threads, Whole
from glassformer.training.schedules import Schedule, read_ramp

Seed = Annotated[int, Range("a whole number, 0 or more and below 2**63", 0, 2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """Training settings: each field is a command-line flag and a recipe key.

    The comments between the fields are the headings of `--help-all`.
    """

    # Length and batches
    updates: Count = 8000
    """Optimizer steps, if nothing ends the training earlier."""
    minutes: NotNegative = 0.0
    """Minutes that the whole command may take, from reading the data to the final scores; 0 trains for --updates."""
    max_updates: Whole = 0
    """With --minutes, make at most this many updates even if time is left; 0 uses all of the time."""
    max_tokens: Count = 4096
    """Most tokens of one batch, padding included; of source and target, the longer one counts."""
    accumulate: Count = 1
    """Batches whose gradients are summed for one update: the same as one larger batch."""
    batch_ramp: str = ""
    """Start with smaller batches: 0.25:0.3 starts with a quarter of --max-tokens and grows to all of them over the
    first 30 % of the updates; empty keeps the size."""
    seed: Seed = 0
    """Seed of everything random."""

    # Optimizer
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Optimizer; muon is for the matrices of the layers and uses adamw for the rest: it learns more per update, and
    wants two to four times the learning rate of adamw."""
    lr: Positive = 2e-3
    """Peak learning rate."""
    schedule: Schedule = "inverse_sqrt"
    """How the learning rate falls after the warm-up."""
    warmup: NotNegative = 1000
    """Updates over which the learning rate rises to its peak; a number below 1 is a share of all updates, such as
    0.06."""
    beta1: Decay = 0.9
    """Decay of Adam's mean of the gradients."""
    beta2: Decay = 0.98
    """Decay of Adam's mean of the squared gradients."""
    eps: NotNegative = 1e-9
    """Small number in Adam's denominator."""
    weight_decay: NotNegative = 0.0
    """Weight decay of matrices, for adamw and muon."""
    momentum: Decay = 0.95
    """Momentum of muon."""
    clip: NotNegative = 1.0
    """Largest norm of the gradient; 0 does not clip."""

    # Regularization
    label_smoothing: Probability = 0.1
    """Share of the probability that the loss spreads over all tokens."""
    word_dropout: Probability = 0.0
    """Probability that an input token is replaced by <unk>."""
    r_drop: NotNegative = 0.0
    """Weight of the divergence of two passes with different dropout (R-Drop, Liang et al. 2021); doubles the cost."""

    adversarial: NotNegative = 0.0
    """Learn each batch a second time, at twice the cost, with its token embeddings moved this far to where the loss
    grows fastest (Miyato et al. 2017); 1 or 2 suits a small encoder, 0 makes no second pass."""

    # Adapters (LoRA)
    lora_rank: Whole = 0
    """Train low-rank adapters of this rank (Hu et al. 2021) on the model of --from instead of all weights; 0 trains
    everything."""
    lora_alpha: NotNegative = 0.0
    """Alpha of the adapters, which are scaled by alpha / rank; 0 means alpha is the rank, a scale of 1."""
    lora_layers: tuple[str, ...] = ()
    """Matrices that get adapters, such as q_proj v_proj; none is all of attention and feed-forward."""
    lora_quantize: Literal["none", "int8", "int4"] = "none"
    """Keep the frozen matrices under the adapters in 8 or 4 bits (QLoRA, Dettmers et al. 2023)."""
    lora_save: Literal["merged", "adapter"] = "merged"
    """What to save: a plain model, or the adapter alone in the format of Hugging Face's PEFT."""

    # Device
    device: str = "auto"
    """Device to compute on, such as cpu or cuda; auto is a GPU where there is one."""
    threads: Threads = 0
    """Number of CPU threads; 0 is torch's default, and fewer are faster if other programs keep a core busy."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = "auto"
    """Floating-point type to compute in; auto is bf16 if the device computes it fast, else fp32. fp8 is bf16 with the
    large products in eight bits, on an H100 or later."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the layers of the model with torch.compile, which takes up to a minute; auto does so on a GPU if the run
    is long enough and a short trial is faster; off also disables the C++ kernels of a CPU."""
    cuda_graphs: bool = True
    """On a GPU, record each training step as a CUDA graph and replay it: small models train many times faster."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    parallel: str = ""
    """How several processes share the work (torchrun, --devices): data=4,shard=2,tensor=2 are 16 processes; empty is
    data=N."""
    offload: bool = False
    """With --parallel shard=N, keep parameters and optimizer state in the memory of the CPU."""

    # Validation and checkpoints
    eval_every: Count = 500
    """Updates between two validations; each one also saves."""
    save_every: Count = 500
    """Updates between two checkpoints: at most so many are lost if the run is killed."""
    async_save: Literal["auto", "on", "off"] = "auto"
    """Write checkpoints while the training continues, from a copy in the memory of the CPU, twice per save_every; auto
    does so on a GPU."""
    keep_last: Count = 3
    """Number of newest checkpoints that are kept in addition to the best one."""
    average_last: Whole = 0
    """Average the weights of this many newest checkpoints at the end, if that scores no worse than the best one; 0
    takes the best one."""
    patience: Whole = 0
    """Stop after this many validations without a better score; 0 never does."""
    metric: str = ""
    """Score of the validation that decides which checkpoint is best, such as loss (default: the task's own)."""

    @property
    def passes(self) -> int:
        """Number of forward and backward passes over each batch: two in adversarial training, else one."""
        return 2 if self.adversarial else 1

    def __post_init__(self) -> None:
        if isinstance(self.compile, bool):  # as in recipes and runs of older versions
            object.__setattr__(self, "compile", "on" if self.compile else "off")
        super().__post_init__()
        if not 0 < self.warmup < 1:
            if self.warmup != int(self.warmup):
                raise ValueError(f"warmup={self.warmup}: expected a whole number of updates, or a share below 1")
            object.__setattr__(self, "warmup", int(self.warmup))
        read_ramp(self.batch_ramp)
        if self.lora_quantize != "none" and (self.average_last or not self.lora_rank):
            expected = "--lora-rank" if not self.lora_rank else "--average-last 0, quantized weights have no average"
            raise ValueError(f"lora_quantize={self.lora_quantize!r}: expected {expected}")
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last={self.average_last}: expected at most keep_last={self.keep_last}")
