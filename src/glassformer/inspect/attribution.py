"""Attribution: which input tokens an output depends on, by gradients and by attention rollout.

- gradient x input: the gradient of the output's log-probability by each token's embedding, times the embedding.
- integrated gradients (Sundararajan et al. 2017): the gradients on the way from a text of average tokens to this text,
  times the difference of the embeddings. The scores of all tokens add up to the difference of the two outputs.
- attention rollout (Abnar and Zuidema 2020): attention weights multiplied over the layers. It is always positive and
  knows nothing about the output token.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.json_values import numbers
from glassformer.inspect.lens import token_table
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import ModelText, n_weights
from glassformer.inspect.recorder import EMBEDDINGS, patch, record
from glassformer.models import EncoderModel
from glassformer.models.heads import EmbeddingHead, pool
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear

STEPS = 32
"""Points of the path of integrated gradients."""
MOST_WORK = 6e10
"""The most parameters times tokens of one attribution, which is about ten seconds on two cores."""
MOST_OUTPUTS, MOST_PAIRS = 64, 4e6
"""The most outputs that are attributed together, and their number times the square of the text's length.

Each output needs a copy of the text in the batch, and the attention of a copy grows with the square of its length.
"""
NOTES = {
    "gradient x input": "how the log-probability would change if the token's vector were scaled, to first order",
    "integrated gradients": "the token's share of the difference between this text and a text of average tokens",
    "attention rollout": "attention multiplied over the layers; it does not depend on the chosen word",
}


def describe_attribution(
    read: ModelText, objective: Objective, rollout: dict[str, Tensor | None], position: int | None
) -> dict[str, Any] | None:
    """Return the attribution of one output, and by gradient x input that of every output of a short text.

    `position` is the index in the target of the written token that is explained; None is the last one. `rollout` has
    the unpacked maps of the attention rollout: "encoder", "decoder" and "cross".
    """
    places: list[int | None] = [*objective.places] or [None]
    place = _choose(places, position, is_written=read.target is not None)
    model = read.model
    n_tokens = len(read.source.ids) + (0 if read.target is None else len(read.target.ids))
    cost = n_weights(model) * n_tokens
    is_quantized = any(isinstance(one, Int8Linear | TorchInt8Linear | GroupwiseLinear) for one in model.modules())
    methods, per_position = [], []
    if not is_quantized and cost <= MOST_WORK:
        is_short = len(places) <= MOST_OUTPUTS and len(places) * n_tokens**2 <= MOST_PAIRS
        many = places if is_short and cost * len(places) <= MOST_WORK else [place]
        gradients = gradient_scores(read, objective, many)
        methods.append(_method("gradient x input", _row(gradients, many.index(place))))
        if cost * STEPS <= MOST_WORK:
            methods.append(_method("integrated gradients", integrated_scores(read, objective, place)))
        for index, one in enumerate(many):
            per_position.append(
                _of_place(read, objective, one, [_method("gradient x input", _row(gradients, index))], rollout)
            )
    found = _of_place(read, objective, place, methods, rollout)
    if is_quantized:
        found["note"] = "the gradients of quantized weights are not defined: load the model without --quantize"
    elif cost > MOST_WORK:
        found["note"] = "the model or the text is too large for gradients in the time of a page"
    return {**found, "per_position": per_position}


def gradient_scores(read: ModelText, objective: Objective, places: list[int | None]) -> dict[str, Tensor]:
    """Return gradient x input of each output: (N, tokens) for each side, by the name of its embeddings."""
    inputs = _embedded(read)
    gradients = _gradients(read, objective, {name: x.expand(len(places), -1, -1) for name, x in inputs.items()}, places)
    return {name: (gradients[name] * inputs[name]).sum(-1) for name in inputs}


def integrated_scores(
    read: ModelText, objective: Objective, place: int | None, steps: int = STEPS
) -> dict[str, Tensor]:
    """Return integrated gradients of one output, (tokens,) for each side, by the midpoint rule with `steps` points."""
    inputs, start = _embedded(read), baseline(read)
    device = next(iter(inputs.values())).device
    factors = ((torch.arange(steps, device=device) + 0.5) / steps)[:, None, None]
    total = {name: torch.zeros_like(x[0]) for name, x in inputs.items()}
    for part in torch.split(factors, 8):  # eight inputs at a time, to bound the memory
        between = {name: start[name] + (x - start[name]) * part.to(x) for name, x in inputs.items()}
        for name, gradient in _gradients(read, objective, between, [place] * len(part)).items():
            total[name] += gradient.sum(0)
    return {name: (total[name] / steps * (inputs[name] - start[name])[0]).sum(-1) for name in inputs}


def baseline(read: ModelText) -> dict[str, Tensor]:
    """Return the embeddings of a text in which every token has the mean vector of all tokens, at the same positions.

    Zeros would be no text: a norm turns any small multiple of a vector into the same vector.
    """
    handles = []
    for name in EMBEDDINGS:
        if hasattr(read.model, name):
            table = token_table(getattr(read.model, name))
            mean = table.mean(0)
            tokens = getattr(read.model, name).tokens
            handles.append(tokens.register_forward_hook(lambda *call, mean=mean: mean.expand_as(call[-1])))
    try:
        return _embedded(read)
    finally:
        for handle in handles:
            handle.remove()


def _embedded(read: ModelText) -> dict[str, Tensor]:
    """Return the embeddings (1, T, C) of each side, by the name of the module."""
    names = [f"{name}.out" for name in EMBEDDINGS if hasattr(read.model, name)]
    with torch.no_grad(), record(read.model, *names) as recorded:
        read.model(**read.inputs())
    device = next(read.model.parameters()).device
    return {name: recorded[name].to(device) for name in names}


def _gradients(
    read: ModelText, objective: Objective, inputs: dict[str, Tensor], places: list[int | None]
) -> dict[str, Tensor]:
    """Return the gradients of the outputs by the embeddings (N, T, C). Row n is that of `places[n]`."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: x.clone().detach().requires_grad_() for name, x in inputs.items()}
        patches = [patch(read.model, name, x) for name, x in leaves.items()]
        for one in patches:
            one.__enter__()
        try:
            output = _explained_output(read, len(places))
        finally:
            for one in reversed(patches):
                one.__exit__(None, None, None)
        rows = [objective.explained(output[n : n + 1], place)[0] for n, place in enumerate(places)]
        found = torch.autograd.grad(torch.stack(rows).sum(), list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(inputs[name]) if g is None else g for name, g in zip(leaves, found, strict=True)}


