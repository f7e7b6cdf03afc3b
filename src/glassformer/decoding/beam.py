"""Beam search for a batch of sentences.

Greedy search keeps one partial text (hypothesis) and may miss a likelier one that starts with a less likely token.
Beam search keeps the K best hypotheses of each sentence. A step works like this (`BeamSearch.advance`):

1. Extend: the model gives the log-probability of every next token of every hypothesis. A continuation's total is its
   hypothesis's log-probability plus its token's.
2. Rank: the best 2K continuations of a sentence are taken (`_rank`). Each hypothesis has only one continuation that
   ends with END, so at least K of the 2K do not end.
3. Collect: those that end, if they are among the best K, compete for the K places of finished texts by
   score = log-probability / length ** length_penalty, END counting as a token (`_collect`).
4. Continue: the best K of the others become the new hypotheses (`_continue`).
5. Stop: a sentence is decided, and leaves the batch, when no hypothesis can still beat its worst finished text
   (`are_decided`).

For example, with K = 2 and the tokens a and b:

    start ─┬─ a (0.5) ─┬─ a (0.5)    0.25
           │           ├─ b (0.3)    0.15
           │           └─ END (0.2)  0.10
           ├─ b (0.4) ─── END (0.9)  0.36   the likeliest text
           └─ END (0.1)

Greedy search takes a, because 0.5 > 0.4, and ends with a text of at most 0.25. Beam search keeps a and b, and finds
"b END" with 0.36. The example of `BeamSearch` computes this.

`reference/decoding.py` has the same search for one sentence in plain Python. With groups (`diverse_beam.py`) a sentence
has several smaller beams. `recorded_beam.py` runs this search as recorded steps. The C++ kernel `extend_beams` does
steps 2 to 4 on a CPU. All of these share a tie rule. Of continuations with equal totals, the one whose hypothesis
ranked higher comes first, then the likelier token, then the lower token id. Of finished texts with equal scores the one
that ended earlier comes first, then the one that ranked higher, then the one of the earlier group. Whether totals are
equal depends on rounding: on another CPU or in another batch they may differ in the last bit.

Shapes: B sentences, G groups (1 without diverse beam search), K hypotheses per beam, V vocabulary, L written tokens.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.beam_order import highest_first, indices_in_blocks, stay_in_place
from glassformer.decoding.coverage import attention_of_step, capture_source_attention, log_coverage
from glassformer.decoding.diverse_beam import rank_groups
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import NAN_LOGITS, History, Rules
from glassformer.decoding.sampling import NEG_INF
from glassformer.decoding.step_loop import close_gaps
from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import BeamState, KernelSet
from glassformer.kernels.stable_topk import stable_topk
from glassformer.runtime.async_readback import AsyncReadback
from glassformer.runtime.step_runner import StepRunner


class Hypothesis(NamedTuple):
    """A finished text of a beam search: its tokens, without prompt and END, and the score that ranks finished texts."""

    tokens: list[int]
    score: float


class BeamStep(NamedTuple):
    """What one step chose, for display. A tensor row has the G·K hypotheses of one sentence, group after group."""

    sentences: list[int]
    """Indices of the sentences in the batch; row i of each tensor below belongs to `sentences[i]`."""
    tokens: Tensor  # (B, G·K), the token that each hypothesis took, in no particular order
    parents: Tensor  # (B, G·K), the previous hypothesis that it continues, as an index within its group
    scores: Tensor  # (B, G·K), log-probabilities so far; -inf for an empty place


def search_by_beam(
    runner: StepRunner,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> list[list[Hypothesis]]:
    """Run `beam_steps` to its end; return the best `num_return_sequences` texts of each sentence, best first."""
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
    make_search: "Callable[..., BeamSearch] | None" = None,
) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
    """Run a beam search and yield each step. The generator's return value is the finished texts of each sentence.

    Args:
        runner: Computes the logits of the next tokens and keeps the key-value cache. It has `num_beams` batch rows for
            each sentence, next to each other.
        given: The tokens before the new ones, (B, T): left-padded prompts, or BEGIN for an encoder-decoder.
        mask: False at left padding, (B, T).
        max_new: The limit of new tokens of each sentence. `make_search` is called instead of `BeamSearch`.
    """
    limits = torch.tensor(max_new, device=given.device)
    search = (make_search or BeamSearch)(runner, given, mask, config, end, limits, capacity=max(max_new))
    with capture_source_attention(runner.model, config) as looked:
        scores = runner.prefill(given, mask, copies=config.num_beams)  # (B·G·K, V)
        for n_written in range(max(max_new)):
            if n_written:
                scores = runner.step(search.latest.view(-1, 1))
            if looked is not None:
                search.add_coverage(attention_of_step(looked, config.num_beams, search.alive.dtype))
            yield search.advance(scores, n_written)
            if search.may_be_decided() and not search.drop_decided():
                break
            runner.reorder(search.parents, search.memories)
    return search.results(len(given))


@dataclass
class BeamSearch:
    """The state of a beam search: B·G beams of K hypotheses each. The groups of a sentence are next to each other.

    The example of the module's docstring, with END = 0, a = 1 and b = 2. `advance` takes a row of logits for each
    hypothesis; both are the same before the first token.

    >>> config = GenerationConfig(num_beams=2)
    >>> start, limits = torch.tensor([[1]]), torch.tensor([2])
    >>> search = BeamSearch(None, start, None, config, end=0, limits=limits, capacity=2)
    >>> first = search.advance(torch.tensor([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]]).log(), n_written=0)
    >>> first.tokens.tolist(), [round(p, 2) for p in first.scores.exp()[0].tolist()]
    ([[1, 2]], [0.5, 0.4])
    >>> second = search.advance(torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]).log(), n_written=1)
    >>> [[best]] = search.results(n_sentences=1)  # its score is log(0.36) / 2, because it has 2 tokens with END
    >>> best.tokens, round(math.exp(2 * best.score), 2)
    ([2], 0.36)
    """

    runner: StepRunner | None
    """The runner whose batch rows are the hypotheses; None in a recorded search."""
    given: Tensor
    mask: Tensor | None
    config: GenerationConfig
    end: int
    limits: Tensor
    """(B,), the limit of new tokens of each sentence."""
    capacity: int
    """The size of the token buffers: the most new tokens of a hypothesis."""
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
        """Indices of the sentences that are still in the batch."""
        self.length = torch.zeros(1, dtype=torch.long, device=device)  # a tensor, so that steps can be recorded
        """L, the number of written tokens."""
        self.tokens = torch.full((beams, self.width, self.capacity), self.end, device=device)
        """(B·G, K, capacity), the tokens of each hypothesis."""
        self.alive = torch.full((beams, self.width), NEG_INF, device=device)
        """(B·G, K), the log-probability of each hypothesis; -inf for an empty place."""
        self.alive[:, 0] = 0.0  # all hypotheses start equal, so only the first may be continued
        self.latest = torch.full((beams, self.width), self.end, device=device)
        """(B·G, K), the newest token of each hypothesis."""
        self.parents = torch.arange(beams * self.width, device=device)
        """(B·G·K,), the runner's batch row that each hypothesis continues."""
        self.by_rank = torch.arange(self.width, device=device).repeat(beams, 1)
        """(B·G, K), the indices of the hypotheses of each beam, from best to worst."""
        self.found = self.tokens.clone()
        """(B·G, K, capacity), the best finished texts so far, best first."""
        self.found_scores = torch.full_like(self.alive, NEG_INF)
        """(B·G, K), the scores of the texts in `found`; -inf for an empty place."""
        self.memories: Tensor | None = None  # batch places of the encoder outputs to keep, if any was dropped
        self.coverage: Tensor | None = None  # (B·G·K, S), the attention that each source token has received
        self.has_nan = torch.zeros((), dtype=torch.bool, device=device)
        self.rules: Rules | None = None
        self._asked: AsyncReadback | None = None  # whether a sentence was decided at the previous step

    def add_coverage(self, attention: Tensor) -> None:
        """Add the cross-attention weights of this step, (B·G·K, S), to the sums for the coverage penalty."""
        self.coverage = attention if self.coverage is None else self.coverage + attention

    def advance(self, scores: Tensor, n_written: int) -> BeamStep:
        """Extend every hypothesis by one token, given the logits `scores` (B·G·K, V) after `n_written` new tokens."""
        rules = self._rules_for(scores)
        if self.groups == 1 and rules.are_a_bias and self.config.forced_token(n_written) is None:
            # The usual case: one kernel finds the best tokens.
            chosen = self.extend(scores, rules.bias_after(n_written))
        else:
            logs = scores.log_softmax(-1)
            ruled = rules.apply(logs, self._history(n_written)) if rules.are_any else logs
            if self.groups == 1:
                chosen = self._extend_by(*stable_topk(ruled, min(2 * self.width, ruled.shape[1])))
            else:
                ranked = rank_groups(ruled, self.alive, self.by_rank, self.config, self.end, self._rank)
                chosen = self._continue(*ranked)
        shape = (len(self.sentences), -1)
        return BeamStep(list(self.sentences), self.latest.view(shape), chosen.view(shape), self.alive.view(shape))

    def extend(self, scores: Tensor, bias: Tensor) -> Tensor:
        """Extend beams without groups, with `bias` (V,) added to the log-probabilities; return the parents (B, K)."""
        return self._extend_by(*self.kernels.best_tokens(scores, bias, min(2 * self.width, scores.shape[1])))

    def _extend_by(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Extend the hypotheses, given the n best next tokens of each: their log-probabilities and ids, (B·K, n)."""
        if self.coverage is None and self.kernels.can_extend_beams(logs):
            return self._extend_by_kernel(logs, tokens)
        shape = *self.alive.shape, -1
        return self._continue(*self._rank(self.alive, logs.view(shape), tokens.view(shape), self.by_rank))

    def _extend_by_kernel(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Do the same as `_rank` and `_continue`, in one kernel."""
        is_decided, length = self.are_decided(), int(self.length)
        self.length = self.length + 1
        state = BeamState(
            self.alive, self.by_rank, self.tokens, self.found, self.found_scores, is_decided, self._at_limit(), length
        )
        divisor = float(self.length.to(logs) ** self.config.length_penalty)
        extended = self.kernels.extend_beams(logs, tokens, state, end=self.end, divisor=divisor)
        self.alive, self.latest, parents, self.by_rank, self.found_scores = extended
        self.has_nan = self.has_nan | self.alive[:, 0].isnan().any()
        self.parents = (parents + torch.arange(len(parents))[:, None] * self.width).view(-1)
        return parents

    def _rank(self, alive: Tensor, logs: Tensor, tokens: Tensor, by_rank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return totals, parents and tokens, (B, 2K) each, of the best 2K continuations of one beam per sentence.

        `alive` (B, K) has the log-probabilities of the hypotheses, `by_rank` (B, K) their indices from best to worst;
        `logs` and `tokens` (B, K, n) have the n best next tokens of each. The best continuation comes first.
        """
        totals = alive[:, :, None] + logs
        if not totals.is_cuda:  # the rows are in no order (`stay_in_place`), and the rank decides ties
            order = by_rank[:, :, None].expand_as(totals)
            totals, tokens = totals.gather(1, order), tokens.gather(1, order)
        best, place = highest_first(totals.flatten(1), 2 * self.width)
        parent = place // totals.shape[2]
        return best, parent if totals.is_cuda else by_rank.gather(1, parent), tokens.flatten(1).gather(1, place)

    def _continue(self, scores: Tensor, parent: Tensor, token: Tensor, ranking: Tensor | None = None) -> Tensor:
        """Collect the continuations that ended; make the best K that did not end the new hypotheses.

        `scores`, `parent` and `token` (B·G, 2K) describe the best continuations of each beam. Diverse beam search
        orders them by `ranking` instead of `scores`. Return the parents of the new hypotheses, (B·G, K).
        """
        # Mask finished sentences that have not been removed from the batch yet.
        scores = scores.masked_fill(self._by_beam(self.are_decided())[:, None], NEG_INF)
        self.has_nan = self.has_nan | scores[:, 0].isnan().any()
        beams = torch.arange(len(parent), device=parent.device)[:, None]
        texts = self.tokens[beams, parent]  # (B·G, 2K, capacity); whole rows: on a GPU many times faster than `gather`
        texts.index_copy_(2, self.length, token[:, :, None])
        self.length = self.length + 1
        # At its limit a sentence ends with any token.
        is_ended = (token == self.end) | self._at_limit()[:, None]
        self._collect(texts, scores, parent, is_ended)
        scores = scores.masked_fill(is_ended, NEG_INF)
        ranking = scores if ranking is None else ranking.masked_fill(scores == NEG_INF, NEG_INF)
        kept = highest_first(ranking, self.width)[1]  # (B·G, K)
        self.alive, own_parent = scores.gather(1, kept), parent.gather(1, kept)
        if not parent.is_cuda:  # a GPU moves all rows at once anyway
            order = stay_in_place(own_parent)
            self.by_rank = order.argsort()
            self.alive, kept, own_parent = (x.gather(1, order) for x in (self.alive, kept, own_parent))
        self.tokens = texts[beams, kept]
        self.latest = token.gather(1, kept)
        self.parents = (own_parent + beams * self.width).view(-1)
        if self.coverage is not None:
            self.coverage = self.coverage[self.parents]
        return own_parent

    def _collect(self, texts: Tensor, scores: Tensor, parent: Tensor, is_ended: Tensor) -> None:
        """Update `found` with the continuations that end now and are among the best K of their beam.

        `texts` (B·G, 2K, capacity) and the other arguments (B·G, 2K) describe the best continuations, best first.
        """
        values = scores / self.length.to(scores) ** self.config.length_penalty
        if self.coverage is not None:
            coverage = self.coverage.view(len(scores), self.width, -1)  # (B·G, K, S)
            coverage = coverage.gather(1, parent[:, :, None].expand(-1, -1, coverage.shape[2]))  # (B·G, 2K, S)
            values = values + self.config.coverage_penalty * log_coverage(coverage, self._is_real_source())
        is_among_best = torch.arange(scores.shape[1], device=scores.device) < self.width
        values = values.masked_fill(~(is_ended & is_among_best), NEG_INF)
        # The earlier texts come first, so that they win ties.
        self.found_scores, place = highest_first(torch.cat((self.found_scores, values), 1), self.width)
        beams = torch.arange(len(place), device=place.device)[:, None]
        self.found = torch.cat((self.found, texts), 1)[beams, place]

    def _is_real_source(self) -> Tensor | None:
        """Return a mask (B·G, S) that is False at the padding of each beam's source; None if there is no padding."""
        mask = self.runner.memory_mask if self.runner is not None else None  # (B, S)
        return None if mask is None else mask.repeat_interleave(self.groups, 0)

    def are_decided(self) -> Tensor:
        """Return whether the search of each sentence is over, (B,).

        It is over at the limit of new tokens, or when no hypothesis can beat the worst finished text of its group. A
        hypothesis can only lose probability, but its score is divided by its length ** length_penalty, so that a longer
        text may have a better score. `early_stopping` says which length to assume.
        """
        worst, penalty = self.found_scores[:, -1], self.config.length_penalty  # -inf while a place is empty
        if self.config.early_stopping is True:
            closed = worst > NEG_INF
        else:
            # "never" assumes the best case: no further loss, and the best length. False assumes the current length.
            at_limit = self.config.early_stopping == "never" and penalty > 0
            best_length = (self._by_beam(self.limits) if at_limit else self.length).to(worst)
            closed = worst >= self.alive.max(1).values / best_length**penalty
        return (self._at_limit() | closed).view(-1, self.groups).all(1)

    def _at_limit(self) -> Tensor:
        """Return (B·G,): whether the sentence of each beam has reached its limit of new tokens."""
        return self._by_beam(self.limits <= self.length)

    def _by_beam(self, values: Tensor) -> Tensor:
        """Repeat the value of each sentence for its G beams: (B,) -> (B·G,)."""
        return values if self.groups == 1 else values.repeat_interleave(self.groups)

    def _rules_for(self, scores: Tensor) -> Rules:
        if self.rules is None or len(self.rules.requests) != len(scores):
            requests = [self.config] * len(scores)
            self.rules = Rules(requests, end=self.end, vocab_size=scores.shape[1], device=scores.device)
        return self.rules

    def _history(self, n_written: int) -> History:
        """Return the previous tokens of each hypothesis for the rules, or just `n_written` if no rule reads them."""
        hypotheses = self.tokens[:, :, :n_written].flatten(0, 1)  # (B·G·K, L)
        if self.rules is None or not self.rules.read_tokens:
            return History(hypotheses[:, :0], hypotheses[:, :0].bool(), [n_written] * len(hypotheses))
        return History.of_hypotheses(self.given, self.mask, hypotheses)

    def may_be_decided(self) -> bool:
        """Return whether any sentence is decided, as far as is known without waiting for a GPU.

        With recorded steps on a GPU the answer is about the previous step, whose result has been copied by now. So
        the search may run one step too many, which does not change the texts of decided sentences.
        """
        self.memories = None
        readback = AsyncReadback(torch.stack((self.has_nan, self.are_decided().any()))[None])
        runs_ahead = self.runner is not None and self.runner.can_run_ahead
        asked, self._asked = (self._asked, readback) if runs_ahead else (readback, None)
        return self._read(asked)

    def _read(self, asked: AsyncReadback | None) -> bool:
        """Return whether the values read back, if any, say that a sentence is decided. Raises for NaN logits."""
        has_nan, is_any = asked.read()[0] if asked is not None else (False, False)
        if has_nan:
            raise FloatingPointError(NAN_LOGITS)
        return bool(is_any)

    def drop_decided(self) -> bool:
        """Remove the decided sentences from the batch; return whether any sentence is left."""
        decided = self.are_decided()
        self.memories = staying = torch.tensor(close_gaps((~decided).tolist()), dtype=torch.long, device=decided.device)
        self._finish(decided.nonzero()[:, 0])
        self.sentences = [self.sentences[place] for place in staying.tolist()]
        if not self.sentences:
            return False
        beams = indices_in_blocks(staying, self.groups)
        rows = indices_in_blocks(beams, self.width)
        for name in ("tokens", "alive", "found", "found_scores", "latest", "by_rank"):
            setattr(self, name, getattr(self, name)[beams])
        self.parents = self.parents[rows]
        self.given, self.limits = self.given[staying], self.limits[staying]
        if self.mask is not None:
            self.mask = self.mask[staying]
        if self.coverage is not None:
            self.coverage = self.coverage[rows]
        return True

    def _finish(self, places: Tensor) -> None:
        """Copy the best finished texts of the sentences with these indices in the batch to `finished`, best first."""
        beams, shape = indices_in_blocks(places, self.groups), (len(places), self.groups * self.width)
        scores, order = self.found_scores[beams].view(shape).sort(descending=True, stable=True)
        scores, order = (x[:, : self.config.num_return_sequences] for x in (scores, order))
        texts = self.found[beams].view(*shape, self.capacity).gather(1, order[..., None].expand(-1, -1, self.capacity))
        for place, some, values in zip(places.tolist(), texts.tolist(), scores.tolist(), strict=True):
            self.finished[self.sentences[place]] = [
                Hypothesis(text[: text.index(self.end)] if self.end in text else text, score)
                for text, score in zip(some, values, strict=True)
                if score > NEG_INF
            ]

    def results(self, n_sentences: int) -> list[list[Hypothesis]]:
        """Return the best `num_return_sequences` finished texts of all `n_sentences` sentences, best first."""
        self._read(self._asked)
        self._finish(torch.arange(len(self.sentences), device=self.found.device))
        return [self.finished[sentence] for sentence in range(n_sentences)]
