"""Exact rows of attention maps that an explanation has reduced because its text is long."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.base.checks import shown
from glassformer.base.names import suggestion
from glassformer.inspect.ablation import ablate
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.json_values import pack
from glassformer.inspect.pipeline_text import ModelText, read_text
from glassformer.inspect.recorder import activation_names, record
from glassformer.inspect.stack_numbers import record_text, roll_out
from glassformer.pipelines.pipeline import Pipeline, check_text

MOST_KEPT = 32_000_000
"""The most weights of a map that is kept for the next row: 128 MB."""


class AttentionRows:
    """Computes rows of attention weights for a text. It keeps the last map, so that other rows of it take no time."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._map: Tensor | None = None

    def row(
        self,
        pipe: Pipeline,
        text: str,
        attention: str,
        query: int,
        *,
        target_ids: Sequence[int] | None = None,
        without: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the weights with which one token attends to every token, for all heads.

        Args:
            pipe: The model with its tokenizers.
            text: The text that the model reads.
            attention: Name of an attention module, such as "decoder.layers.1.self_attn"; or "rollout.encoder",
                "rollout.decoder" or "rollout.cross" for the rollout over all layers, which counts as one head.
            query: Index of the token that attends.
            target_ids: All tokens that the decoder reads, as `text.target.ids` of an explanation; None for an encoder.
            without: Parts that are switched off, as `ablate` of `ExplainOptions`.
        """
        model: Any = pipe.model  # type: ignore[attr-defined]
        known = _attention_names(model)
        if attention not in known:
            raise ValueError(f"attention={shown(attention)}: {suggestion(attention, known)}")
        read = _read(pipe, check_text(text), target_ids)
        is_source = attention.startswith("encoder") or attention == "rollout.encoder"
        side = read.source if is_source else read.target
        assert side is not None
        if not 0 <= query < len(side.ids):
            raise ValueError(f"query={query}: expected 0 to {len(side.ids) - 1}, a token of the text")
        key = (weakref.ref(pipe), text, attention, tuple(target_ids or ()), tuple(without))
        if self._map is None or self._key != key:
            self._key, self._map = key, _map(model, read, attention, without)
        weights = self._map[:, query]  # (H, S)
        if self._map.numel() > MOST_KEPT:
            self._map = None
        return {"attention": attention, "query": query, "weights": pack(weights)}


def _attention_names(model: Any) -> list[str]:
    """Return the names of a model's attention modules and rollouts."""
    names = [name.removesuffix(".weights") for name in activation_names(model) if name.endswith("_attn.weights")]
    parts = [name.partition(".")[0] for name in names] + ["cross" for name in names if name.endswith("cross_attn")]
    return [*names, *(f"rollout.{part}" for part in dict.fromkeys(parts))]


def _read(pipe: Pipeline, text: str, target_ids: Sequence[int] | None) -> ModelText:
    """Return the tokens of the text, with those that a decoder reads in place of a text that it writes."""
    read = read_text(pipe, text, ExplainOptions(target=""))
    if read.target is None:
        if target_ids is not None:
            raise ValueError("target_ids were given for a model without a decoder: leave them out")
        return read
    if target_ids is None:
        raise ValueError("target_ids is missing: expected the tokens that the decoder reads")
    config = read.model.config
    for index in target_ids:
        if not 0 <= index < config.vocab_size:
            raise ValueError(f"target_ids holds {index}: expected ids from 0 to {config.vocab_size - 1}")
    if not target_ids or (config.max_len is not None and len(target_ids) > config.max_len):
        most = "any number" if config.max_len is None else f"1 to {config.max_len}"
        raise ValueError(f"target_ids holds {len(target_ids)} tokens: expected {most}")
    ids = list(target_ids)
    return replace(read, target=replace(read.target, ids=ids, spans=[None] * len(ids)))


def _map(model: Any, read: ModelText, attention: str, without: Sequence[str]) -> Tensor:
    """Return the weights (H, T, S) of one attention module, or a rollout (1, T, S)."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), ablate(model, without):
            if attention.startswith("rollout."):
                rolled = roll_out(read, record_text(read))[attention.removeprefix("rollout.")]
                assert rolled is not None
                return rolled[None].float()
            with record(model, f"{attention}.weights") as recorded:
                model(**read.inputs())
    finally:
        model.train(was_training)
    return recorded[f"{attention}.weights"][0].float()
