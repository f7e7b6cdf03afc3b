"""Beam search for a batch of sentences.

Greedy search keeps one partial text (hypothesis) and may miss a likelier one that starts with a less likely token.
Beam search keeps the K best hypotheses of each sentence. A step works like this (`BeamSearch.advance`):

1. The model gives the log-probabilities of every next token of every hypothesis. A continuation's total is its
   hypothesis's log-probability plus its token's.
2. The best 2K continuations are taken. Those that end with END, if they are among the best K, compete for the K places
   of finished texts by score = log-probability / length ** length_penalty, END counting as a token (`_collect`).
3. The best K of the others become the new hypotheses (`_continue`). There are always K, because each hypothesis has
   only one continuation that ends.
4. A sentence is decided, and leaves the batch, when no hypothesis can still beat its worst finished text
   (`are_decided`).

`reference/decoding.py` has the same search for one sentence in plain Python. With groups (diverse beam search,
Vijayakumar et al. 2018) a sentence has several smaller beams, and each avoids the tokens that the ones before it have
just chosen. `recorded_beam.py` runs this search as recorded steps. A coverage penalty needs attention weights:
`beam_steps` captures those of the last layer's cross-attention (`nn/attention_capture.py`), in plain steps.

Ties have one rule in all three. Of continuations with equal totals the one whose hypothesis ranked higher comes first,
then the likelier token, then the lower token id. Of finished texts with equal scores the one that ended earlier comes
first, then the one that ranked higher, then the one of the earlier group. Whether totals are equal depends on rounding:
on another CPU or in another batch they may differ in the last bit.

Shapes: B sentences, G groups, K beams of a group, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import NAN_LOGITS, NEG_INF, History, Rules
from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet, stable_topk
from glassformer.nn import capture_attention
from glassformer.nn.attention_capture import CapturedAttention
from glassformer.runtime.async_readback import AsyncReadback
from glassformer.runtime.step_runner import StepRunner


class Hypothesis(NamedTuple):
    """A finished text, without the prompt and without END, and its score."""

    tokens: list[int]
    score: float


class BeamStep(NamedTuple):
    """One step of a search, for display."""

    sentences: list[int]
    """The sentences that are not decided yet, which are the rows of the tensors below."""
    tokens: Tensor  # (B, K), the token each hypothesis took; they are in no order
    parents: Tensor  # (B, K), the hypothesis of the previous step that it continues
    scores: Tensor  # (B, K), log-probabilities so far; -inf for an empty place


def search_by_beam(
    runner: StepRunner,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> list[list[Hypothesis]]:
    """Return the best `num_return_sequences` texts after each row of `given` (B, T)."""
    steps = beam_steps(runner, given, mask, config, end=end, max_new=max_new)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: list[list[Hypothesis]] = stop.value
            return found


def beam_steps(
    runner: StepRunner,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
    """Run the search one step at a time; the generator returns the finished texts of each sentence.

    The runner has `num_beams` rows for each row of `given`, next to each other. `mask` is False at left padding.
    `max_new` is the limit of new tokens for each sentence.
    """
    limits = torch.tensor(max_new, device=given.device)
    search = BeamSearch(runner, given, mask, config, end, limits, room=max(max_new))
    tokens, tokens_mask = given.repeat_interleave(config.num_beams, 0), mask
    if mask is not None:
        tokens_mask = mask.repeat_interleave(config.num_beams, 0)
    with ExitStack() as stack:
        looked = None
        if config.coverage_penalty:
            looked = stack.enter_context(capture_attention(runner.model, layers=[-1], kinds=["cross_attn"]))
        for n_written in range(max(max_new)):
            scores = runner.step(tokens, tokens_mask)  # (N, V)
            if looked is not None:
                search.add_coverage(looked)
            yield search.advance(scores, n_written)
            if search.may_be_decided() and not search.drop_decided():
                break
            runner.reorder(search.parents, search.memories)
            tokens, tokens_mask = search.latest.view(-1, 1), None
    return search.results(len(given))


def stay_in_place(parents: Tensor) -> Tensor:
    """Return an order (B, K) in which one child of each parent keeps its row, so that fewer cache rows are copied."""
    has_elder = (parents[:, :, None] == parents[:, None]).tril(-1).any(2)
    children = parents.masked_fill(has_elder, parents.shape[1]).argsort(stable=True)  # other children come last
    places = torch.ones_like(parents).scatter(1, parents, 0).argsort(stable=True)  # and so do the rows that are free
    return torch.empty_like(children).scatter(1, places, children)


@dataclass
class BeamSearch:
    """The state of a search: B·G beams of K hypotheses each. The groups of a sentence are next to each other."""

    runner: StepRunner | None
    """The runner whose rows are the hypotheses; None in a recorded search."""
    given: Tensor
    mask: Tensor | None
    config: GenerationConfig
    end: int
    limits: Tensor
    """(B,), the limit of new tokens of each sentence."""
    room: int
    """The size of the token buffers."""
    kernels: KernelSet = PLAIN
    finished: dict[int, list[Hypothesis]] = field(default_factory=dict)
    """The finished texts of decided sentences, best first."""

    def __post_init__(self) -> None:
        if self.runner is not None:
            self.kernels = self.runner.cache.kernels
        device, self.groups = self.given.device, self.config.num_beam_groups
        self.width = self.config.num_beams // self.groups
        beams = len(self.given) * self.groups
        self.sentences = list(range(len(self.given)))
        self.tokens = torch.full((beams, self.width, self.room), self.end, device=device)
        self.alive = torch.full((beams, self.width), NEG_INF, device=device)
        self.alive[:, 0] = 0.0  # all hypotheses start equal, so only the first may be continued
        self.found = self.tokens.clone()
        self.found_scores = torch.full_like(self.alive, NEG_INF)
        self.length = torch.zeros(1, dtype=torch.long, device=device)  # a tensor, so that steps can be recorded
        self.latest = torch.full((beams, self.width), self.end, device=device)  # the newest token of each hypothesis
        self.has_nan = torch.zeros((), dtype=torch.bool, device=device)
        # The runner's row that each hypothesis continues.
        self.parents = torch.arange(beams * self.width, device=device)
        self.by_rank = torch.arange(self.width, device=device).repeat(beams, 1)  # the hypotheses from best to worst
        self.memories: Tensor | None = None  # the memories to keep, where sentences were dropped
        self.coverage: Tensor | None = None  # (B·G·K, S), the attention that each source token has received
        self.rules: Rules | None = None
        self._asked: AsyncReadback | None = None  # whether a sentence was decided at the previous step

    def add_coverage(self, looked: CapturedAttention) -> None:
        """Add the attention of the last layer in this step, averaged over its heads."""
        name = next(iter(looked))
        weights = looked[name].to(self.alive).mean(1)  # (B, queries, S)
        n_beams = self.config.num_beams
        weights = weights.view(len(weights), n_beams, -1, weights.shape[2])[:, :, -1].flatten(0, 1)  # (B·G·K, S)
        self.coverage = weights if self.coverage is None else self.coverage + weights

    def advance(self, scores: Tensor, n_written: int) -> BeamStep:
        """Extend every hypothesis by one token, given the logits (B·G·K, V)."""
        rules = self._rules_for(scores)
        if self.groups == 1 and rules.are_a_bias:
            chosen = self.extend(scores, rules.bias_after(n_written))
        else:
            logs = scores.log_softmax(-1)
            ruled = rules.apply(logs, self._history(n_written)) if rules.are_any else logs
            if self.groups == 1:
                chosen = self._extend_by(*stable_topk(ruled, min(2 * self.width, ruled.shape[1])))
            else:
                chosen = self._continue(*self._by_groups(ruled))
        shape = (len(self.sentences), -1)
        return BeamStep(list(self.sentences), self.latest.view(shape), chosen.view(shape), self.alive.view(shape))

    def extend(self, scores: Tensor, bias: Tensor) -> Tensor:
        """Extend beams without groups under a bias (V,), without waiting for a GPU; return the parents (B, K)."""
        return self._extend_by(*self.kernels.best_tokens(scores, bias, min(2 * self.width, scores.shape[1])))

    def _extend_by(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Extend the hypotheses by the best tokens of each, (B·K, n), which contain the best continuations."""
        shape = *self.alive.shape, -1
        return self._continue(*self._rank(self.alive, logs.view(shape), tokens.view(shape), self.by_rank))

    def _rank(self, alive: Tensor, logs: Tensor, tokens: Tensor, by_rank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rank the continuations of the hypotheses (B, K) by their best tokens (B, K, n).

        Return totals, parents and tokens of the best 2K, best first, (B, 2K) each. Ties follow the rule above.
        """
        totals = alive[:, :, None] + logs
        if not totals.is_cuda:  # the order by rank decides ties
            order = by_rank[:, :, None].expand_as(totals)
            totals, tokens = totals.gather(1, order), tokens.gather(1, order)
        best, place = _highest(totals.flatten(1), 2 * self.width)
        parent = place // totals.shape[2]
        return best, parent if totals.is_cuda else by_rank.gather(1, parent), tokens.flatten(1).gather(1, place)

    def _continue(self, scores: Tensor, parent: Tensor, token: Tensor, wishes: Tensor | None = None) -> Tensor:
        """Collect what ended and make the best K of the other continuations the new hypotheses.

        `scores`, `parent` and `token` are those of the best continuations of each beam, (B·G, 2K). `wishes` ranks them
        where that is not by score, as in diverse beam search.
        """
        # Mask finished sentences that have not been removed from the batch yet.
        scores = scores.masked_fill(self._by_beam(self.are_decided())[:, None], NEG_INF)
        self.has_nan = self.has_nan | scores[:, 0].isnan().any()
        beams = torch.arange(len(parent), device=parent.device)[:, None]
        history = self.tokens[beams, parent]  # whole rows: on a GPU many times faster than `gather`
        history.index_copy_(2, self.length, token[:, :, None])
        self.length = self.length + 1
        self._collect(history, scores, parent, token == self.end)
        # A sentence at its limit is finished, even if it has not been removed yet.
        is_over = (token == self.end) | self._at_limit()[:, None]
        scores = scores.masked_fill(is_over, NEG_INF)
        wanted = scores if wishes is None else wishes.masked_fill(scores == NEG_INF, NEG_INF)
        kept = _highest(wanted, self.width)[1]
        self.alive = scores.gather(1, kept)
        own_parent = parent.gather(1, kept)
        if not parent.is_cuda:  # a GPU moves all rows at once anyway
            order = stay_in_place(own_parent)
            self.by_rank = order.argsort()
            self.alive, kept, own_parent = (x.gather(1, order) for x in (self.alive, kept, own_parent))
        self.tokens = history[beams, kept]
        self.parents = (own_parent + beams * self.width).view(-1)
        self.latest = token.gather(1, kept)
        if self.coverage is not None:
            self.coverage = self.coverage[self.parents]
        return own_parent

    def _rules_for(self, scores: Tensor) -> Rules:
        if self.rules is None or len(self.rules.requests) != len(scores):
            requests = [self.config] * len(scores)
            self.rules = Rules(requests, end=self.end, vocab_size=scores.shape[1], device=scores.device)
        return self.rules

    def _history(self, n_written: int) -> History:
        """Return the previous tokens, or only their number where no rule reads them."""
        copies = self.groups * self.width
        rows = len(self.given) * copies
        counts = [n_written] * rows
        if self.rules is None or not self.rules.read_tokens:
            nothing = self.given.new_empty(rows, 0)
            return History(nothing, nothing.bool(), counts)
        given = self.given.repeat_interleave(copies, 0)
        written = self.tokens[:, :, :n_written].reshape(rows, -1)
        real = torch.ones_like(given, dtype=torch.bool)
        if self.mask is not None:
            real = self.mask.repeat_interleave(copies, 0)
        real = torch.cat((real, torch.ones_like(written, dtype=torch.bool)), 1)
        return History(torch.cat((given, written), 1), real, counts)

    def _by_groups(self, ruled: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rank the continuations group by group (diverse beam search); return the arguments of `_continue`.

        `ruled` (B·G·K, V) are log-probabilities after the rules. A token costs `diversity_penalty` for
        each time that an earlier group has chosen it in this step.
        """
        vocab_size = ruled.shape[1]
        logs = ruled.view(-1, self.groups, self.width, vocab_size)  # (B, G, K, V)
        alive, by_rank = (x.view(-1, self.groups, self.width) for x in (self.alive, self.by_rank))
        taken = torch.zeros(len(logs), vocab_size, device=logs.device)
        found = []
        for group in range(self.groups):
            penalized = logs[:, group] - self.config.diversity_penalty * taken[:, None]
            values, tokens = stable_topk(penalized.flatten(0, 1), min(2 * self.width, vocab_size))
            shape, own_alive = (len(logs), self.width, -1), alive[:, group]
            wished, parent, token = self._rank(own_alive, values.view(shape), tokens.view(shape), by_rank[:, group])
            # The penalty decides the choice, but is not part of the hypothesis's probability.
            own = logs[:, group].flatten(1).gather(1, parent * vocab_size + token)
            found.append((own_alive.gather(1, parent) + own, parent, token, wished))
            continuing = _highest(wished.masked_fill(token == self.end, NEG_INF), self.width)[1]
            chosen = token.gather(1, continuing)
            taken.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=taken.dtype))
        scores, parents, chosen, wishes = (torch.stack(some, 1).flatten(0, 1) for some in zip(*found, strict=True))
        return scores, parents, chosen, wishes

    def _collect(self, history: Tensor, scores: Tensor, parent: Tensor, is_end: Tensor) -> None:
        """Let the texts that end now compete with the finished ones. At a sentence's limit every hypothesis ends."""
        ends = is_end | self._at_limit()[:, None]
        in_reach = torch.arange(scores.shape[1], device=scores.device) < self.width
        values = scores / self.length.to(scores) ** self.config.length_penalty
        if self.coverage is not None:
            looked = self.coverage.view(len(scores), self.width, -1)
            looked = looked.gather(1, parent[:, :, None].expand(-1, -1, looked.shape[2]))
            values = values + self.config.coverage_penalty * self._covered(looked)
        ended = values.masked_fill(~(ends & in_reach), NEG_INF)
        self.found_scores, place = _highest(torch.cat((self.found_scores, ended), 1), self.width)
        texts = torch.cat((self.found, history), 1)
        self.found = texts[torch.arange(len(place), device=place.device)[:, None], place]

    def _at_limit(self) -> Tensor:
        """Whether the sentence of each beam has reached its limit: (B·G,)."""
        return self._by_beam(self.limits <= self.length)

    def _by_beam(self, values: Tensor) -> Tensor:
        """Repeat a value per sentence for each of its beams: (B,) -> (B·G,)."""
        return values if self.groups == 1 else values.repeat_interleave(self.groups)

    def _covered(self, looked: Tensor) -> Tensor:
        """Σ log min(coverage, 1) over the real source tokens (Wu et al. 2016); 0 if all of them got attention."""
        logs = looked.clamp(1e-9, 1.0).log()
        mask = self.runner.memory_mask if self.runner is not None else None  # (B, S)
        if mask is not None:
            logs = logs * mask.repeat_interleave(self.groups, 0)[:, None]
        return logs.sum(-1)

    def may_be_decided(self) -> bool:
        """Whether a sentence is decided, as far as is known without waiting.

        On a GPU the answer is that of the previous step, because its copy has arrived by now. Going on for one step too
        many is harmless: decided sentences are masked.
        """
        self.memories = None
        readback = AsyncReadback(torch.stack((self.has_nan, self.are_decided().any()))[None])
        runs_ahead = self.runner is not None and self.runner.can_run_ahead
        asked, self._asked = (self._asked, readback) if runs_ahead else (readback, None)
        return self._read(asked)

    def _read(self, asked: AsyncReadback | None) -> bool:
        """Return whether the search of any sentence is complete. Raises FloatingPointError for NaN logits."""
        has_nan, is_any = asked.read()[0] if asked is not None else (False, False)
        if has_nan:
            raise FloatingPointError(NAN_LOGITS)
        return bool(is_any)

    def drop_decided(self) -> bool:
        """Remove the decided sentences from the batch; return whether any sentence is left."""
        decided = self.are_decided()
        self.memories = staying = (~decided).nonzero()[:, 0]
        self._finish(decided.nonzero()[:, 0])
        self.sentences = [self.sentences[place] for place in staying.tolist()]
        if not self.sentences:
            return False
        beams = self._expand(staying, self.groups)
        rows = self._expand(beams, self.width)
        for name in ("tokens", "alive", "found", "found_scores", "latest", "by_rank"):
            setattr(self, name, getattr(self, name)[beams])
        self.parents = self.parents[rows]
        self.given, self.limits = self.given[staying], self.limits[staying]
        if self.mask is not None:
            self.mask = self.mask[staying]
        if self.coverage is not None:
            self.coverage = self.coverage[rows]
        return True

    def _expand(self, index: Tensor, count: int) -> Tensor:
        """Return the indices of the `count` parts of each indexed whole."""
        return (index[:, None] * count + torch.arange(count, device=index.device)).view(-1)

    def are_decided(self) -> Tensor:
        """Whether no hypothesis of a sentence can still become one of its finished texts, in any group: (B,)."""
        worst, penalty = self.found_scores[:, -1], self.config.length_penalty
        if self.config.early_stopping is True:
            closed = worst > NEG_INF
        else:
            # "never" assumes the best case: no further loss, and the best length. False assumes the current length.
            at_limit = self.config.early_stopping == "never" and penalty > 0
            best_length = (self._by_beam(self.limits) if at_limit else self.length).to(worst)
            closed = worst >= self.alive.max(1).values / best_length**penalty
        return (self._at_limit() | closed).view(-1, self.groups).all(1)

    def _finish(self, places: Tensor) -> None:
        """Store the finished texts of these sentences, best first, with one copy from the GPU for all."""
        beams, shape = self._expand(places, self.groups), (len(places), self.groups * self.width)
        scores, order = self.found_scores[beams].view(shape).sort(descending=True, stable=True)
        scores, order = (x[:, : self.config.num_return_sequences] for x in (scores, order))
        texts = self.found[beams].view(*shape, self.room)
        texts = texts[torch.arange(len(places), device=order.device)[:, None], order]
        for place, some, values in zip(places.tolist(), texts.tolist(), scores.tolist(), strict=True):
            self.finished[self.sentences[place]] = [
                Hypothesis(text[: text.index(self.end)] if self.end in text else text, score)
                for text, score in zip(some, values, strict=True)
                if score > NEG_INF
            ]

    def results(self, n_sentences: int) -> list[list[Hypothesis]]:
        """Return the finished texts of every sentence, best first."""
        self._read(self._asked)
        self._finish(torch.arange(len(self.sentences), device=self.found.device))
        return [self.finished[sentence] for sentence in range(n_sentences)]


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest values of each row (N, n) and their indices. Of equal values the first comes first."""
    found = values.sort(descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]
