"""Train a NumPy Transformer to reverse sequences: `python -m glassformer.reference`."""

import sys
import time

import numpy as np

from glassformer.reference.config import Config
from glassformer.reference.decoding import greedy, translates
from glassformer.reference.initial import initial_parameters
from glassformer.reference.models import EncoderDecoderModel
from glassformer.reference.parameters import Array
from glassformer.reference.training import Adam, label_smoothed_cross_entropy

PAD, BEGIN, END, N_SPECIAL = 0, 1, 2, 3
N_SYMBOLS, MIN_LENGTH, MAX_LENGTH = 10, 3, 6


def batch(rng: np.random.Generator, size: int, *, held_out: bool = False) -> tuple[Array, Array, Array]:
    """Return a batch of `size` random sequences (B, S) and their reversals as decoder input and expected output (B, T).

    The decoder input starts with BEGIN, the expected output ends with END. Sequences whose token ids sum to a multiple
    of ten, about one in ten, are held out of training; `held_out` draws only those.
    """
    source = np.zeros((size, MAX_LENGTH), dtype=int)
    target_in = np.zeros((size, MAX_LENGTH + 1), dtype=int)
    target_out = np.zeros((size, MAX_LENGTH + 1), dtype=int)
    for row in range(size):
        symbols = random_symbols(rng)
        while (symbols.sum() % 10 == 0) != held_out:
            symbols = random_symbols(rng)
        length = len(symbols)
        source[row, :length] = symbols
        target_in[row, : length + 1] = [BEGIN, *symbols[::-1]]
        target_out[row, : length + 1] = [*symbols[::-1], END]
    return source, target_in, target_out


def random_symbols(rng: np.random.Generator) -> Array:
    """Return a sequence of random token ids, with a random length from MIN_LENGTH to MAX_LENGTH."""
    return rng.integers(N_SPECIAL, N_SPECIAL + N_SYMBOLS, rng.integers(MIN_LENGTH, MAX_LENGTH + 1))


def learn_to_reverse(*, seconds: float = 55.0, seed: int = 0, show: bool = True) -> float:
    """Train until held-out sequences are reversed correctly or `seconds` have passed; `show` prints the progress.

    Returns the share of 500 other held-out sequences that the model reverses exactly.
    """
    config = Config(
        vocab_size=N_SYMBOLS + N_SPECIAL,
        n_encoder_layers=1,
        n_decoder_layers=1,
        d_model=32,
        n_heads=4,
        d_ff=64,
        max_len=MAX_LENGTH + 1,
        norm_placement="pre",
        head="language_model",
    )
    rng = np.random.default_rng(seed)
    model = EncoderDecoderModel(config, initial_parameters(config, rng), dtype=np.float32)
    optimizer = Adam(model.params.values, lr=5e-3)
    began = time.perf_counter()
    step, share = 0, 0.0
    while share < 0.995 and time.perf_counter() - began < seconds:
        step += 1
        source, target_in, target_out = batch(rng, 64)
        logits = model.forward(source, target_in, source != PAD, target_in != PAD)
        loss, dlogits = label_smoothed_cross_entropy(logits, target_out, smoothing=0.0, ignore=PAD)
        model.params.clear_grads()
        model.backward(dlogits.astype(np.float32))
        optimizer.lr = 5e-3 * min(step / 50, (50 / step) ** 0.5)  # the paper's schedule: rise, then inverse square root
        optimizer.step(model.params.grads)
        if step % 100 == 0:
            share = exact_match(model, np.random.default_rng(seed + 1), 200)
            if show:
                print(f"step {step:5d}   loss {loss:.4f}   exact {share:6.1%}   {time.perf_counter() - began:5.1f} s")
    share = exact_match(model, np.random.default_rng(seed + 2), 500)
    if show:
        print(f"of 500 more held-out sequences {share:.1%} are right to the last token")
        example = np.array([3, 4, 5, 6, 7])
        written = greedy(translates(model, example), [BEGIN], END, MAX_LENGTH + 1).tokens
        print(f"{example.tolist()} reversed is {written[:-1]}")
    return share


def exact_match(model: EncoderDecoderModel, rng: np.random.Generator, size: int) -> float:
    """Return the share of `size` held-out sequences for which greedy decoding gives exactly the reversed sequence."""
    source, _, target_out = batch(rng, size, held_out=True)
    right = 0
    for row in range(size):
        sentence = source[row][source[row] != PAD]
        wanted = target_out[row][target_out[row] != PAD].tolist()
        right += greedy(translates(model, sentence), [BEGIN], END, MAX_LENGTH + 1).tokens == wanted
    return right / size


if __name__ == "__main__":
    sys.exit(0 if learn_to_reverse() >= 0.99 else 1)
