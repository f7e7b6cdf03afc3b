"""Measure how fast this machine trains a model, with random tokens in place of the training data."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from glassformer.models import EncoderDecoderModel, ModelConfig, build_model
from glassformer.models.costs import training_flops
from glassformer.runtime.devices import choose_device
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.optimizers import make_optimizer
from glassformer.training.precision import autocast, choose_precision, matmul_precision
from glassformer.training.train_config import TrainConfig

PILOT_SECONDS, PILOT_SHARE = 1.5, 0.01
"""Longest duration of a measurement after its first step: in seconds, and as a fraction of `--minutes`. The smaller
limit applies. Enough steps fit into 1.5 s that a short burst of another program leaves some of them undisturbed."""
MAX_STEPS = 500
"""Largest number of steps that one measurement times."""


WORTH = 1.3
"""`fastest_threads` prefers fewer threads than torch's default only if they are this many times faster."""


def measure_training_speed(config: ModelConfig, train: TrainConfig, length: int) -> float:
    """Return the floating-point operations per second of the fastest measured training step.

    A step trains a new model of this config on `train.max_tokens` random tokens, in sequences of `length` tokens: it
    includes the forward and backward pass and the optimizer step. The random state does not change.
    """
    most = min(PILOT_SECONDS, PILOT_SHARE * 60 * train.minutes) if train.minutes else PILOT_SECONDS
    with using_threads(train.threads):
        flops, taken = _time_steps(config, train, length, most)
    return flops / min(taken)


def fastest_threads(config: ModelConfig, train: TrainConfig, length: int) -> int:
    """Time training steps with several numbers of threads and return the one to train with; 0 is torch's default.

    Returns `train.threads` without measuring if it is set, if OMP_NUM_THREADS is set, or if the device is not a CPU.

    Threads wait for each other after every operation. If another program keeps one core busy, the thread on that core
    delays all others, and fewer threads are many times faster.
    """
    if train.threads or "OMP_NUM_THREADS" in os.environ or choose_device(train.device).type != "cpu":
        return train.threads
    most = min(PILOT_SECONDS, PILOT_SHARE * 60 * train.minutes) / 3 if train.minutes else PILOT_SECONDS / 3
    usual = torch.get_num_threads()
    means = {}
    for threads in sorted({usual, usual - 1, usual // 2, 1} - {0}):
        with using_threads(threads):
            _, taken = _time_steps(config, train, length, most)
        means[threads] = sum(taken) / len(taken)
    best = min(means, key=means.__getitem__)
    return best if means[best] * WORTH < means[usual] else 0


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Context manager that sets torch's number of CPU threads and restores the old number; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _time_steps(config: ModelConfig, train: TrainConfig, length: int, most: float) -> tuple[int, list[float]]:
    """Return the floating-point operations of one training step, and the duration of each of several such steps.

    Steps are timed for about `most` seconds, after a first step that does not count.
    """
    if config.kind == "encoder" and config.head != "language_model":
        config = config.with_head("token_class", n_labels=2)  # any head with an output per token
    device = choose_device(train.device)
    length = max(2, min(length, config.max_len or length))
    rows = max(1, train.max_tokens // length)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model = build_model(config).to(device).train()
        optimizer = make_optimizer(model, train)
        precision = choose_precision(train.precision, device, model)
        tokens = torch.randint(config.vocab_size, (rows, length), device=device)
        taken: list[float] = []
        while len(taken) < 2 or (len(taken) <= MAX_STEPS and sum(taken[1:]) < most):
            began = time.perf_counter()
            with autocast(precision, device):
                logits = model(tokens, tokens) if isinstance(model, EncoderDecoderModel) else model(tokens)
            loss = label_smoothed_cross_entropy(logits.float(), tokens % logits.shape[-1])
            with matmul_precision(precision, device):
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            taken.append(time.perf_counter() - began)
    source, target = (length if layers else 0 for layers in (config.n_encoder_layers, config.n_decoder_layers))
    flops = training_flops(config, batch=rows, source_length=source, target_length=target)
    return flops, taken[1:]  # the first step allocates memory and chooses kernels
