"""Time one text from a GGUF file beside llama.cpp: the first token after a prompt, and each further token.

    pip install llama-cpp-python
    python benchmarks/llama_cpp.py MODEL.gguf --threads 2 --prompt 16 512

Both read the same file and take turns. A round takes the time for one new token and for 25; the difference gives the
time per token.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.decoding import GenerationConfig, generate
from glassformer.pipelines.load import load

COLUMNS = ["prompt", "measured", "glassformer, ms", "llama.cpp, ms", "times as fast"]
NEW_TOKENS = 24
Write = Callable[[list[int], int], object]
"""A function that reads a prompt and writes a number of tokens after it."""


def main() -> None:
    """Measure both programs for each length of the prompt and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="GGUF file of a decoder")
    parser.add_argument("--prompt", type=int, nargs="+", default=[16, 512], help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="time to measure each length for")
    parser.add_argument("--out", type=Path, help="new result file")
    given = parser.parse_args()
    if given.out:
        check_new(given.out)
    torch.set_num_threads(given.threads)
    model: Any = load(given.model, device="cpu").model
    longest = max(given.prompt)
    programs = {"glassformer": ours(model), "llama.cpp": theirs(given.model, longest + NEW_TOKENS + 1, given.threads)}
    rows = []
    for length in given.prompt:
        prompt = [2 + index * 7 % (model.config.vocab_size - 2) for index in range(length)]
        first, each, n_rounds = measure(programs, prompt, given.seconds)
        for name, found in (("first token", first), ("each further token", each)):
            ratio = statistics.median(b / a for a, b in zip(found["glassformer"], found["llama.cpp"], strict=True))
            medians = [f"{statistics.median(found[program]) * 1e3:,.2f}" for program in programs]
            rows.append([f"{length} tokens", f"{name}, {n_rounds} rounds", *medians, f"{ratio:.2f}"])
    print(markdown_table(COLUMNS, rows))
    if given.out:
        notes = [f"{given.model.name}; times are medians, ratios the median over the rounds."]
        write_result(given.out, title="One text beside llama.cpp", columns=COLUMNS, rows=rows, notes=notes)


def ours(model: Any) -> Write:
    """Return a function that writes with Glassformer, by the call that pipelines make."""

    def write(prompt: list[int], count: int) -> object:
        return generate(model, [prompt], GenerationConfig(max_new_tokens=count, min_new_tokens=count), end=0)

    return write


def theirs(path: Path, n_context: int, threads: int) -> Write:
    """Return a function that writes with llama.cpp, taking the best token at each step."""
    import llama_cpp

    sizes = {"n_ctx": n_context, "n_batch": n_context, "n_ubatch": n_context}
    engine: Any = llama_cpp.Llama(str(path), n_threads=threads, n_threads_batch=threads, verbose=False, **sizes)

    def write(prompt: list[int], count: int) -> object:
        engine.reset()
        tokens = prompt
        for _ in range(count):
            engine.eval(tokens)
            scores = llama_cpp.llama_get_logits_ith(engine.ctx, -1)
            tokens = [int(np.ctypeslib.as_array(scores, (engine.n_vocab(),)).argmax())]
        return tokens

    return write


def measure(
    programs: dict[str, Write], prompt: list[int], seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]], int]:
    """Return the seconds until the first token, those per further token, by program and round, and the rounds."""
    first: dict[str, list[float]] = {name: [] for name in programs}
    each: dict[str, list[float]] = {name: [] for name in programs}
    for write in programs.values():
        write(prompt, 3)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not first["glassformer"]:
        for name, write in programs.items():
            began = time.perf_counter()
            write(prompt, 1)
            between = time.perf_counter()
            write(prompt, 1 + NEW_TOKENS)
            first[name].append(between - began)
            each[name].append((time.perf_counter() - between - (between - began)) / NEW_TOKENS)
    return first, each, len(first["glassformer"])


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, which would be imported in place of the package llama_cpp
    main()
