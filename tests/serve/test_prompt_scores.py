import asyncio
from types import SimpleNamespace

import pytest
import torch

from glassformer.decoding.scoring import score_texts
from glassformer.models import preset
from glassformer.serve import prompt_scores
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.prompt_scores import PromptScorer, score_prompt
from glassformer.serve.server_metrics import ServerMetrics
from oracle import random_model

TOKENS = [5, 6, 7, 8, 9, 10, 11, 5]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    monkeypatch.setattr(prompt_scores, "PART", 3)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_a_prompt_read_in_parts_has_the_scores_of_the_whole(name):
    model, n_parts = random_model(preset(name)), 0
    scorer = PromptScorer(model, TOKENS, 2)
    while not scorer.is_done:
        scorer.read_part()
        n_parts += 1
    assert n_parts == 3
    found = scorer.scores
    assert found.tokens == TOKENS
    assert found.log_probs[0] is None
    expected = score_texts(model, [TOKENS])[0]
    torch.testing.assert_close(torch.tensor(found.log_probs[1:]), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        best = model(torch.tensor([TOKENS]))[0, :-1].topk(2).indices.tolist()
    assert [[token for token, _ in top] for top in found.top] == [[], *best]


def test_a_prompt_of_one_token_needs_no_reading():
    scorer = PromptScorer(None, [5], 1)
    assert scorer.is_done
    assert scorer.scores == ([5], [None], [[]])


def test_other_jobs_run_between_the_parts_of_a_prompt_and_other_prompts_after_it(monkeypatch):
    model, order = random_model(preset("tiny-gpt2")), []
    read_part = PromptScorer.read_part

    def note_part(self):
        order.append(len(self._tokens))
        read_part(self)

    monkeypatch.setattr(PromptScorer, "read_part", note_part)
    compute = ComputeThread(ServerMetrics())

    async def run():
        server = SimpleNamespace(compute=compute, scoring=asyncio.Lock())
        prompts = [asyncio.create_task(score_prompt(server, model, tokens, 0)) for tokens in (TOKENS, TOKENS[:5])]
        await asyncio.sleep(0)  # the first part waits for the thread, and so does the other job
        other = compute.answer("other", ["x"], lambda texts: order.append("other") or texts)
        compute.start()
        await asyncio.wrap_future(other)
        return [await prompt for prompt in prompts]

    try:
        scores = asyncio.run(run())
    finally:
        compute.close()
    assert [len(one.tokens) for one in scores] == [8, 5]
    assert order == [8, "other", 8, 8, 5, 5]
