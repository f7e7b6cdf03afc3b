"""Evaluate a pretrained decoder: perplexity of texts, and multiple choice by log-probability."""

from collections.abc import Sequence

import torch

from glassformer.data.readers.multiple_choice import MultipleChoice
from glassformer.decoding.scoring import score_long_texts, score_texts
from glassformer.metrics.perplexity import score_perplexity
from glassformer.metrics.scores import Scores
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.pipeline import READING_BATCH_TOKENS
from glassformer.text import Tokenizer

USUAL_CONTEXT = 1024
"""The tokens that a window reads, unless the model's limit is lower."""


def window_of(generator: Generator, context: int | None, stride: int | None) -> tuple[int, int]:
    """Return the context and the stride of the sliding windows, with a default for each that is None.

    Raises ValueError if the context exceeds the model's limit, or the stride the context.
    """
    limit = generator.model.config.max_len
    chosen = min(USUAL_CONTEXT, limit or USUAL_CONTEXT) if context is None else context
    if chosen < 1 or (limit is not None and chosen > limit):
        raise ValueError(f"context={chosen}: expected 1 to {limit or 'any number'}, the limit of the model")
    step = max(1, chosen // 2) if stride is None else stride
    if not 1 <= step <= chosen:
        raise ValueError(f"stride={step}: expected 1 to {chosen}, the context")
    return chosen, step


def score_texts_by_perplexity(
    generator: Generator, texts: Sequence[str], *, context: int | None = None, stride: int | None = None
) -> Scores:
    """Return bits per byte, loss (nats per token) and perplexity of texts.

    A window of `context` tokens moves over each text by `stride` tokens, so that each token is predicted once, with at
    least `context - stride` tokens before it where there are as many. A text starts with the token that begins a text,
    or with the one that ends a text; a model without both does not predict the first token.
    """
    context, stride = window_of(generator, context, stride)
    start = _start(generator)
    rows = [[*start, *tokens] for text in texts if (tokens := encode_plain(generator, text))]
    size = generator.batch_tokens or READING_BATCH_TOKENS
    nats = -sum(score_long_texts(generator.model, rows, context=context, stride=stride, batch_tokens=size))
    n_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return score_perplexity(nats, sum(len(row) - 1 for row in rows), n_bytes)


def score_multiple_choice(generator: Generator, questions: Sequence[MultipleChoice]) -> Scores:
    """Return the share of questions, in percent, whose right choice is the most likely one.

    The likelihood of a choice is the sum of the log-probabilities of its tokens after the question.
    `accuracy_per_byte` divides the sum by the length of the choice in bytes, which does not favor short choices. Of a
    question that is too long, the end is kept.
    """
    if not questions:
        raise ValueError("there are no questions to score on: expected at least one")
    rows, lengths = [], []
    for question in questions:
        for choice in question.choices:
            whole, n_choice = _join(generator, question.question, choice)
            rows.append(whole)
            lengths.append(n_choice)
    size = generator.batch_tokens or READING_BATCH_TOKENS
    found = score_texts(generator.model, rows, batch_tokens=size)
    sums = iter([sum(row[len(row) - length :]) for row, length in zip(found, lengths, strict=True)])
    n_right = n_right_per_byte = 0
    for question in questions:
        scores = torch.tensor([next(sums) for _ in question.choices], dtype=torch.float64)
        sizes = torch.tensor([len(choice.encode("utf-8", "replace")) for choice in question.choices])
        n_right += int(scores.argmax()) == question.answer
        n_right_per_byte += int((scores / sizes).argmax()) == question.answer
    return Scores(
        {
            "accuracy": 100 * n_right / len(questions),
            "accuracy_per_byte": 100 * n_right_per_byte / len(questions),
        }
    )


def encode_plain(generator: Generator, text: str) -> list[int]:
    """Return the token ids of a text, without special tokens around it."""
    tokenizer = generator.tokenizer
    return tokenizer.encode(text) if isinstance(tokenizer, Tokenizer) else tokenizer.encode_plain(text)


def _start(generator: Generator) -> list[int]:
    begin = generator.tokenizer.begin if generator.tokenizer.begin is not None else generator.tokenizer.end
    return [] if begin is None else [begin]


def _join(generator: Generator, question: str, choice: str) -> tuple[list[int], int]:
    """Return the token ids of the question and a choice as one text, and how many of them belong to the choice.

    A space is put between the two, unless there is white space already. A token at the
    border that holds parts of both counts to the choice.
    """
    between = "" if not question or question[-1].isspace() or choice[0].isspace() else " "
    whole = encode_plain(generator, question + between + choice)
    alone = encode_plain(generator, question)
    common = next((place for place, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), len(alone))
    n_choice = len(whole) - min(common, len(whole) - 1)
    row = [*_start(generator), *whole]
    limit = generator.model.config.max_len
    if limit is not None:
        row = row[-limit:]
    return row, min(n_choice, len(row) - 1)
