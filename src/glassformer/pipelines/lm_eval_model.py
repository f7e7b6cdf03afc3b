"""Run the tasks of EleutherAI's `lm-eval` with any decoder that Glassformer loads.

`LmEvalModel` has the three methods that `lm-eval` calls. `lm_eval_class` makes it a subclass of the base class of
`lm-eval`, which is not a dependency:

    evaluator.simple_evaluate(model=lm_eval_class()(load("gpt2")), tasks=["my_task"], ...)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glassformer.decoding.scoring import score_long_texts, score_texts
from glassformer.pipelines.decoder_evaluation import encode_plain, window_of
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.pipeline import READING_BATCH_TOKENS

MAX_NEW_TOKENS = 256
"""Tokens that `generate_until` generates at most, unless a request says otherwise."""


class LmEvalModel:
    """A decoder with the interface of `lm_eval.api.model.LM`. A request's `args` are as in `lm-eval`."""

    def __init__(self, generator: Generator):
        super().__init__()
        self.generator = generator

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return, for each (context, continuation), the log-probability of the continuation after the context.

        The second value says whether greedy search would write the continuation. Of a text that is too long, the end is
        kept.
        """
        rows, lengths = [], []
        for request in requests:
            context, continuation = request.args
            row, n_scored = self._join(context, continuation)
            rows.append(row)
            lengths.append(n_scored)
        found = score_texts(self.generator.model, rows, batch_tokens=self._batch_tokens)
        return [
            (sum(scores[len(scores) - count :]), self._is_greedy(row, count))
            for row, count, scores in zip(rows, lengths, found, strict=True)
        ]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-probability of each whole text, read in windows of the context."""
        context, _ = window_of(self.generator, self.generator.model.config.max_len, None)
        rows = [[*self._start(), *encode_plain(self.generator, request.args[0])] for request in requests]
        model, size = self.generator.model, self._batch_tokens
        return score_long_texts(model, rows, context=context, stride=max(1, context // 2), batch_tokens=size)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text after each context, up to the first of the strings `until` of the request."""
        texts = []
        for request in requests:
            context, options = request.args
            texts.append(self._write(context, options))
        return texts

    @property
    def _batch_tokens(self) -> int:
        return self.generator.batch_tokens or READING_BATCH_TOKENS

    def _start(self) -> list[int]:
        tokenizer = self.generator.tokenizer
        begin = tokenizer.begin if tokenizer.begin is not None else tokenizer.end
        return [] if begin is None else [begin]

    def _join(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Return the ids of both texts as one text, and the number of ids that belong to the continuation.

        Spaces at the end of the context belong to the continuation, as in `lm-eval`.
        """
        kept = context.rstrip(" ")
        continuation = context[len(kept) :] + continuation
        before = encode_plain(self.generator, kept) if kept else []
        whole = encode_plain(self.generator, kept + continuation)
        row = [*self._start(), *whole]
        limit = self.generator.model.config.max_len
        row = row if limit is None else row[-limit:]
        return row, min(max(1, len(whole) - len(before)), len(row) - 1)

    def _is_greedy(self, row: list[int], count: int) -> bool:
        config = replace(
            self.generator.generation,
            max_new_tokens=count,
            do_sample=False,
            num_beams=1,
            eos_token_id=(),
            stop_strings=(),
        )
        (found,) = self.generator.write_tokens([row[: len(row) - count]], config, end=-1)
        return found[0].tokens == row[len(row) - count :]

    def _write(self, context: str, options: Mapping[str, Any]) -> str:
        until = options.get("until", ())
        stops = (until,) if isinstance(until, str) else tuple(until)
        config = replace(
            self.generator.generation,
            max_new_tokens=int(options.get("max_gen_toks", MAX_NEW_TOKENS)),
            do_sample=bool(options.get("do_sample", False)),
            temperature=float(options.get("temperature") or 1.0),
            stop_strings=stops,
        )
        (prompt,) = self.generator.fit_prompts([self.generator.read(context)], config)
        return self.generator.candidates_after([prompt], config)[0][0].text


def lm_eval_class() -> type[LmEvalModel]:
    """Return `LmEvalModel` as a subclass of `lm_eval.api.model.LM`. Raises ImportError without `lm-eval`."""
    from importlib import import_module

    base: Any = import_module("lm_eval.api.model").LM
    return type("GlassformerLM", (LmEvalModel, base), {})
