"""Run the tasks of EleutherAI's `lm-eval` with any decoder that Glassformer loads.

`LmEvalModel` has the three methods that `lm-eval` calls. `lm_eval_class` makes it a subclass of the base class of
`lm-eval`, which is not a dependency:

    evaluator.simple_evaluate(model=lm_eval_class()(load("gpt2")), tasks=["my_task"], ...)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glassformer.decoding import GenerationConfig
from glassformer.decoding.scoring import score_continuations, score_long_texts
from glassformer.pipelines.decoder_evaluation import encode_plain, window_of
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.pipeline import READING_BATCH_TOKENS
from glassformer.text import Tokenizer

MAX_NEW_TOKENS = 256
"""Tokens that `generate_until` generates at most, unless a request says otherwise."""


class LmEvalModel:
    """A decoder with the interface of `lm_eval.api.model.LM`. A request's `args` are as in `lm-eval`.

    Texts become tokens as in the class for HF Transformers of `lm-eval`, so that both give the same numbers.
    """

    def __init__(self, generator: Generator):
        super().__init__()
        self.generator = generator

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return, for each (context, continuation), the log-probability of the continuation after the context.

        The second value says whether greedy search would write the continuation. Of a text that is too long, the end is
        kept.
        """
        joined = [self._join(*request.args) for request in requests]
        rows, lengths = [row for row, _ in joined], [length for _, length in joined]
        return score_continuations(self.generator.model, rows, lengths, batch_tokens=self._batch_tokens)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-probability of each whole text after the token that begins a text.

        A text that is longer than the context is read in parts that do not overlap, except that the last part has the
        whole context before it. `eval` reads such a text in overlapping windows, which gives better numbers.
        """
        context, _ = window_of(self.generator, self.generator.model.config.max_len, None)
        rows = [[*self._start(), *encode_plain(self.generator, request.args[0])] for request in requests]
        model, size = self.generator.model, self._batch_tokens
        return score_long_texts(model, rows, context=context, stride=context, batch_tokens=size)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text after each context, up to the first of the strings `until` of the request.

        Of a context that is too long, the end is kept.
        """
        configs = [self._config(request.args[1]) for request in requests]
        texts, waiting = [""] * len(requests), [*range(len(requests))]
        while waiting:
            config = configs[waiting[0]]
            places = [place for place in waiting if configs[place] == config]
            waiting = [place for place in waiting if configs[place] != config]
            prompts = [self._prompt(requests[place].args[0], config.max_new_tokens) for place in places]
            found = self.generator.candidates_after(prompts, config)
            for place, candidates in zip(places, found, strict=True):
                texts[place] = candidates[0].text
        return texts

    @property
    def _batch_tokens(self) -> int:
        return self.generator.batch_tokens or READING_BATCH_TOKENS

    def _start(self) -> list[int]:
        """Return the token before a text without context: the one that the tokenizer names, or else the end token."""
        tokenizer = self.generator.tokenizer
        is_named = isinstance(tokenizer, Tokenizer) or "bos_token" in tokenizer.named_tokens
        begin = tokenizer.begin if is_named else tokenizer.end
        return [] if begin is None else [begin]

    def _join(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Return the ids of both texts as one text, and the number of ids that belong to the continuation.

        White space at the end of the context belongs to the continuation. A text begins with the special tokens that
        the tokenizer puts there; without a context, it begins with the token that begins a text.
        """
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        if not context:
            whole = encode_plain(self.generator, continuation)
            before = self._start()
            before = [] if whole[:1] == before else before
            row, length = [*before, *whole], len(whole) - (not before)
        else:
            row = self.generator.tokenizer.encode(kept + continuation)
            length = len(row) - len(self.generator.tokenizer.encode(kept))
        limit = self.generator.model.config.max_len
        row = row if limit is None else row[-limit - 1 :]
        if not 0 < length < len(row):
            raise ValueError(
                f"the continuation {continuation[:40]!r} after {kept[-40:]!r} has {length} tokens of {len(row)}: "
                "expected at least one, and at least one before it"
            )
        return row, length

    def _prompt(self, context: str, n_new: int) -> list[int]:
        limit = self.generator.model.config.max_len
        prompt = self.generator.read(context)
        return prompt if limit is None else prompt[-max(limit - n_new, 1) :]

    def _config(self, options: Mapping[str, Any]) -> GenerationConfig:
        until = options.get("until") or ()
        return replace(
            self.generator.generation,
            max_new_tokens=int(options.get("max_gen_toks", MAX_NEW_TOKENS)),
            do_sample=bool(options.get("do_sample", False)),
            temperature=float(options.get("temperature") or 1.0),
            num_return_sequences=1,
            stop_strings=(until,) if isinstance(until, str) else tuple(until),
        )


def lm_eval_class() -> type[LmEvalModel]:
    """Return `LmEvalModel` as a subclass of `lm_eval.api.model.LM`. Raises ImportError without `lm-eval`."""
    from importlib import import_module

    base: Any = import_module("lm_eval.api.model").LM
    return type("GlassformerLM", (LmEvalModel, base), {})
