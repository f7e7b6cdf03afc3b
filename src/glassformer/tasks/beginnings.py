"""A trained model to begin with instead of chance: what every task's `--from` shares."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from glassformer.checkpoint import load_model
from glassformer.checkpoint.external_formats import is_external, read_origin
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.tasks.registry import TASK

AnyModel = TypeVar("AnyModel", EncoderModel, DecoderModel, EncoderDecoderModel)


def load_beginning(
    folder: Path,
    kind: type[AnyModel],
    *,
    head: str | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
) -> AnyModel:
    """The model in a folder, ours or anybody's, if it is of this kind and, where one is named, has this head.

    `adapt` changes a foreign model's config before it is built: to leave its head behind, say.
    """
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such folder to begin with")
    model = load_model(folder, adapt=adapt)
    if not isinstance(model, kind):
        raise ValueError(f"{folder} is of kind {model.kind!r}: expected {kind.kind!r} to begin with")
    if head is not None and model.config.head != head:
        raise ValueError(f"{folder} has head={model.config.head!r}: expected {head!r} to begin with")
    return model


def was_trained_here(folder: Path) -> bool:
    """Whether a task of ours wrote this folder, with a tokenizer that one of our tasks made or took along."""
    return (folder / TASK).is_file() or not (is_external(folder) or read_origin(folder) is not None)
