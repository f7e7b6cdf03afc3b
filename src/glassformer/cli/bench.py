"""`glassformer bench decode`: measure how fast Glassformer and other libraries generate text on this machine."""

from pathlib import Path
from typing import Literal

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import MAX_BATCH_TOKENS, check_threads

WHAT_IT_DOES = """\
usage: glassformer bench decode [OPTIONS]

bench decode measures how many tokens per second this machine generates with random weights: a translation model of the
paper's base size, greedy, in batches of 32 and 1. HF Transformers, CTranslate2 and llama.cpp take part where they are
installed. It takes some minutes, uses all cores and writes no files without --out.

glassformer bench --help shows its options."""


def bench(
    what: Literal["decode"] = "decode",
    *,
    model: Literal["translation", "gpt2", "llama", "context", "requests"] = "translation",
    batch: tuple[int, ...] = (32, 1),
    beam: tuple[int, ...] = (1,),
    rounds: int = 5,
    threads: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    quantize: Literal["auto", "none", "int8", "int4"] = "auto",
    batch_tokens: int | None = None,
    compile: Literal["auto", "on", "off"] = "auto",
    only: tuple[str, ...] = (),
    out: Path | None = None,
) -> None:
    """Measure the speed of generation on this machine, with random weights that all engines share.

    Glassformer is measured through load and the call that run makes, and once more as the command run itself, in a new
    process whose start counts. HF Transformers, CTranslate2 and llama.cpp (llama-cpp-python) take part where they are
    installed. All engines take turns; the median of the rounds counts. The column "share of the limit" is the shortest
    possible time divided by the measured time. The shortest possible time follows from this machine's measured rates of
    arithmetic and memory traffic.

    Args:
        what: What to measure; decode is the only choice.
        model: translation is the base model of "Attention Is All You Need", gpt2 has 124 million parameters and llama
            135 million. context is a llama of 1.2 billion that reads 32,000 tokens, for a GPU; use it with --batch 1.
            requests compares the batching engine with one batch of `generate`, on gpt2 with inputs of 8 to 96 tokens
            and without other libraries; use it with --batch 64.
        batch: Number of texts to generate at once; several numbers give several tables.
        beam: Beam width; 1 is greedy.
        rounds: How many times each engine is measured.
        threads: Number of CPU threads; 0 lets torch choose.
        device: Device to measure; auto is cuda if there is a GPU.
        dtype: Measure Glassformer in this floating-point type alone. auto is float32 on a CPU, with bfloat16 beside it
            where the CPU multiplies it fast, and bfloat16 on a GPU.
        quantize: Measure Glassformer with 8-bit (int8) or 4-bit (int4) weights alone, or without quantization (none).
            auto measures float and 8-bit weights on a CPU, and nothing quantized on a GPU or with a --dtype.
        batch_tokens: The most tokens of a batch of Glassformer, as in run. If the texts have more tokens, they are
            divided into several batches. (default: as for run; for requests as many as the texts have)
        compile: on also measures steps that torch compiles, those of Glassformer and, on a GPU, of HF Transformers.
            Compiling takes half a minute or more for each shape. auto compiles nothing, as in run.
        only: Measure only the engines whose names contain one of these texts, such as "glassformer" or "HF, bfloat16".
        out: Also write the measurements to this new JSON file, with the command, the machine and the date.
    """
    for name, values in (("batch", batch), ("beam", beam), ("rounds", (rounds,))):
        for value in values:
            if value < 1:
                raise UsageError(f"--{name} {value}: expected at least 1")
    check_threads(threads)
    if batch_tokens is not None and not 1 <= batch_tokens <= MAX_BATCH_TOKENS:
        raise UsageError(f"--batch-tokens {batch_tokens}: expected 1 to {MAX_BATCH_TOKENS:,}")
    import torch

    from glassformer.bench.decode import LoadOptions, limits, measure, table
    from glassformer.bench.result_file import check_new, write_result
    from glassformer.bench.workloads import workloads
    from glassformer.runtime.devices import choose_device

    if out is not None:
        check_new(out)
    if threads:
        torch.set_num_threads(threads)
    chosen = choose_device(device).type
    if quantize not in ("auto", "none") and dtype != "auto":
        raise UsageError(f"--quantize {quantize} with --dtype {dtype}: expected one of them")
    if quantize not in ("auto", "none") and chosen == "cuda":
        raise UsageError(f"--quantize {quantize} on a GPU: expected --device cpu")
    work, found = workloads()[model], limits(chosen)
    print(f"torch {torch.__version__} on {chosen}, {torch.get_num_threads()} threads\n")
    rows: list[list[str | float]] = []
    for width in beam:
        for size in batch:
            contenders = measure(
                work,
                batch=size,
                beam=width,
                rounds=rounds,
                device=chosen,
                compiled=compile == "on",
                only=only,
                options=LoadOptions(dtype, quantize, batch_tokens),
            )
            print(table(work, contenders, found, batch=size, beam=width), end="\n\n", flush=True)
            rows += [[size, width, one.name, one.numbers, *one.seconds] for one in contenders]
    if out is not None:
        columns = ["batch", "beam", "engine", "numbers", *(f"round {number + 1}: seconds" for number in range(rounds))]
        notes = [f"{work.name}: {work.n_read} tokens read and {work.n_written} written per text, random weights."]
        write_result(out, title=f"Decoding speed: {work.name}", columns=columns, rows=rows, notes=notes)
