"""The functions that recordings record."""

import torch

from glassformer.runtime.step_functions import Steps
from recording import DECODERS, make


def test_narrow_logits_are_those_of_the_step_before_they_become_float32():
    model = make(DECODERS["learned positions"]).bfloat16()
    steps, tokens = Steps(model, compile=False), torch.tensor([[5], [6]])
    with torch.inference_mode():
        wide, narrow = (
            make_scorer(tokens, model.new_cache(2, 8), None, None)()
            for make_scorer in (steps.scorer, steps.narrow_scorer)
        )
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(wide, narrow.float())


def test_a_reader_reads_whole_prompts():
    model = make(DECODERS["learned positions"])
    prompts, cache = torch.tensor([[5, 6, 7], [8, 9, 4]]), model.new_cache(2, 8)
    with torch.inference_mode():
        found = Steps(model, compile=False).reader(prompts, cache, None)()
        torch.testing.assert_close(found, model(prompts)[:, -1])
    assert cache.length == 3
