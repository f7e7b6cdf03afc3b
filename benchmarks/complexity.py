"""Time one layer of self-attention, of a recurrent network and of a convolution at several lengths.

python benchmarks/complexity.py            # measure, write benchmarks/results/complexity.json and the page
python benchmarks/complexity.py --page     # write the table of docs/complexity.md from the result file only
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "complexity.json"
PAGE = ROOT / "docs" / "complexity.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
LENGTHS, WIDTH, KERNEL, ROUNDS = (64, 128, 256, 512, 1024, 2048), 256, 3, 7


def measure() -> dict[str, Any]:
    """Milliseconds of each layer at each length: the median of the rounds, in which the layers take turns."""
    import torch

    from glassformer.nn.attend import attend

    torch.manual_seed(0)
    torch.set_num_threads(1)
    recurrent = torch.nn.RNN(WIDTH, WIDTH, batch_first=True)
    convolution = torch.nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)
    rows = []
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
        rows.append({"length": length, **{name: statistics.median(all_[1:]) for name, all_ in times.items()}})
    return {
        "command": "python benchmarks/complexity.py",
        "machine": f"{platform.machine()}, one thread, torch {torch.__version__}, float32",
        "date": date.today().isoformat(),
        "width": WIDTH,
        "kernel": KERNEL,
        "rounds": ROUNDS,
        "milliseconds": rows,
    }


def table(results: dict[str, Any]) -> str:
    """The Markdown table of a result file."""
    head = "| length n | self-attention, ms | recurrent, ms | convolutional, ms |\n|---|---|---|---|\n"
    rows = "".join(
        f"| {row['length']:,} | {row['self_attention']:.2f} | {row['recurrent']:.2f} | {row['convolutional']:.2f} |\n"
        for row in results["milliseconds"]
    )
    first, last = results["milliseconds"][0], results["milliseconds"][-1]
    growth = [last[name] / first[name] for name in ("self_attention", "recurrent", "convolutional")]
    rows += f"| growth over {last['length'] // first['length']} times the length | " + " | ".join(
        f"{factor:.0f} times" for factor in growth
    )
    about = f"Width d = {results['width']}, kernel k = {results['kernel']}, one sentence, forward pass, median of "
    about += f"{results['rounds']} rounds.\nMachine: {results['machine']}. Date: {results['date']}."
    return f"\n{head}{rows} |\n\n{about}\n\n"


def write_page(results: dict[str, Any]) -> str:
    """The page with the table of these results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Measure unless only the page is asked for, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page from the result file")
    if not parser.parse_args().page:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
