"""The tree of a beam search: every hypothesis that was ranked, its parent, and why it was dropped."""

import math
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.decoding import GenerationConfig
from glassformer.decoding.beam import BeamSearch, beam_steps
from glassformer.decoding.coverage import log_coverage
from glassformer.decoding.open_batch import open_batch
from glassformer.inspect.json_values import number
from glassformer.inspect.pipeline_text import write_tokens
from glassformer.inspect.recorder import RecordedActivations, record
from glassformer.models import EncoderDecoderModel
from glassformer.runtime.step_runner import TextModel, inference

LONGEST_SOURCE = 128
"""The longest source for which each hypothesis has its cross-attention."""


class BeamTrace:
    """The hypotheses of one search, step by step. Each has a number; `parent` is the number of the one it continues."""

    def __init__(self, config: GenerationConfig, end: int):
        self.config, self.end = config, end
        self.steps: list[list[dict[str, Any]]] = []
        self.alive: dict[tuple[int, int], int] = {}
        """The number of the hypothesis in each place of the beam: (group, place)."""
        self.finished: dict[int, float] = {}
        """The scores of the finished hypotheses, by number."""
        self.n_hypotheses = 0

    def score(self, total: float) -> float:
        """Return the score of a hypothesis with this log-probability, in the current step."""
        return total / len(self.steps) ** self.config.length_penalty

    def final(self) -> list[int]:
        """Return the numbers of the finished hypotheses, best first."""
        return sorted(self.finished, key=lambda one: -self.finished[one])


