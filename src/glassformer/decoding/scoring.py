"""Score given texts: the log-probability of each token, given the tokens before it (teacher forcing)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.nn.tensor_checks import check_id_list
from glassformer.runtime.batches import read_in_batches
from glassformer.runtime.shared_work import divide_work
from glassformer.runtime.step_runner import inference
from glassformer.text.tokenizer import PAD


def score_pairs(
    model: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    begin: int,
    end: int,
    batch_tokens: int = 4096,
) -> list[list[float]]:
    """Return, for each pair of source and target, the log-probability of every target token and of the token `end`.

    The decoder starts with the token `begin`.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: expected the same number")
    for index, tokens in enumerate(sources):
        check_id_list(f"source {index}", tokens, model.config.source_vocab)
    for index, tokens in enumerate(targets):
        check_id_list(f"target {index}", tokens, model.config.vocab_size)
    check_id_list("begin, end", [begin, end], model.config.vocab_size)
    sizes = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]

    def score(chosen: list[int]) -> list[list[float]]:
        source, source_mask = _pad(model, [list(sources[index]) for index in chosen])
        target, target_mask = _pad(model, [[begin, *targets[index]] for index in chosen])
        wanted, _ = _pad(model, [[*targets[index], end] for index in chosen])
        # The base class's forward: causal, with (batch, length) masks, which the documents' `Transformer` is not.
        logits = EncoderDecoderModel.forward(model, source, target, source_mask, target_mask)
        found = zip(chosen, _gather(logits, wanted), strict=True)
        return [row[: len(targets[index]) + 1].tolist() for index, row in found]

    with inference(model):
        return read_in_batches(model, sizes, score, batch_tokens=batch_tokens, label="scoring texts")


def score_texts(model: DecoderModel, texts: Sequence[Sequence[int]], *, batch_tokens: int = 4096) -> list[list[float]]:
    """Return, for each text, the log-probability of every token after the first."""
    for index, tokens in enumerate(texts):
        if not len(tokens):
            raise ValueError(f"text {index} is empty: expected at least one token")
        check_id_list(f"text {index}", tokens, model.config.vocab_size)

    def score_all(some: Sequence[Sequence[int]]) -> list[list[float]]:
        def score(chosen: list[int]) -> list[list[float]]:
            batch, mask = _pad(model, [list(some[index]) for index in chosen])
            found = _gather(model(batch, mask)[:, :-1], batch[:, 1:])
            return [row[: len(some[index]) - 1].tolist() for index, row in zip(chosen, found, strict=True)]

        with inference(model):
            sizes = [len(tokens) for tokens in some]
            return read_in_batches(model, sizes, score, batch_tokens=batch_tokens, label="scoring texts")

    return divide_work(texts, score_all)


def score_continuations(
    model: DecoderModel, texts: Sequence[Sequence[int]], lengths: Sequence[int], *, batch_tokens: int = 8192
) -> list[tuple[float, bool]]:
    """Return, for each text, the total log-probability of its last tokens, and whether each of them is the most likely.

    `lengths` has the number of these tokens for each text, at least one less than the text has. A text may have one
    token more than the model reads, because its last token is only predicted.
    """
    for index, (tokens, length) in enumerate(zip(texts, lengths, strict=True)):
        if not 0 < length < len(tokens):
            raise ValueError(f"lengths[{index}]={length}: expected 1 to {len(tokens) - 1}, less than the text has")
        check_id_list(f"text {index}", tokens, model.config.vocab_size)

    def score(chosen: list[int]) -> list[tuple[float, bool]]:
        # Padding comes last, where no real token attends to it.
        read, _ = _pad(model, [list(texts[index][:-1]) for index in chosen])
        wanted, _ = _pad(model, [list(texts[index][1:]) for index in chosen])
        logits = model(read)
        log_probs, is_best = _gather(logits, wanted).double(), logits.argmax(-1) == wanted
        found = []
        for row, index in enumerate(chosen):
            end = len(texts[index]) - 1
            part = slice(end - lengths[index], end)
            found.append((log_probs[row, part].sum().item(), bool(is_best[row, part].all())))
        return found

    with inference(model):
        sizes = [len(tokens) - 1 for tokens in texts]
        return read_in_batches(model, sizes, score, batch_tokens=batch_tokens, label="scoring texts")


def score_long_texts(
    model: DecoderModel,
    texts: Sequence[Sequence[int]],
    *,
    context: int,
    stride: int,
    batch_tokens: int = 8192,
) -> list[float]:
    """Return, for each text of any length, the total log-probability of all tokens after the first.

    A window of `context` tokens slides over a text by `stride` and scores the tokens that the previous window has not.
    So each token has at least `context - stride` tokens of context, or all there are. A smaller stride costs more.
    """
    if not 1 <= stride <= context:
        raise ValueError(f"stride={stride}: expected 1 to context={context}")
    for index, tokens in enumerate(texts):
        check_id_list(f"text {index}", tokens, model.config.vocab_size)
    windows = [(index, *window) for index, text in enumerate(texts) for window in _windows(len(text), context, stride)]

    def score_all(some: Sequence[tuple[int, int, int, int]]) -> list[float]:
        def score(chosen: list[int]) -> list[float]:
            places = [some[place] for place in chosen]
            # Padding comes last, where no real token attends to it.
            read, _ = _pad(model, [list(texts[index][begin:end]) for index, begin, end, _ in places])
            wanted, _ = _pad(model, [list(texts[index][begin + 1 : end + 1]) for index, begin, end, _ in places])
            found = zip(places, _gather(model(read), wanted).double().cpu(), strict=True)
            return [row[counted - begin : end - begin].sum().item() for (_, begin, end, counted), row in found]

        with inference(model):
            sizes = [end - begin for _, begin, end, _ in some]
            return read_in_batches(model, sizes, score, batch_tokens=batch_tokens, label="scoring windows of text")

    totals = [0.0] * len(texts)
    for (index, *_), found in zip(windows, divide_work(windows, score_all), strict=True):
        totals[index] += found
    return totals


def _windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, counted) of each window.

    It reads the tokens from `begin` to `end - 1` and scores the successors of those from `counted` on.
    """
    counted = 0  # tokens whose successor has been scored
    while counted < length - 1:
        end = min(max(counted + stride, context), length - 1)
        yield max(end - context, 0), end, counted
        counted = end


def _pad(model: torch.nn.Module, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths[:, None]


def _gather(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the log-probabilities of the wanted tokens: (B, T, V), (B, T) -> (B, T)."""
    chosen = logits.gather(2, wanted[:, :, None])[:, :, 0]
    return (chosen - logits.logsumexp(-1)).float()
