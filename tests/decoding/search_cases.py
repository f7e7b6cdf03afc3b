"""Inputs for tests of decoding, and what the NumPy oracle expects for them."""

import torch

from glassformer import reference
from oracle import twin

END, BEGIN = 0, 1
TRANSLATORS = ["tiny-transformer-base", "tiny-t5-small", "tiny-bart-base", "tiny-marian"]
WRITERS = ["tiny-gpt2", "tiny-llama"]
V = 12
"""The vocabulary of `random_case`."""


def random_inputs(count, *, vocab_size=40, longest=6, seed=0):
    """Return `count` lists of 1 to `longest` random token ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def prompt_options(model):
    """Return the options that `generate` needs for this kind of model only."""
    return {"begin": BEGIN} if model.kind == "encoder_decoder" else {}


def next_log_probs(model, tokens):
    """Return the oracle's function from prefixes to log-probabilities of the next token, and the first prefix."""
    oracle = twin(model)
    if model.kind == "encoder_decoder":
        return reference.translates(oracle, torch.tensor(tokens).numpy()), [BEGIN]
    return reference.continues(oracle), tokens


def without_end(tokens):
    return [token for token in tokens if token != END]


def random_case(seed, rows=3, length=9):
    """Return logits (rows, V) and the tokens before them (rows, length)."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(rows, V, generator=generator)
    tokens = torch.randint(1, 5, (rows, length), generator=generator)
    return scores, tokens