class TracedBeamSearch(BeamSearch):
    """A beam search of one sentence that writes every continuation it ranks to a `BeamTrace`."""

    def __init__(self, *args: Any, trace: BeamTrace, **kwargs: Any):
        self.trace = trace
        super().__init__(*args, **kwargs)

    @override
    def _extend_by(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Extend the hypotheses by plain operations, which can be traced; the kernel does everything in one call."""
        shape = *self.alive.shape, -1
        return self._continue(*self._rank(self.alive, logs.view(shape), tokens.view(shape), self.by_rank))

    @override
    def _continue(self, scores: Tensor, parent: Tensor, token: Tensor, ranking: Tensor | None = None) -> Tensor:
        at_limit = bool((self.limits <= self.length + 1).any())
        bonus = self._coverage_bonus(parent)
        own_parent = super()._continue(scores, parent, token, ranking)
        self._note(scores, parent, token, own_parent, at_limit, bonus)
        return own_parent

    def _coverage_bonus(self, parent: Tensor) -> Tensor:
        """Return the coverage term of the score of each continuation (G, 2K), 0 without a coverage penalty."""
        if self.coverage is None:
            return torch.zeros(parent.shape)
        coverage = self.coverage.view(len(parent), self.width, -1)
        rows = coverage.gather(1, parent[:, :, None].expand(-1, -1, coverage.shape[2]))
        return self.config.coverage_penalty * log_coverage(rows, None)

    def _note(
        self, scores: Tensor, parent: Tensor, token: Tensor, own_parent: Tensor, at_limit: bool, bonus: Tensor
    ) -> None:
        """Add the ranked continuations of one step, best first, with their fate."""
        trace = self.trace
        step: list[dict[str, Any]] = []
        alive: dict[tuple[int, int], int] = {}
        trace.steps.append(step)
        ended: list[dict[str, Any]] = []
        for group in range(len(scores)):  # one row for each group of the only sentence
            kept = {
                (place_before, chosen): place
                for place, (place_before, chosen, total) in enumerate(
                    zip(
                        own_parent[group].tolist(), self.latest[group].tolist(), self.alive[group].tolist(), strict=True
                    )
                )
                if math.isfinite(total)
            }
            rows = zip(scores[group].tolist(), parent[group].tolist(), token[group].tolist(), strict=True)
            for rank, (total, place_before, chosen) in enumerate(rows):
                if not math.isfinite(total):
                    continue
                is_finished = chosen == self.end or at_limit
                found = {
                    "id": trace.n_hypotheses,
                    "parent": trace.alive.get((group, place_before)),
                    "place": place_before + group * self.width,
                    "token_id": chosen,
                    "sum": total,
                    "score": trace.score(total) + float(bonus[group, rank]),
                    "finished": is_finished,
                    "kept": False,
                    "reason": None,
                }
                trace.n_hypotheses += 1
                step.append(found)
                if is_finished and rank < self.width:
                    ended.append(found)
                elif is_finished:
                    found["reason"] = f"it ended, but {rank} continuations of this step are more likely"
                elif (place := kept.get((place_before, chosen))) is not None:
                    found["kept"], alive[group, place] = True, found["id"]
                else:
                    found["reason"] = f"the beam keeps {self.width}, and {self.width} others are more likely"
        trace.alive = alive
        self._note_finished(ended)

    def _note_finished(self, ended: list[dict[str, Any]]) -> None:
        """Decide which of the hypotheses that ended in this step are among the best finished texts."""
        trace, size = self.trace, self.config.num_beams
        for found in ended:
            trace.finished[found["id"]] = found["score"]
            found["kept"] = True
        by_id = {one["id"]: one for step in trace.steps for one in step}
        for loser in trace.final()[size:]:
            del trace.finished[loser]
            by_id[loser]["kept"] = False
            by_id[loser]["reason"] = f"it ended, but {size} finished texts have a better score"


def trace_beam(
    model: TextModel, given: list[int], config: GenerationConfig, *, begin: int | None, end: int, tokenizer: Any
) -> dict[str, Any]:
    """Run a beam search for one input and return its tree as JSON values.

    Each hypothesis has the mean cross-attention of all layers and heads with which its token was chosen. It belongs to
    the hypothesis, not to the place in the beam, which another hypothesis may take in the next step.
    """
    config = replace(config, num_return_sequences=config.num_beams)
    trace = BeamTrace(config, end)
    has_attention = isinstance(model, EncoderDecoderModel) and len(given) <= LONGEST_SOURCE
    with inference(model), ExitStack() as stack:
        # A pattern that records something keeps decoding in plain steps for models without cross-attention too.
        pattern = "decoder.layers.*.cross_attn.weights" if has_attention else "decoder.out"
        recorded = stack.enter_context(record(model, pattern))
        runner, start, mask, max_new = stack.enter_context(open_batch(model, [given], config, begin, config.num_beams))
        make_search = partial(TracedBeamSearch, trace=trace)
        for _ in beam_steps(runner, start, mask, config, end=end, max_new=max_new, make_search=make_search):
            pass
    _explain_survivors(trace)
    attention = _attention_of_steps(recorded) if has_attention else []
    return {
        "width": config.num_beams,
        "length_penalty": config.length_penalty,
        "steps": [
            {"hypotheses": [_described(one, tokenizer, attention[n] if attention else None) for one in step]}
            for n, step in enumerate(trace.steps)
        ],
        "final": trace.final(),
    }


class TracingWriter:
    """Writes texts as `write_tokens` does, and keeps the tree of a beam search, so that it is searched only once."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.tree: dict[str, Any] | None = None
        """The tree of the last text; None if no beam search wrote it."""

    def __call__(
        self, model: Any, given: list[int], config: GenerationConfig, *, begin: int | None, end: int
    ) -> list[int]:
        """Return the tokens that the model writes, without `end`."""
        self.tree = None
        if config.num_beams == 1 or config.max_new_tokens < 1:
            return write_tokens(model, given, config, begin=begin, end=end)
        self.tree = trace_beam(model, given, config, begin=begin, end=end, tokenizer=self.tokenizer)
        return best_text(self.tree, end)


def best_text(tree: dict[str, Any], end: int) -> list[int]:
    """Return the tokens of the best finished text of a tree, without `end`."""
    by_id = {one["id"]: one for step in tree["steps"] for one in step["hypotheses"]}
    tokens: list[int] = []
    place = tree["final"][0] if tree["final"] else None
    while place is not None:
        tokens.insert(0, by_id[place]["token_id"])
        place = by_id[place]["parent"]
    return tokens[:-1] if tokens and tokens[-1] == end else tokens


def _explain_survivors(trace: BeamTrace) -> None:
    """Give the reason why the hypotheses that were alive at the end were not continued."""
    for found in trace.steps[-1] if trace.steps else []:
        if found["kept"] and not found["finished"]:
            found["reason"] = "the search stopped: it could no longer beat the finished texts"


def _attention_of_steps(recorded: RecordedActivations) -> list[Tensor]:
    """Return the attention of each step, averaged over layers and heads: (places or 1, S) for each."""
    steps = zip(*(recorded.steps(name) for name in recorded), strict=True)
    return [torch.stack([weights[:, :, -1].float().mean(1) for weights in layers]).mean(0) for layers in steps]


def _described(found: dict[str, Any], tokenizer: Any, attention: Tensor | None) -> dict[str, Any]:
    place = found.pop("place")
    row = None if attention is None else attention[place if len(attention) > 1 else 0]
    return {
        **found,
        "token": tokenizer.tokens([found["token_id"]])[0],
        "sum": number(found["sum"]),
        "score": number(found["score"]),
        "attention": None if row is None else [round(float(value), 4) for value in row],
    }