def _explained_output(read: ModelText, copies: int) -> Tensor:
    """Return the output of the model; for an embedding head the pooled vector before it is normalized.

    The cosine of a vector with itself is at its maximum, where all gradients are zero.
    """
    head = read.model.head
    if not isinstance(head, EmbeddingHead):
        return read.model(**read.inputs(copies))
    assert isinstance(read.model, EncoderModel)
    pooled = pool(read.model.encode(**read.inputs(copies)), None, head.pooling)
    return pooled if head.transform is None else head.transform(pooled)


def _choose(places: list[int | None], position: int | None, *, is_written: bool) -> int | None:
    """Return the output place that is explained. A written token is predicted one place before it stands."""
    if places == [None]:
        return None
    if position is None:
        return places[-2] if is_written and len(places) > 1 else places[-1]  # the last place predicts END
    place = position - 1 if is_written else position
    if place not in places:
        first, last = (number + (1 if is_written else 0) for number in (places[0] or 0, places[-1] or 0))
        raise ValueError(f"position={position}: expected {first} to {last}")
    return place


def _row(scores: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: values[index] for name, values in scores.items()}


def _method(name: str, scores: dict[str, Tensor]) -> dict[str, Any]:
    sides: dict[str, Any] = {"source": None, "target": None}
    for owner, values in scores.items():
        sides["target" if owner.startswith("target") else "source"] = numbers(values)
    return {"name": name, "scores": sides, "note": NOTES[name]}


def _of_place(
    read: ModelText,
    objective: Objective,
    place: int | None,
    methods: list[dict[str, Any]],
    rollout: dict[str, Tensor | None],
) -> dict[str, Any]:
    """Return the methods for one output, with its token, and the rollout added to them."""
    is_decoder = read.target is not None and read.model.kind == "decoder"
    for method in methods:
        if is_decoder and method["scores"]["target"] is None:  # a decoder has one side, which is called the target
            method["scores"] = {"source": None, "target": method["scores"]["source"]}
    row = 0 if place is None else place
    cross, own = rollout.get("cross"), rollout.get("decoder")
    if read.target is None:
        encoder = rollout["encoder"]
        assert encoder is not None
        rows = encoder.mean(0) if place is None else encoder[row]
        rolled = {"source": numbers(rows), "target": None}
    else:
        rolled = {"source": None if cross is None else numbers(cross[row]), "target": numbers(own[row])}  # type: ignore[index]
    methods = [*methods, {"name": "attention rollout", "scores": rolled, "note": NOTES["attention rollout"]}]
    token = ""
    answer = None if place is None else objective.answer_at(place)
    if read.target is not None and answer is not None:
        token = read.target.tokenizer.tokens([answer])[0]
    elif place is not None:
        token = read.source.tokenizer.tokens([read.source.ids[place]])[0]
    shift = 1 if read.target is not None else 0
    return {
        "target_position": -1 if place is None else place + shift,
        "target_token": token,
        "methods": methods,
    }
