"""`glassformer bench decode`: how fast this machine writes, beside the libraries one could use instead."""

from typing import Literal

from tyro.conf import Positional


def bench(
    what: Positional[Literal["decode"]] = "decode",
    *,
    model: Literal["translation", "gpt2", "llama"] = "translation",
    batch: tuple[int, ...] = (32, 1),
    beam: tuple[int, ...] = (1,),
    rounds: int = 5,
    threads: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    compiled: bool = True,
    only: tuple[str, ...] = (),
) -> None:
    """Measure writing speed on this machine, with random weights that all contenders share.

    HF Transformers, CTranslate2 and llama.cpp (llama-cpp-python) take part where they are installed. All take turns,
    one run each; the median counts. The share of the limit is the time that the arithmetic or the memory traffic would
    take at the machine's own measured rates, whichever is longer, over the time it took.

    Args:
        what: Writing is all that is measured so far.
        model: A translation model of the paper's base size, a GPT-2 of 124 million parameters, or a Llama of 135.
        batch: How many texts are written at once; several numbers give several tables.
        beam: Width of the beam; 1 is greedy.
        rounds: How often each contender takes its turn.
        threads: CPU threads; 0 is as many as torch chooses.
        device: auto is cuda where there is one.
        compiled: Also compile the step of ours, which takes half a minute to some minutes for each shape.
        only: Parts of the names of who takes part, as "glassformer" or "HF, bfloat16"; nothing is everybody.
    """
    import torch

    from glassformer.base.checks import check_positive
    from glassformer.bench.decode import limits, measure, table
    from glassformer.bench.works import works

    for name, values in (("batch", batch), ("beam", beam), ("rounds", (rounds,))):
        for value in values:
            check_positive(name, value)
    if threads < 0:
        raise ValueError(f"threads={threads}: expected 0 or more")
    if threads:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    work, found = works()[model], limits(device)
    print(f"torch {torch.__version__} on {device}, {torch.get_num_threads()} threads\n")
    for width in beam:
        for size in batch:
            contenders = measure(
                work, batch=size, beam=width, rounds=rounds, device=device, compiled=compiled, only=only
            )
            print(table(work, contenders, found, batch=size, beam=width), end="\n\n", flush=True)
