"""Answers of whole models, kept for explanations in which a part of the model is switched off."""

import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from glassformer.inspect.explain_options import ExplainOptions
from glassformer.pipelines.pipeline import Pipeline

MOST_KEPT = 16


class WholeOutputs:
    """The latest answers of whole models, by model, text and options. Answers drawn at random are not kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def get(self, pipe: Pipeline, text: str, options: ExplainOptions) -> dict[str, Any] | None:
        """Return the answer of the model without ablation; None if it is not kept."""
        return None if options.sample else self._kept.get(_key(pipe, text, options))

    def put(self, pipe: Pipeline, text: str, options: ExplainOptions, output: dict[str, Any]) -> None:
        """Keep an answer, unless a part of the model was switched off or the answer was drawn at random."""
        if options.ablate or options.sample:
            return
        self._kept[_key(pipe, text, options)] = output
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


def _key(pipe: Pipeline, text: str, options: ExplainOptions) -> tuple[Any, ...]:
    """Return what an answer depends on: neither the parts nor the position that are explained, nor the ablations."""
    return (weakref.ref(pipe), text, replace(options, ablate=(), parts=(), position=None))
