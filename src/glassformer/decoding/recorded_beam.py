"""Beam search whose steps are recorded: on a GPU a whole step, bookkeeping included, is asked for at once.

It is the search of `beam.py`, whose numbers stay where the model is; here they stay at their places too. No sentence
leaves the batch before the last is decided; those that are add nothing any more.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.decoding.beam import Hypothesis, Search
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import BROKEN, NEVER, Rules
from glassformer.decoding.step_loop import Told
from glassformer.runtime.cuda_graphs import Graph
from glassformer.runtime.recorded import MAX_FED, RecordedWriter, Recording
from glassformer.runtime.step_runner import Writer

STATE = ("tokens", "alive", "found", "found_scores", "length", "latest", "is_broken", "parents")
"""State of a search that a step changes. Except on a GPU a step changes `by_rank` too."""


def can_search_recorded(writer: Writer, config: GenerationConfig) -> bool:
    """Whether `search_recorded` finds what the plain search would, and sooner."""
    if not isinstance(writer, RecordedWriter) or not writer.is_fed:
        return False
    is_plain = config.num_beam_groups == 1 and not config.coverage_penalty
    return is_plain and _rules(writer, config, end=0).are_a_bias


def search_recorded(
    writer: Writer,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> list[list[Hypothesis]]:
    """As `search_by_beam`."""
    assert isinstance(writer, RecordedWriter)
    tokens = given.repeat_interleave(config.num_beams, 0)
    scores = writer.step(tokens, None if mask is None else mask.repeat_interleave(config.num_beams, 0))
    recording, rules = writer.recording, _rules(writer, config, end)
    key = "beam", config.num_beams, config.length_penalty, config.early_stopping, end, scores.dtype
    search = recording.keep(key, lambda: RecordedSearch(recording, config, end, scores.dtype))
    recording.bias.copy_(rules.bias_after(0))
    search.begin(scores, max_new)
    asked, most, told = 1, max(max_new), deque([search.ask()])
    while asked < most and not (len(told) > 1 and _is_over(told.popleft())):
        if asked <= rules.shortest:
            recording.bias.copy_(rules.bias_after(asked))
        until = min(rules.shortest, most) if asked < rules.shortest else most
        steps = min(MAX_FED, until - asked)
        search.play(steps)
        told.append(search.ask())
        asked += steps
    for question in told:
        _is_over(question)
    return search.results(len(given), config)


def _rules(writer: Writer, config: GenerationConfig, end: int) -> Rules:
    return Rules([config], end=end, vocab_size=writer.model.config.vocab_size, device=writer.device)


def _is_over(told: Told) -> bool:
    """Whether every sentence is decided; an error where scores were broken."""
    ((is_broken, is_over),) = told.read()
    if is_broken:
        raise FloatingPointError(BROKEN)
    return bool(is_over)


class RecordedSearch:
    """A search with places of its own, next to a recording: a sentence for each few of its rows, wanted or not."""

    def __init__(self, recording: Recording, config: GenerationConfig, end: int, dtype: torch.dtype):
        rows, capacity, device = recording.shape.rows, recording.shape.capacity, recording.tokens.device
        limits = torch.zeros(rows // config.num_beams, dtype=torch.long, device=device)
        given = torch.zeros(len(limits), 1, dtype=torch.long, device=device)
        self._search = Search(None, given, None, config, end, limits, room=capacity)
        for name in ("alive", "found_scores"):
            setattr(self._search, name, getattr(self._search, name).to(dtype))
        names = STATE if device.type == "cuda" else (*STATE, "by_rank")
        self._places = {name: getattr(self._search, name) for name in names}
        self._cache, self._bias = recording.cache, recording.bias  # not the recording, which holds this
        self._step = recording.record(_Step(recording, self._search, self._places), *self._places.values())

    def begin(self, scores: Tensor, max_new: Sequence[int]) -> None:
        """Anew, from the scores (N, V) of what follows the first tokens."""
        search, places, n = self._search, self._places, len(max_new)
        whole = scores.new_zeros(len(places["parents"]), scores.shape[1])
        whole[: len(scores)] = scores
        for name, place in places.items():  # the last search may have been left half way
            setattr(search, name, place)
        for name, value in (("tokens", search.end), ("found", search.end), ("found_scores", NEVER), ("alive", NEVER)):
            places[name].fill_(value)
        places["alive"][:n, 0] = 0.0  # all beams begin alike: only the first may speak
        search.by_rank.copy_(torch.arange(search.width, device=scores.device))
        for name in ("length", "is_broken", "latest"):
            places[name].zero_()
        # Nobody moves while the step is recorded, which plays it a few times on what is there.
        torch.arange(len(whole), out=places["parents"])
        if isinstance(self._step, Graph) and max(max_new) > 1:
            self._step.prepare()
        search.limits.zero_()[:n] = torch.tensor(max_new, device=scores.device)
        search.extend(whole, self._bias)
        _settle(search, places)

    def play(self, steps: int) -> None:
        """So many steps."""
        self._cache.check_room(steps)
        for _ in range(steps):
            self._step()
            self._cache.count()

    def ask(self) -> Told:
        """Whether scores were broken, and whether all sentences are decided."""
        search = self._search
        return Told(torch.stack((search.is_broken, search.are_decided().all()))[None])

    def results(self, n_sentences: int, config: GenerationConfig) -> list[list[Hypothesis]]:
        """Everything found, best first."""
        search = self._search
        search.finished.clear()
        search.config = config  # how many are wanted is no part of a search
        return search.results(n_sentences)


class _Step:
    """Rows move to where their beams are, take their tokens, and every beam is extended."""

    def __init__(self, recording: Recording, search: Search, places: dict[str, Tensor]):
        self._cache, self._tokens, self._bias = recording.cache, recording.tokens, recording.bias
        self._score = recording.score
        self._search, self._places = search, places

    def __call__(self) -> Tensor:
        """What is recorded."""
        search = self._search
        n = len(search.parents)
        self._cache.reorder_within(search.parents, search.width)
        self._tokens[:n] = search.latest.view(-1, 1)
        search.extend(self._score()[:n], self._bias)
        _settle(search, self._places)
        return search.alive


def _settle(search: Search, places: dict[str, Tensor]) -> None:
    """What a step has made goes to where the next one looks for it."""
    for name, place in places.items():
        place.copy_(getattr(search, name))
        setattr(search, name, place)
