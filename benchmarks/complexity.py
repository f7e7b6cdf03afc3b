"""Time one self-attention layer, one recurrent layer and one convolutional layer on sequences of several lengths.

    python benchmarks/complexity.py benchmarks/results/complexity.json
    python tools/results_page.py

The first command writes a new result file; the second writes its table into docs/complexity.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from glassformer.bench.result_file import check_new, write_result
from glassformer.nn.attention_backends import attend

LENGTHS, WIDTH, KERNEL, ROUNDS = (64, 128, 256, 512, 1024, 2048), 256, 3, 7


def measure() -> list[list[float]]:
    """Return one row for each sequence length: the length, and the milliseconds of each of the three layers.

    In each round, every layer is timed once. The medians over the rounds are returned.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recurrent = torch.nn.RNN(WIDTH, WIDTH, batch_first=True)
    convolution = torch.nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)
    rows: list[list[float]] = []
    for length in LENGTHS:
        x = torch.randn(1, length, WIDTH)
        heads = x[:, None]  # one head as wide as the model, without projections: the formula counts none
        channels = x.transpose(1, 2)
        layers: dict[str, Callable[[], object]] = {
            "self_attention": lambda heads=heads: attend(heads, heads, heads),  # type: ignore[misc]
            "recurrent": lambda x=x: recurrent(x),  # type: ignore[misc]
            "convolutional": lambda channels=channels: convolution(channels),  # type: ignore[misc]
        }
        times: dict[str, list[float]] = {name: [] for name in layers}
        with torch.inference_mode():
            for _ in range(ROUNDS + 1):  # the first round warms up
                for name, layer in layers.items():
                    began = time.perf_counter()
                    layer()
                    times[name].append((time.perf_counter() - began) * 1000)
        rows.append([length, *(statistics.median(every[1:]) for every in times.values())])
    return rows


def main() -> None:
    """Measure the layers and write the result file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new file of results")
    out = parser.parse_args().out
    check_new(out)
    rows = measure()
    growth = [f"{last / first:.0f} times" for first, last in zip(rows[0][1:], rows[-1][1:], strict=True)]
    shown = [[f"{length:,}", *(f"{each:.2f}" for each in times)] for length, *times in rows]
    shown.append([f"growth over {LENGTHS[-1] // LENGTHS[0]} times the length", *growth])
    write_result(
        out,
        title="One layer at several lengths",
        columns=["length n", "self-attention, ms", "recurrent, ms", "convolutional, ms"],
        rows=shown,
        notes=[
            f"Width d = {WIDTH}, kernel k = {KERNEL}, one sentence, forward pass, float32, one thread, "
            f"the median of {ROUNDS} rounds."
        ],
    )


if __name__ == "__main__":
    main()
