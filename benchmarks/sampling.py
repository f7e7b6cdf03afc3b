"""Time the draw of a next token from a large vocabulary on a CPU, with and without the C++ kernel.

The former code and a bare softmax are timed beside them.

    python benchmarks/sampling.py benchmarks/results/sampling.json

It writes a new result file and prints its table. In each round every function is timed once, in one thread. The time is
that of the processor, so that other processes do not count. The ratios are medians over the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.decoding import GenerationConfig
from glassformer.decoding.cpu_sampling import sample_rows
from glassformer.decoding.sampling import NEG_INF, filter_logits, sample
from glassformer.kernels.kernel_registry import cpp_kernels

REQUESTS = {
    "no filter": {},
    "temperature 0.8": {"temperature": 0.8},
    "top-k 50": {"top_k": 50},
    "top-k 20,000": {"top_k": 20_000},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "typical 0.9": {"typical_p": 0.9},
    "temperature 0.8, top-k 50, top-p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
SPREADS = {"flat": 0.5, "usual": 3.0}
"""Standard deviation of the logits."""


def former_draw(logits: Tensor, request: GenerationConfig, number: float) -> Tensor:
    """Draw a token as the version before did: try a few of the likeliest tokens, then more, then sort all."""
    p = torch.tensor([[min(request.top_p, request.typical_p)]])
    if request.top_p < 1:
        others = GenerationConfig(do_sample=True, temperature=request.temperature, top_k=request.top_k)
        logits = filter_logits(logits, [others])
        probs = logits.softmax(-1)
        tokens = _likeliest(probs, probs, p)
        kept = probs.gather(1, tokens)
        allowed = logits.gather(1, tokens).where(kept.cumsum(-1) - kept < p, NEG_INF)
        return sample(torch.full_like(logits, NEG_INF).scatter(1, tokens, allowed), [number])
    if request.typical_p < 1:
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        distance = (-log_probs + (log_probs * probs).nansum(-1, keepdim=True)).abs()
        tokens = _likeliest(-distance, probs, p)
        last = (probs.gather(1, tokens).cumsum(-1) < p).sum(-1, keepdim=True).clamp_max(tokens.shape[-1] - 1)
        is_kept = distance <= distance.gather(1, tokens.gather(1, last))
        return sample(logits.masked_fill(~is_kept, NEG_INF), [number])
    return sample(filter_logits(logits, [request]), [number])


def _likeliest(keys: Tensor, probs: Tensor, p: Tensor) -> Tensor:
    count = 128
    while count < keys.shape[-1]:
        tokens = keys.topk(count).indices
        if (probs.gather(1, tokens).sum(-1, keepdim=True) >= p).all():
            return tokens
        count *= 16
    return keys.sort(descending=True, stable=True).indices


def measure(vocab_size: int, rounds: int) -> list[list[str]]:
    """Return the rows of the table: distribution, request, milliseconds of the kernel, ratios to softmax."""
    kernels = cpp_kernels()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = []
    for shape, spread in SPREADS.items():
        logits = spread * torch.randn(1, vocab_size)
        for name, options in REQUESTS.items():
            request = GenerationConfig(do_sample=True, **options)
            calls: list[Callable[[], Tensor]] = [
                lambda logits=logits: logits.softmax(-1),  # type: ignore[misc]
                lambda logits=logits, request=request: former_draw(logits, request, 0.4),  # type: ignore[misc]
                lambda logits=logits, request=request: sample_rows(logits, [request], [0.4]),  # type: ignore[misc]
                lambda logits=logits, request=request: sample_rows(logits, [request], [0.4], kernels),  # type: ignore[misc]
            ]
            times: list[list[float]] = [[] for _ in calls]
            for _ in range(rounds + 1):  # the first round warms up
                for call, taken in zip(calls, times, strict=True):
                    began = time.thread_time()
                    call()
                    taken.append(time.thread_time() - began)
            softmax, *others = (every[1:] for every in times)
            ratios = [statistics.median(map(_ratio, other, softmax)) for other in others]
            kernel = f"{1000 * statistics.median(others[-1]):.2f}"
            rows.append([shape, name, kernel, *(f"{ratio:.1f}" for ratio in ratios)])
    return rows


def _ratio(first: float, second: float) -> float:
    return first / max(second, 1e-9)


def main() -> None:
    """Measure the draws, print the table and write the result file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new file of results")
    parser.add_argument("--vocabulary", type=int, default=152_000, help="number of tokens")
    parser.add_argument("--rounds", type=int, default=31, help="rounds that are timed")
    options = parser.parse_args()
    check_new(options.out)
    rows = measure(options.vocabulary, options.rounds)
    ratios = ["former code, times softmax", "no kernel, times softmax", "kernel, times softmax"]
    columns = ["logits", "request", "kernel, ms", *ratios]
    print(markdown_table(columns, rows))
    write_result(
        options.out,
        title=f"A draw from {options.vocabulary:,} tokens on a CPU",
        columns=columns,
        rows=rows,
        notes=[
            f"One row of logits in float32, normally distributed with a standard deviation of {SPREADS['flat']} (flat) "
            f"or {SPREADS['usual']} (usual). One thread, processor time, the median of {options.rounds} rounds."
        ],
    )


if __name__ == "__main__":
    main()
