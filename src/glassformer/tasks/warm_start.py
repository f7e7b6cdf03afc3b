"""Load the weights and the tokenizer of the trained model that `--from` or `--grow-from` names, to start from them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from glassformer.checkpoint import load_model
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import is_external, read_origin
from glassformer.checkpoint.unread_weights import keep_unread, take_unread
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model, ModelConfig
from glassformer.models.config_names import HEAD_FIELDS
from glassformer.models.factory import build_with_new_head
from glassformer.models.growth import FREE, grow_model
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.pipeline_registry import TASK, read_about
from glassformer.pipelines.pretrained_base import PretrainedBase, read_base
from glassformer.pipelines.seq2seq_pipeline import load_tokenizers
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.text import Tokenizer

FROM = "--from"
"""The option that names the folder of the model, for error messages; the other one is --grow-from."""
AnyModel = TypeVar("AnyModel", EncoderModel, DecoderModel, EncoderDecoderModel)
AnyBody = TypeVar("AnyBody", bound=Model)
TextReader = EncoderModel | DecoderModel
"""A model that reads a text, for a head that says something about the text."""


def load_checkpoint(
    folder: Path,
    kind: type[AnyModel],
    *,
    head: str | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
    flag: str = FROM,
) -> AnyModel:
    """Load the model in a folder that Glassformer or another library, such as Hugging Face, wrote.

    `adapt` changes the config of another library's model before the model is built, to leave out its head for example.
    `flag` is the option that names the folder, for error messages.
    Raises ValueError if the model is not of the class `kind`, or if `head` is given and the model has another head.
    """
    if not folder.exists() and find_model(folder) == folder:
        raise FileNotFoundError(f"{flag} {folder}: no such folder")
    model = load_model(folder, adapt=adapt)
    if not isinstance(model, kind):
        raise ValueError(f"{flag} {folder}: the model is of kind {model.kind!r}: expected {kind.kind!r}")
    if head is not None and model.config.head != head:
        raise ValueError(f"{flag} {folder}: the model has head={model.config.head!r}: expected {head!r}")
    return model


def load_encoder(
    folder: Path,
    head: str,
    settings: Mapping[str, Any],
    flag: str = FROM,
    *,
    accepts_decoder: bool = False,
) -> tuple[TextReader, Reader]:
    """Load an encoder and its tokenizer. A new `head`, with these `settings` of the model config, replaces its head.

    With `accepts_decoder` the model may be a decoder, whose head reads the last token of a text.
    """
    body: TextReader
    if accepts_decoder and isinstance(found := load_model(folder, adapt=without_head), DecoderModel):
        body, settings = found, {**settings, "pooling": "last"}
    else:
        body = load_checkpoint(folder, EncoderModel, adapt=without_head, flag=flag)
    return with_new_head(body, body.config.with_head(head, **settings)), load_reader(folder)


def load_with_head(
    folder: Path, head: str, about: Mapping[str, Any], *, accepts_decoder: bool = False
) -> tuple[TextReader, Reader] | None:
    """Load a model with its head, and its tokenizer, if the head can be trained further; otherwise return None.

    It can if it is such a `head` and the folder's `task.json` has the values of `about`, such as the same labels.
    """
    folder = find_model(folder)
    if not (folder / TASK).is_file():
        return None
    found = read_about(folder)
    if any(found.get(name) != value for name, value in about.items()):
        return None
    model = load_model(folder)
    if not isinstance(model, (EncoderModel, DecoderModel) if accepts_decoder else EncoderModel):
        return None
    return (model, load_reader(folder)) if model.config.head == head else None


def with_new_head(body: AnyBody, config: ModelConfig) -> AnyBody:
    """Return `body` with the head of `config`, randomly initialized. Weights that are not read yet are read later."""
    values = take_unread(body)
    if values is None:
        return body.copy_with_head(config)
    model = build_with_new_head(config)
    assert isinstance(model, type(body))
    keep_unread(model, ((name, value) for name, value in values if not name.startswith("head.")))
    return model


def without_head(config: ModelConfig) -> ModelConfig:
    """Return the config of the same model without its head."""
    return config.with_head("none")


def grow_to(model: AnyModel, config: TaskConfig, **known: Any) -> AnyModel:
    """Return the model of `--from` as it is, and that of `--grow-from` with the sizes that the config gives.

    `known` holds fields of the model config that the task decides, such as `max_len`. The vocabulary, and a head other
    than that of a language model, stay as they are. The optimizer state is not part of a model, so it starts anew.
    """
    if config.grow_from is None:
        return model
    kept = ["vocab_size", "source_vocab_size", "token_types"]
    if model.config.head != "language_model":
        kept += ["head", *HEAD_FIELDS, "tie"]
    known = {**{name: getattr(model.config, name) for name in kept}, **known}
    torch.manual_seed(config.train.seed)
    try:
        return grow_model(model, ModelConfig.from_dict({**config.model.to_dict(), **known}))
    except ValueError as error:
        raise ValueError(f"--grow-from {config.grow_from}: {error}") from error


def architecture_options(folder: Path, head: str) -> dict[str, Any]:
    """Return the architecture of the model in a folder as options by dotted name, such as "model.d_model".

    Options that matter in training only are left out: dropout and initialization. `head` is that of the task's default
    model; options of a head are left out unless it is "language_model".
    """
    left_out = {*FREE, "head", *HEAD_FIELDS, "token_types"}
    if not folder.exists():
        raise FileNotFoundError(f"--grow-from {folder}: no such folder")
    config = load_model(folder).config.to_dict()
    if head == "language_model":
        left_out -= {"head_transform", "head_activation", "head_norm", "head_bias"}
    else:
        left_out |= {"tie"}
    return {f"model.{name}": value for name, value in config.items() if name not in left_out}


def load_reader(folder: Path) -> Reader:
    """Load the tokenizer of an encoder from a folder that Glassformer or another library wrote."""
    folder = find_model(folder)
    if (folder / TASK).is_file() and read_origin(folder) is None:
        return Reader.from_folder(folder, read_about(folder).get("tokenizer", "own"))
    return Reader.of_checkpoint(folder)


def new_head_parameters(model: TextReader) -> list[str]:
    """Return the names of the head's parameters, which LoRA trains fully."""
    return [name for name, _ in model.named_parameters() if name.startswith("head.")]


