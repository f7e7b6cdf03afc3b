"""Time the int8 products of a Transformer-base for several numbers of rows, beside torch's float32.

    python benchmarks/int8_product.py
    GLASSFORMER_CPU_KERNELS=avx2 python benchmarks/int8_product.py --threads 2

The environment variable names the instructions: amx, vnni, avx2, dotprod or neon. Each weight matrix is one of several
copies that are used in turn, so that weights come from memory, as in a model, and not from the cache. The numbers are
billions of operations per second (a multiplication and an addition count as two), by the median of the rounds.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear, torch_int8_engine

SHAPES = {"attention": (512, 512), "Q, K and V": (512, 1536), "up": (512, 2048), "down": (2048, 512)}
VOCABULARY = {"vocabulary": (512, 32000)}
ROWS = (1, 4, 32, 128)
MODEL_BYTES = 40 << 20
"""Bytes of int8 weights that are multiplied in turn: about those of a decoder of six layers and its vocabulary."""


def measure(layers: dict[str, list[nn.Module]], x: Tensor, rounds: int) -> dict[str, float]:
    """Return the median seconds of one product for each kind of layer. Their rounds alternate."""
    times: dict[str, list[float]] = {name: [] for name in layers}
    with torch.inference_mode():
        for _ in range(rounds + 1):  # the first round warms up
            for name, copies in layers.items():
                began = time.perf_counter()
                for layer in copies:
                    layer(x)
                times[name].append((time.perf_counter() - began) / len(copies))
    return {name: statistics.median(every[1:]) for name, every in times.items()}


def main() -> None:
    """Measure all shapes and print one line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of all products")
    parser.add_argument("--rounds", type=int, default=9, help="rounds, of which the median is printed")
    parser.add_argument("--torch-int8", action="store_true", help="also time the int8 layer of torch, our fallback")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{cpp_kernels().instruction_set()}, {arguments.threads} threads, torch {torch.__version__}; GOP/s")
    print(f"{'layer':<12}{'inputs':>8}{'outputs':>9}{'rows':>6}{'int8':>9}{'float32':>9}{'ratio':>7}", end="")
    print(f"{'torch int8':>12}" if arguments.torch_int8 else "")
    for name, (n_in, n_out) in {**SHAPES, **VOCABULARY}.items():
        linears = [nn.Linear(n_in, n_out) for _ in range(max(1, MODEL_BYTES // (n_in * n_out)))]
        # Quantized weights are a quarter as large, so a quarter of the float32 copies leaves the cache as well.
        layers = {"int8": [Int8Linear(linear) for linear in linears], "float32": linears[: len(linears) // 4 + 1]}
        if arguments.torch_int8 and torch_int8_engine():
            layers["torch int8"] = [TorchInt8Linear(linear) for linear in linears]
        for n_rows in ROWS:
            times = measure(layers, torch.randn(n_rows, n_in), arguments.rounds)
            speed = {kind: 2e-9 * n_rows * n_in * n_out / seconds for kind, seconds in times.items()}
            print(f"{name:<12}{n_in:>8}{n_out:>9}{n_rows:>6}{speed['int8']:>9.1f}{speed['float32']:>9.1f}", end="")
            print(f"{speed['int8'] / speed['float32']:>7.2f}", end="")
            print(f"{speed['torch int8']:>12.1f}" if "torch int8" in speed else "", flush=True)


if __name__ == "__main__":
    main()
