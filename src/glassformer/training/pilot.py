"""How fast this machine trains a model, measured on random tokens before there are any others."""

import time

import torch
import torch.nn.functional as F

from glassformer.models import EncoderDecoderModel, ModelConfig, build_model
from glassformer.models.costs import training_flops
from glassformer.training.config import TrainConfig
from glassformer.training.optimisers import make_optimiser
from glassformer.training.precision import autocast, choose_device, choose_precision

PILOT_SECONDS, PILOT_SHARE = 1.5, 0.01
"""How long is measured, after the first step: so many seconds, but at most this share of `minutes`. Another program
that is busy for a moment then leaves some steps undisturbed."""
MAX_STEPS = 500


def measure_training_speed(config: ModelConfig, train: TrainConfig, length: int) -> float:
    """Operations per second of training steps on batches of `train.max_tokens` tokens in rows of `length`.

    The steps include the backward pass and the optimizer. The fastest one counts. The random state stays as it was.
    """
    most = min(PILOT_SECONDS, PILOT_SHARE * 60 * train.minutes) if train.minutes else PILOT_SECONDS
    if config.kind == "encoder" and config.head != "language_model":
        config = config.with_head("token_class", n_labels=2)  # any head that answers each token
    device = choose_device(train.device)
    length = max(2, min(length, config.max_len or length))
    rows = max(1, train.max_tokens // length)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model = build_model(config).to(device).train()
        optimiser = make_optimiser(model, train)
        precision = choose_precision(train.precision, device, model)
        tokens = torch.randint(config.vocab_size, (rows, length), device=device)
        taken: list[float] = []
        while len(taken) < 2 or (len(taken) <= MAX_STEPS and sum(taken[1:]) < most):
            began = time.perf_counter()
            with autocast(precision, device):
                logits = model(tokens, tokens) if isinstance(model, EncoderDecoderModel) else model(tokens)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten() % logits.shape[-1])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            taken.append(time.perf_counter() - began)
    source, target = (length if layers else 0 for layers in (config.n_encoder_layers, config.n_decoder_layers))
    flops = training_flops(config, batch=rows, source_length=source, target_length=target)
    # The first step is left out: it allocates memory and chooses kernels. The fastest one was disturbed least.
    return flops / min(taken[1:])
