"""Beam search as recorded steps: on a GPU a whole step, bookkeeping included, is one CUDA graph.

It is the search of `beam.py`, with its state in fixed buffers. Sentences stay in the batch until all are decided;
decided ones are masked.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.decoding.beam import BeamSearch, Hypothesis
from glassformer.decoding.bias_buffer import BiasBuffer
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import NAN_LOGITS, Rules
from glassformer.decoding.sampling import NEG_INF
from glassformer.runtime.async_readback import AsyncReadback, upload
from glassformer.runtime.cuda_graphs import CudaGraph
from glassformer.runtime.recorded_steps import MAX_STEPS_AHEAD, RecordedStepRunner, Recording
from glassformer.runtime.step_runner import StepRunner

STATE = ("tokens", "alive", "found", "found_scores", "length", "latest", "has_nan", "parents")
"""The attributes of `BeamSearch` that a step changes. On a CPU it also changes `by_rank`."""


def can_search_recorded(runner: StepRunner, config: GenerationConfig) -> bool:
    """Return whether `search_recorded` can replace `search_by_beam` for this runner and config.

    The runner must be able to chain recorded steps. The config must have no beam groups, no coverage penalty, and only
    rules that add one bias to the logits of all rows (`Rules.are_a_bias`).
    """
    if not isinstance(runner, RecordedStepRunner) or not runner.can_chain_steps:
        return False
    is_plain = config.num_beam_groups == 1 and not config.coverage_penalty and config.forced_token(0) is None
    return is_plain and _rules(runner, config, end=0).are_a_bias


def search_recorded(
    runner: StepRunner,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> list[list[Hypothesis]]:
    """Do the same as `search_by_beam`, with recorded steps. Several are launched before the first result is read."""
    assert isinstance(runner, RecordedStepRunner)
    scores = runner.prefill(given, mask, copies=config.num_beams)
    recording, rules = runner.recording, _rules(runner, config, end)
    key = "beam", config.num_beams, config.length_penalty, config.early_stopping, end, scores.dtype
    search = recording.cached(key, lambda: RecordedSearch(recording, config, end, scores.dtype))
    search.bias.set(rules, 0)
    search.start(scores, max_new)
    launched, most, pending = 1, max(max_new), deque([search.read_state()])
    forced = config.forced_token(most - 1)
    most -= forced is not None  # the last token needs no step of the model
    while launched < most and not (len(pending) > 1 and _is_over(pending.popleft())):
        if launched <= rules.min_new_tokens:
            search.bias.set(rules, launched)
        until = min(rules.min_new_tokens, most) if launched < rules.min_new_tokens else most
        steps = min(MAX_STEPS_AHEAD, until - launched)
        search.run(steps)
        pending.append(search.read_state())
        launched += steps
    if forced is not None:
        search.force(forced)
        pending.append(search.read_state())
    for question in pending:
        _is_over(question)
    return search.results(len(given), config)


def _rules(runner: StepRunner, config: GenerationConfig, end: int) -> Rules:
    return Rules([config], end=end, vocab_size=runner.model.config.vocab_size, device=runner.device)


def _is_over(pending: AsyncReadback) -> bool:
    """Return whether a `read_state` readback says that all sentences are decided; raise if logits were NaN."""
    ((has_nan, is_over),) = pending.read()
    if has_nan:
        raise FloatingPointError(NAN_LOGITS)
    return bool(is_over)


class RecordedSearch:
    """A beam search in fixed buffers, for one recording. A sentence takes `num_beams` batch rows of the recording."""

    def __init__(self, recording: Recording, config: GenerationConfig, end: int, dtype: torch.dtype):
        rows, capacity, device = recording.shape.rows, recording.shape.capacity, recording.tokens.device
        limits = torch.zeros(rows // config.num_beams, dtype=torch.long, device=device)
        given = torch.zeros(len(limits), 1, dtype=torch.long, device=device)
        self._search = BeamSearch(None, given, None, config, end, limits, capacity=capacity, kernels=recording.kernels)
        for name in ("alive", "found_scores"):
            setattr(self._search, name, getattr(self._search, name).to(dtype))
        names = STATE if device.type == "cuda" else (*STATE, "by_rank")
        self._places = {name: getattr(self._search, name) for name in names}
        self._cache = recording.cache  # not the recording, which holds this object
        self.bias = BiasBuffer(recording.vocab_size, device)
        """A bias, added to the log-probabilities of the next token."""
        step = _Step(recording, self._search, self._places, self.bias.numbers)
        self._step = recording.record(step, *self._places.values())

    def start(self, scores: Tensor, max_new: Sequence[int]) -> None:
        """Reset the buffers and make the first step of a new search, from the logits (N, V) after the prompts.

        `max_new` is the limit of new tokens of each sentence.
        """
        search, places, n = self._search, self._places, len(max_new)
        whole = scores.new_zeros(len(places["parents"]), scores.shape[1])
        whole[: len(scores)] = scores
        for name, place in places.items():  # the previous search may have been interrupted
            setattr(search, name, place)
        for name, value in (
            ("tokens", search.end),
            ("found", search.end),
            ("found_scores", NEG_INF),
            ("alive", NEG_INF),
        ):
            places[name].fill_(value)
        places["alive"][:n, 0] = 0.0  # all hypotheses start equal, so only the first may be continued
        search.by_rank.copy_(torch.arange(search.width, device=scores.device))
        for name in ("length", "has_nan", "latest"):
            places[name].zero_()
        # Capturing runs the step a few times, and with the identity no row moves.
        torch.arange(len(whole), out=places["parents"])
        if isinstance(self._step, CudaGraph) and max(max_new) > 1:
            self._step.prepare()
        search.limits.zero_()[:n] = upload(max_new, scores.device)
        search.extend(whole, self.bias.numbers)
        _store_state(search, places)

    def run(self, steps: int) -> None:
        """Launch `steps` recorded steps of the search. On a GPU this does not wait for their results."""
        self._cache.check_room(steps)
        for _ in range(steps):
            self._step()
            self._cache.count()

    def force(self, token: int) -> None:
        """Extend every hypothesis by `token`, with a log-probability of 0."""
        bias, dtype = torch.zeros_like(self.bias.numbers), self._places["alive"].dtype
        scores = torch.full((len(self._places["parents"]), len(bias)), NEG_INF, dtype=dtype, device=bias.device)
        scores[:, token] = 0.0
        self._search.extend(scores, bias)
        _store_state(self._search, self._places)

    def read_state(self) -> AsyncReadback:
        """Return a readback of two flags: whether logits were NaN, and whether all sentences are decided."""
        search = self._search
        return AsyncReadback(torch.stack((search.has_nan, search.are_decided().all()))[None])

    def results(self, n_sentences: int, config: GenerationConfig) -> list[list[Hypothesis]]:
        """Return the best `config.num_return_sequences` finished texts of the first `n_sentences` sentences."""
        search = self._search
        search.finished.clear()
        search.config = config  # only `num_return_sequences` may differ from the recorded one
        return search.results(n_sentences)


class _Step:
    """The step that is recorded: reorder the cache rows, feed the newest tokens, and extend every hypothesis."""

    def __init__(self, recording: Recording, search: BeamSearch, places: dict[str, Tensor], bias: Tensor):
        self._cache, self._tokens, self._bias = recording.cache, recording.tokens, bias
        self._score = recording.score
        self._search, self._places = search, places

    def __call__(self) -> Tensor:
        """Run the step and return the log-probabilities of the hypotheses, (B, K)."""
        search = self._search
        n = len(search.parents)
        self._cache.reorder_within(search.parents, search.width)
        self._tokens[:n] = search.latest.view(-1, 1)
        search.extend(self._score()[:n], self._bias)
        _store_state(search, self._places)
        return search.alive


def _store_state(search: BeamSearch, places: dict[str, Tensor]) -> None:
    """Copy the new state of the search into the fixed buffers `places`, which the next step reads."""
    for name, place in places.items():
        place.copy_(getattr(search, name))
        setattr(search, name, place)
