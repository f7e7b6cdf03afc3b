"""Warm up the engine of a GPU before the first request.

The first step of each number of rows is recorded as a CUDA graph, and the first use of a kernel compiles or loads it.
Together this takes seconds, for which the first clients would wait.
"""

import time
from collections.abc import Callable, Sequence

from glassformer.decoding import Engine, EngineRequest, GenerationConfig
from glassformer.models import DecoderModel
from glassformer.runtime.pool_runner import GPU_ROWS

NEW_TOKENS = 4
PROMPT_LENGTHS = 23, 32, 33, 47
"""Several lengths, because a kernel may be compiled again where a size is a multiple of 16."""
LONG_PROMPT = 200
"""Long enough that a GPU reuses it for the next request with the same beginning."""
CONFIGS = (
    GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS),
    GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=True, top_p=0.9),
)


def warm_up(engine: Engine, say: Callable[[str], None], *, is_forced: bool = False) -> None:
    """Let the engine of a decoder on a GPU generate in batches of every size, greedy and sampled.

    Args:
        say: Called with a progress message after each size, because all sizes together may take half a minute.
        is_forced: Also warm up on a CPU.
    """
    model = engine.model
    if not isinstance(model, DecoderModel) or not (is_forced or next(model.parameters()).is_cuda):
        return
    begin, sizes = time.monotonic(), batch_sizes(engine.max_rows)
    longest = min(engine.max_tokens // engine.max_rows, model.config.max_len or engine.max_tokens) - NEW_TOKENS
    lengths = [length for length in PROMPT_LENGTHS if length <= longest] or [max(1, longest)]
    for number, n_rows in enumerate(sizes):
        for config in CONFIGS:
            _generate(engine, config, [lengths[row % len(lengths)] for row in range(n_rows)])
        say(f"warming up: batch size {n_rows} ({number + 1} of {len(sizes)}), {time.monotonic() - begin:.1f} s")
    if reading := [(rows, tokens) for rows, tokens in engine.reading_sizes if rows <= engine.max_rows]:
        for n_rows, n_tokens in reading:
            _generate(engine, CONFIGS[0], [max(1, min(n_tokens, longest) - NEW_TOKENS)] * n_rows)
        say(f"warming up: prompts of {len(reading)} sizes, {time.monotonic() - begin:.1f} s")
    for length in (LONG_PROMPT, LONG_PROMPT + 7):  # the second continues the text of the first
        if length <= longest:
            _generate(engine, CONFIGS[0], [length])
    engine.forget_texts()


def batch_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows, largest first, for which a GPU with at most `max_rows` records steps."""
    sizes = {size for size in GPU_ROWS if size < max_rows} | set(range(64, max_rows, 64)) | {max_rows}
    return sorted(sizes, reverse=True)


def _generate(engine: Engine, config: GenerationConfig, lengths: Sequence[int]) -> None:
    """Generate after prompts of these lengths, all in one batch. Raises the error of a request that fails."""
    requests = [EngineRequest([0] * length, config) for length in lengths]
    engine.enqueue(requests)
    engine.run()
    for request in requests:
        if request.error is not None:
            raise request.error