def load_seq2seq(folder: Path, flag: str = FROM) -> tuple[EncoderDecoderModel, Tokenizer, Tokenizer]:
    """Load an encoder-decoder that Glassformer trained, with its source and target tokenizers."""
    model, base = load_any_seq2seq(folder, flag)
    if base is not None:
        raise ValueError(
            f"{flag} {folder}: the model was not trained by Glassformer, and its tokenizer cannot be used for this "
            "task: expected the folder of an encoder-decoder that `glassformer train` wrote"
        )
    return model, *load_tokenizers(folder)


def load_any_seq2seq(folder: Path, flag: str = FROM) -> tuple[EncoderDecoderModel, PretrainedBase | None]:
    """Load an encoder-decoder, with the `PretrainedBase` of a model that comes from another library."""
    model = load_checkpoint(folder, EncoderDecoderModel, head="language_model", flag=flag)
    return model, read_base(find_model(folder))


def load_decoder(
    folder: Path, special_tokens: Sequence[str], task: str, flag: str = FROM
) -> tuple[DecoderModel, Tokenizer | PretrainedBase]:
    """Load a decoder with its tokenizer, or with the `PretrainedBase` of a model that comes from another library.

    A tokenizer that Glassformer trained must have these special tokens. `task` is the name of the task, for the error
    message.
    """
    model = load_checkpoint(folder, DecoderModel, head="language_model", flag=flag)
    base = read_base(find_model(folder))
    if base is not None:
        return model, base
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    missing = [name for name in special_tokens if not tokenizer.has_special(name)]
    if missing:
        raise ValueError(
            f"{flag} {folder}: the tokenizer has no special token {missing[0]}: expected a model of the task {task}"
        )
    return model, tokenizer


def was_trained_here(folder: Path) -> bool:
    """Whether Glassformer trained the model in this folder and its tokenizer, instead of another library."""
    folder = find_model(folder)
    return not is_external(folder) and read_origin(folder) is None
