"""The running batch of the engine: sequences of many requests that take each step together.

Each sequence has a row of the cache pool and its own position, so sequences join and leave without padding or copying.
A step is a forward pass for one token per sequence. On a GPU the next step is launched before the tokens of this one
are read. If a request asks for it, a step verifies several proposed tokens at once (`prompt_lookup.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.prompt_lookup import PromptLookup, ProposalLength, floor_to_power
from glassformer.decoding.step_loop import SequenceState, TokenChooser
from glassformer.runtime.async_readback import upload
from glassformer.runtime.cache_pool import PoolRow
from glassformer.runtime.pool_runner import PoolRunner


@dataclass(eq=False)
class Member:
    """A sequence of the running batch, and its row of the pool."""

    request: EngineRequest
    sequence: SequenceState
    place: PoolRow
    lookup: PromptLookup | None = None
    """Proposes tokens, if the request asks for that."""
    last: int = 0
    """The newest token, the input of the next step."""

    def __post_init__(self) -> None:
        self.proposal_length = ProposalLength(self.request.config.prompt_lookup_num_tokens)

    @property
    def is_over(self) -> bool:
        """Whether the sequence has ended, or its request was canceled or has failed."""
        request = self.request
        return self.sequence.reason is not None or request.is_canceled or request.done.is_set()

    def propose(self) -> list[int]:
        """Return tokens that may come next, at most as many as the request asks for and has left."""
        wanted = 0 if self.lookup is None else self.proposal_length.next()
        count = min(wanted, self.sequence.max_new - len(self.sequence.written) - 1)
        if self.lookup is None or count < 1:
            return []
        found = self.lookup.propose(count)
        return found if len(found) == wanted else found[: floor_to_power(len(found))]

    def note(self, token: int) -> None:
        """Note the token that the sequence has chosen, and pass it on to the callback of the request."""
        self.last = token
        if self.sequence.reason == "end" or self.sequence.error is not None:
            return
        self.place.tokens.append(token)
        if self.lookup is not None:
            self.lookup.add(token)
        if self.request.on_token is None or self.request.done.is_set():
            return
        try:
            self.request.on_token(self.sequence.number, token)
        except Exception as error:  # an error of the callback ends its own request only
            self.request.fail(error)


class _Launched(NamedTuple):
    """A step that was launched, and its members."""

    members: list[Member]
    scores: Tensor | None
    """(N, V), the logits of a step that chooses no tokens."""
    results: Tensor | None = None
    """(2, N), the scores and ids of the tokens that a greedy step has chosen."""
    tokens: Tensor | None = None
    """(N, 1), these tokens."""

    def keep(self, staying: list[int]) -> "_Launched | None":
        """Return the step with some of its members only."""
        if not staying:
            return None
        some = [self.scores, self.results, self.tokens]
        device = next(tensor.device for tensor in some if tensor is not None)
        rows = upload(staying, device)
        return _Launched(
            [self.members[number] for number in staying],
            None if self.scores is None else self.scores[rows],
            None if self.results is None else self.results[:, rows],
            None if self.tokens is None else self.tokens[rows],
        )


class RunningBatch:
    """The sequences that are running, as `members`.

    With `keeps_texts` the rows of ended sequences keep their texts, so that later prompts can reuse them.
    """

    def __init__(self, runner: PoolRunner, *, end: int, keeps_texts: bool):
        self.runner, self.end, self.keeps_texts = runner, end, keeps_texts
        self.members: list[Member] = []
        self._ahead: _Launched | None = None
        """A step that was launched early."""
        self._chooser: tuple[list[Member], TokenChooser] | None = None
        """The members of the step before, and their chooser."""

    def join(self, members: Sequence[Member], scores: Tensor) -> None:
        """Add sequences whose prompts have been read, and choose their first tokens from the logits (N, V)."""
        for member in members:
            member.place.state = "running"
        self.members += members
        self._choose(members, scores)

    def step(self) -> None:
        """Advance the sequences by one token, or by several if proposed tokens are right.

        Sequences that joined after the step was launched wait for the next one.
        """
        if self._ahead is None:
            members = list(self._in_order())
            proposes = self._proposes(members)
            texts = [[member.last, *(member.propose() if proposes else ())] for member in members]
            if any(len(text) > 1 for text in texts):
                self._verify(members, texts)
                return
            launched = self._launch(members, upload(texts, self.runner.pool.device), n_unread=0)
        else:
            launched, self._ahead = self._ahead, None
        members = launched.members
        chooser = self._chooser_for(members)
        if launched.scores is not None:
            chooser.start(launched.scores)
        else:
            assert launched.results is not None
            assert launched.tokens is not None
            chooser.take(launched.results, launched.tokens[:, 0])
        if self._can_run_ahead(members, chooser):
            tokens = chooser.tokens
            if self._in_order() != members:
                numbers = {id(member): number for number, member in enumerate(members)}
                order = [numbers[id(member)] for member in self.members]
                tokens = tokens[upload(order, chooser.device)]
            self._ahead = self._launch(list(self.members), tokens[:, None], n_unread=1)
        self._note(members, chooser.finish())

    def _launch(self, members: list[Member], tokens: Tensor, *, n_unread: int) -> _Launched:
        """Launch a step from `tokens` (N, 1). `n_unread` is the number of earlier tokens that are not in Python yet."""
        bias = self._greedy_bias(members, n_unread)
        if bias is None:
            return _Launched(members, self.runner.step(tokens))
        return _Launched(members, None, *self.runner.greedy_step(tokens, bias))

    def _greedy_bias(self, members: list[Member], n_unread: int) -> Tensor | None:
        """Return the bias (V,) of a step that chooses the tokens itself; None if it cannot.

        It can if steps are recorded on a GPU, all members are greedy, and all have the same bias at their next token.
        """
        if not self.runner.can_run_ahead:
            return None
        chooser = self._chooser_for(members)
        if not chooser.is_greedy:
            return None
        least, counts = chooser.rules.min_new_tokens, [len(member.sequence.written) + n_unread for member in members]
        if min(counts) < least <= max(counts):
            return None
        return chooser.rules.bias_after(counts[0])

    def leave(self) -> None:
        """Remove ended sequences and those of canceled or failed requests, and give back their rows."""
        leaving = [member for member in self.members if member.is_over]
        if not leaving:
            return
        self.members = [member for member in self.members if not member.is_over]
        self._chooser = None
        if self._ahead is not None:
            staying = [number for number, member in enumerate(self._ahead.members) if not member.is_over]
            if len(staying) < len(self._ahead.members):
                self._ahead = self._ahead.keep(staying)
        for member in leaving:
            if not member.request.is_done:
                member.request.settle()
            self._release(member)

    def _proposes(self, members: Sequence[Member]) -> bool:
        """Return whether tokens may be proposed to these members.

        If steps are recorded, only to a single one: the verification for several is not recorded, and takes longer than
        the steps that it saves.
        """
        return len(members) == 1 or not self.runner.is_recorded

    def _can_run_ahead(self, members: list[Member], chooser: TokenChooser) -> bool:
        """Return whether the next step can be launched before the tokens that `chooser` has chosen are read.

        Sequences that end with these tokens then take a step in vain.
        """
        has_lookup = self._proposes(members) and any(member.lookup is not None for member in members)
        needs_tokens = chooser.needs_tokens or has_lookup
        goes_on = any(len(member.sequence.written) + 1 < member.sequence.max_new for member in members)
        return self.runner.can_run_ahead and goes_on and not needs_tokens and len(members) == len(self.members)

    def _verify(self, members: list[Member], texts: list[list[int]]) -> None:
        """Read the last token of each member and the tokens proposed after it, and keep those that the member chooses.

        `texts` are these tokens. Each member chooses at least one token.
        """
        starts = [member.place.length for member in members]
        scores = self.runner.verify([member.place for member in members], texts)  # (N, T, V)
        for member, start in zip(members, starts, strict=True):
            member.place.tokens = member.place.tokens[: start + 1]  # what was proposed is not chosen yet
        choosing, position = list(range(len(members))), 0
        while choosing:
            now = [members[number] for number in choosing]
            for number in choosing:
                members[number].place.length = starts[number] + position + 1
            chosen = self._choose(now, scores[upload(choosing, scores.device), position])
            position += 1
            choosing = [
                number
                for number, token in zip(choosing, chosen, strict=True)
                if not members[number].is_over and texts[number][position : position + 1] == [token]
            ]
        for member, start, text in zip(members, starts, texts, strict=True):
            if len(text) > 1 and not member.is_over:
                member.proposal_length.note(proposed=len(text) - 1, accepted=member.place.length - start - 1)

    def _choose(self, members: Sequence[Member], scores: Tensor) -> list[int]:
        """Choose a token for each of some members from the logits (N, V), and return the tokens."""
        chooser = self._new_chooser(members)
        chooser.start(scores)
        chosen = chooser.finish()
        self._note(members, chosen)
        return chosen

    def _note(self, members: Sequence[Member], tokens: Sequence[int]) -> None:
        for member, token in zip(members, tokens, strict=True):
            member.note(token)
        self.leave()

    def _in_order(self) -> list[Member]:
        """Move the rows of the members to the beginning of the pool, and return the members in the order of rows."""
        if any(member.place.index != number for number, member in enumerate(self.members)):
            self.runner.pool.compact()
            self.members.sort(key=lambda member: member.place.index)
        return self.members

    def _release(self, member: Member) -> None:
        """Give back the row of a member, which keeps its text if that may be reused."""
        pool = self.runner.pool
        if member.sequence.error is not None:
            pool.clear(member.place)
        if self.keeps_texts and member.sequence.error is None:
            pool.keep(member.place)
        else:
            pool.free(member.place)

    def _chooser_for(self, members: list[Member]) -> TokenChooser:
        """Return the chooser of these members, the same as for the step before if they are the same."""
        if self._chooser is None or self._chooser[0] != members:
            self._chooser = list(members), self._new_chooser(members)
        return self._chooser[1]

    def _new_chooser(self, members: Sequence[Member]) -> TokenChooser:
        sequences, pool = [member.sequence for member in members], self.runner.pool
        vocab_size = self.runner.model.config.vocab_size
        return TokenChooser(sequences, end=self.end, vocab_size=vocab_size, device=pool.device, kernels=pool.kernels)
