"""Beam search over the cache, for a whole batch at once: keep the best few sentences, and stop when none can come in.

The textbook search, as `reference/decoding.py` writes it for one sentence: scores are log-probability / length **
length_penalty, END counting as a token; an ending counts only among the best `width` continuations. A sentence that is
decided leaves the batch. With groups (diverse beam search, Vijayakumar et al. 2018) the beam of a sentence is several
smaller ones, each of which avoids what the ones before it have just chosen.

Ties have one rule, here, in a recorded search and in `reference/decoding.py`. Of continuations with the same total the
one of the beam that ranked higher a step before comes first; of one beam's, the likelier token; of equally likely
tokens, the lower id. Of sentences with the same score the one that ended earlier comes first, then the one that ranked
higher, then the one of the earlier group. Which totals are the same is a matter of rounding: on another CPU, or in
another batch, two totals that should be equal may differ in their last bit.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import BROKEN, NEVER, History, Rules
from glassformer.decoding.step_loop import Told
from glassformer.kernels.choice_kernels import best_few, few_highest
from glassformer.nn import capture_attention
from glassformer.nn.capture import CapturedAttention
from glassformer.runtime.step_runner import Writer


class Hypothesis(NamedTuple):
    """A sentence found, without what it stands after and without END, and its score."""

    tokens: list[int]
    score: float


class BeamStep(NamedTuple):
    """One step of a search, for those who want to see how it went."""

    sentences: list[int]
    """Which sentences were still being searched for: the rows of what follows."""
    tokens: Tensor  # (B, K), the token each beam took; beams are in no order
    parents: Tensor  # (B, K), the beam of the step before that it continues
    scores: Tensor  # (B, K), log-probabilities so far; minus infinity where a beam is empty


def search_by_beam(
    writer: Writer,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> list[list[Hypothesis]]:
    """The best `num_return_sequences` sentences after each row of `given` (B, T): `beam_steps` to its end."""
    steps = beam_steps(writer, given, mask, config, end=end, max_new=max_new)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: list[list[Hypothesis]] = stop.value
            return found


def beam_steps(
    writer: Writer,
    given: Tensor,
    mask: Tensor | None,
    config: GenerationConfig,
    *,
    end: int,
    max_new: Sequence[int],
) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
    """The search one step at a time; its value is what was found.

    The writer has `num_beams` rows for each row of `given`, next to each other. `mask` is False where a row is padded
    on the left. `max_new` is how many tokens may be written after each.
    """
    limits = torch.tensor(max_new, device=given.device)
    search = Search(writer, given, mask, config, end, limits, room=max(max_new))
    tokens, tokens_mask = given.repeat_interleave(config.num_beams, 0), mask
    if mask is not None:
        tokens_mask = mask.repeat_interleave(config.num_beams, 0)
    with ExitStack() as stack:
        looked = None
        if config.coverage_penalty:
            looked = stack.enter_context(capture_attention(writer.model, layers=[-1], kinds=["cross_attn"]))
        for n_written in range(max(max_new)):
            scores = writer.step(tokens, tokens_mask)  # (N, V)
            if looked is not None:
                search.see(looked)
            yield search.advance(scores, n_written)
            if search.may_be_decided() and not search.drop_decided():
                break
            writer.reorder(search.parents, search.memories)
            tokens, tokens_mask = search.latest.view(-1, 1), None
    return search.results(len(given))


def stay_in_place(parents: Tensor) -> Tensor:
    """How to order beams, (B, K), so that one child of each parent stands where the parent (B, K) did: to move what is
    kept of a beam takes time."""
    has_elder = (parents[:, :, None] == parents[:, None]).tril(-1).any(2)
    children = parents.masked_fill(has_elder, parents.shape[1]).argsort(stable=True)  # the others stand last
    places = torch.ones_like(parents).scatter(1, parents, 0).argsort(stable=True)  # as do the places that are free
    return torch.empty_like(children).scatter(1, places, children)


@dataclass
class Search:
    """B·G beams of one width, (B·G, K); a sentence's groups stand next to each other."""

    writer: Writer | None
    """Whose rows are the beams, where it is asked for each step."""
    given: Tensor
    mask: Tensor | None
    config: GenerationConfig
    end: int
    limits: Tensor
    """How many tokens each sentence may have: (B,)."""
    room: int
    """How many there is room for."""
    finished: dict[int, list[Hypothesis]] = field(default_factory=dict)
    """By sentence, once it is decided: what was found, best first."""

    def __post_init__(self) -> None:
        device, self.groups = self.given.device, self.config.num_beam_groups
        self.width = self.config.num_beams // self.groups
        beams = len(self.given) * self.groups
        self.sentences = list(range(len(self.given)))
        self.tokens = torch.full((beams, self.width, self.room), self.end, device=device)
        self.alive = torch.full((beams, self.width), NEVER, device=device)
        self.alive[:, 0] = 0.0  # all beams begin alike: only the first may speak
        self.found = self.tokens.clone()
        self.found_scores = torch.full_like(self.alive, NEVER)
        self.length = torch.zeros(1, dtype=torch.long, device=device)  # where the tokens are: steps can be recorded
        self.latest = torch.full((beams, self.width), self.end, device=device)  # the newest token of each beam
        self.is_broken = torch.zeros((), dtype=torch.bool, device=device)
        self.parents = torch.arange(beams * self.width, device=device)  # of the writer's rows
        self.by_rank = torch.arange(self.width, device=device).repeat(beams, 1)  # beams from the best to the worst
        self.memories: Tensor | None = None  # of the writer, where some are no longer needed
        self.coverage: Tensor | None = None  # (B·G·K, S), how much each source token was looked at
        self.rules: Rules | None = None
        self._asked: Told | None = None  # whether a sentence was decided at the step before

    def see(self, looked: CapturedAttention) -> None:
        """Add up where the last layer looked in this step, in the mean of its heads."""
        name = next(iter(looked))
        weights = looked[name].to(self.alive).mean(1)  # (B, queries, S)
        n_beams = self.config.num_beams
        weights = weights.view(len(weights), n_beams, -1, weights.shape[2])[:, :, -1].flatten(0, 1)  # (B·G·K, S)
        self.coverage = weights if self.coverage is None else self.coverage + weights

    def advance(self, scores: Tensor, n_written: int) -> BeamStep:
        """Take one token in every beam, from the model's scores (B·G·K, V)."""
        rules = self._rules_for(scores)
        if self.groups == 1 and rules.are_a_bias:
            chosen = self.extend(scores, rules.bias_after(n_written))
        else:
            logs = scores.log_softmax(-1)
            ruled = rules.apply(logs, self._history(n_written)) if rules.are_any else logs
            if self.groups == 1:
                chosen = self._extend_by(*few_highest(ruled, min(2 * self.width, ruled.shape[1])))
            else:
                chosen = self._continue(*self._by_groups(ruled))
        shape = (len(self.sentences), -1)
        return BeamStep(list(self.sentences), self.latest.view(shape), chosen.view(shape), self.alive.view(shape))

    def extend(self, scores: Tensor, bias: Tensor) -> Tensor:
        """The same for beams without groups under rules that are a bias (V,); the beam that each one continues, (B, K).
        It waits for no device."""
        return self._extend_by(*best_few(scores, bias, min(2 * self.width, scores.shape[1])))

    def _extend_by(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """The same from the best continuations of each row, (B·K, n), which are found for all rows side by side: the
        best of all are among them."""
        shape = *self.alive.shape, -1
        return self._continue(*self._rank(self.alive, logs.view(shape), tokens.view(shape), self.by_rank))

    def _rank(self, alive: Tensor, logs: Tensor, tokens: Tensor, by_rank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of some beams (B, K) by their best tokens (B, K, n): by how much, of which, by what;
        (B, 2K) each, the best first, and ties by the rule."""
        totals = alive[:, :, None] + logs
        if not totals.is_cuda:  # where beams stand in the order of their ranks
            order = by_rank[:, :, None].expand_as(totals)
            totals, tokens = totals.gather(1, order), tokens.gather(1, order)
        best, place = _highest(totals.flatten(1), 2 * self.width)
        parent = place // totals.shape[2]
        return best, parent if totals.is_cuda else by_rank.gather(1, parent), tokens.flatten(1).gather(1, place)

    def _continue(self, scores: Tensor, parent: Tensor, token: Tensor, wishes: Tensor | None = None) -> Tensor:
        """From the best continuations of each beam, (B·G, 2K): by how much, of which, by what; and how much they are
        wished for, where that is not their score."""
        # Who is decided and still here, because nobody has noticed yet, has nothing more to say.
        scores = scores.masked_fill(self._by_beam(self.are_decided())[:, None], NEVER)
        self.is_broken = self.is_broken | scores[:, 0].isnan().any()
        beams = torch.arange(len(parent), device=parent.device)[:, None]
        history = self.tokens[beams, parent]  # whole rows: on a GPU many times as fast as `gather`
        history.index_copy_(2, self.length, token[:, :, None])
        self.length = self.length + 1
        self._collect(history, scores, parent, token == self.end)
        # At its limit a sentence is over, even if nobody has noticed yet.
        is_over = (token == self.end) | self._at_limit()[:, None]
        scores = scores.masked_fill(is_over, NEVER)
        wanted = scores if wishes is None else wishes.masked_fill(scores == NEVER, NEVER)
        kept = _highest(wanted, self.width)[1]
        self.alive = scores.gather(1, kept)
        own_parent = parent.gather(1, kept)
        if not parent.is_cuda:  # which moves all rows at once
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
        """What stands before the next token, as far as the rules want to know."""
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
        """The best continuations by what the rules made of the scores (B·G·K, V), as `_continue` wants them.

        One group chooses after the other, and pays for every time that an earlier one has just taken the same token.
        """
        vocab_size = ruled.shape[1]
        logs = ruled.view(-1, self.groups, self.width, vocab_size)  # (B, G, K, V)
        alive, by_rank = (x.view(-1, self.groups, self.width) for x in (self.alive, self.by_rank))
        taken = torch.zeros(len(logs), vocab_size, device=logs.device)
        found = []
        for group in range(self.groups):
            shy = logs[:, group] - self.config.diversity_penalty * taken[:, None]
            values, tokens = few_highest(shy.flatten(0, 1), min(2 * self.width, vocab_size))
            shape, own_alive = (len(logs), self.width, -1), alive[:, group]
            wished, parent, token = self._rank(own_alive, values.view(shape), tokens.view(shape), by_rank[:, group])
            # What was paid decides the choice; it is no part of the sentence's own probability.
            own = logs[:, group].flatten(1).gather(1, parent * vocab_size + token)
            found.append((own_alive.gather(1, parent) + own, parent, token, wished))
            continuing = _highest(wished.masked_fill(token == self.end, NEVER), self.width)[1]
            chosen = token.gather(1, continuing)
            taken.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=taken.dtype))
        scores, parents, chosen, wishes = (torch.stack(some, 1).flatten(0, 1) for some in zip(*found, strict=True))
        return scores, parents, chosen, wishes

    def _collect(self, history: Tensor, scores: Tensor, parent: Tensor, is_end: Tensor) -> None:
        """Let what ended now compete with what ended before. At a sentence's limit everything ends."""
        ends = is_end | self._at_limit()[:, None]
        in_reach = torch.arange(scores.shape[1], device=scores.device) < self.width
        values = scores / self.length.to(scores) ** self.config.length_penalty
        if self.coverage is not None:
            looked = self.coverage.view(len(scores), self.width, -1)
            looked = looked.gather(1, parent[:, :, None].expand(-1, -1, looked.shape[2]))
            values = values + self.config.coverage_penalty * self._covered(looked)
        ended = values.masked_fill(~(ends & in_reach), NEVER)
        self.found_scores, place = _highest(torch.cat((self.found_scores, ended), 1), self.width)
        texts = torch.cat((self.found, history), 1)
        self.found = texts[torch.arange(len(place), device=place.device)[:, None], place]

    def _at_limit(self) -> Tensor:
        """Whether the sentence of a beam may not be longer: (B·G,)."""
        return self._by_beam(self.limits <= self.length)

    def _by_beam(self, values: Tensor) -> Tensor:
        """What each sentence has, for each of its beams: (B,) -> (B·G,)."""
        return values if self.groups == 1 else values.repeat_interleave(self.groups)

    def _covered(self, looked: Tensor) -> Tensor:
        """Σ log min(coverage, 1) over the real source tokens: 0 where all were looked at, less where not."""
        logs = looked.clamp(1e-9, 1.0).log()
        mask = self.writer.memory_mask if self.writer is not None else None  # (B, S)
        if mask is not None:
            logs = logs * mask.repeat_interleave(self.groups, 0)[:, None]
        return logs.sum(-1)

    def may_be_decided(self) -> bool:
        """Whether a sentence is decided, as far as is known without waiting.

        A GPU is asked now and answers at the next step, while it is at work already. Nothing is lost by going on, for
        who is decided adds nothing.
        """
        self.memories = None
        told = Told(torch.stack((self.is_broken, self.are_decided().any()))[None])
        runs_ahead = self.writer is not None and self.writer.can_run_ahead
        asked, self._asked = (self._asked, told) if runs_ahead else (told, None)
        return self._hear(asked)

    def _hear(self, asked: Told | None) -> bool:
        """Whether a sentence was decided; an error where scores were broken."""
        is_broken, is_any = asked.read()[0] if asked is not None else (False, False)
        if is_broken:
            raise FloatingPointError(BROKEN)
        return bool(is_any)

    def drop_decided(self) -> bool:
        """Let the sentences leave that no unfinished one can change; whether any are left."""
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
        """The numbers of the parts, `count` to each of the wholes."""
        return (index[:, None] * count + torch.arange(count, device=index.device)).view(-1)

    def are_decided(self) -> Tensor:
        """Whether no unfinished text of a sentence can still come in, in any of its beams: (B,)."""
        worst, penalty = self.found_scores[:, -1], self.config.length_penalty
        if self.config.early_stopping is True:
            closed = worst > NEVER
        else:
            # "never": even if it lost nothing more, at the length that flatters it most. False: at the length it has.
            is_most = self.config.early_stopping == "never" and penalty > 0
            flattering = (self._by_beam(self.limits) if is_most else self.length).to(worst)
            closed = worst >= self.alive.max(1).values / flattering**penalty
        return (self._at_limit() | closed).view(-1, self.groups).all(1)

    def _finish(self, places: Tensor) -> None:
        """Note what was found for these sentences, best first: asked for all at once, for asking a GPU takes time."""
        beams, shape = self._expand(places, self.groups), (len(places), self.groups * self.width)
        scores, order = self.found_scores[beams].view(shape).sort(descending=True, stable=True)
        scores, order = (x[:, : self.config.num_return_sequences] for x in (scores, order))
        texts = self.found[beams].view(*shape, self.room)
        texts = texts[torch.arange(len(places), device=order.device)[:, None], order]
        for place, some, values in zip(places.tolist(), texts.tolist(), scores.tolist(), strict=True):
            self.finished[self.sentences[place]] = [
                Hypothesis(text[: text.index(self.end)] if self.end in text else text, score)
                for text, score in zip(some, values, strict=True)
                if score > NEVER
            ]

    def results(self, n_sentences: int) -> list[list[Hypothesis]]:
        """Everything found, best first."""
        self._hear(self._asked)
        self._finish(torch.arange(len(self.sentences), device=self.found.device))
        return [self.finished[sentence] for sentence in range(n_sentences)]


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row (N, n), or all, and where they stand; of equal ones the first comes first."""
    found = values.sort(descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]
