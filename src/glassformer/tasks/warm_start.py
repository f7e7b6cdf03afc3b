"""Load the weights and the tokenizer of the trained model that `--from` or `--grow-from` names, to start from them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from glassformer.checkpoint import load_model
from glassformer.checkpoint.external_formats import is_external, read_origin
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.pipeline_registry import TASK, read_about
from glassformer.pipelines.seq2seq_pipeline import load_tokenizers
from glassformer.text import Tokenizer

AnyModel = TypeVar("AnyModel", EncoderModel, DecoderModel, EncoderDecoderModel)


def load_checkpoint(
    folder: Path,
    kind: type[AnyModel],
    *,
    head: str | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
) -> AnyModel:
    """Load the model in a folder that Glassformer or another library, such as Hugging Face, wrote.

    `adapt` changes the config of another library's model before the model is built, to leave out its head for example.
    Raises ValueError if the model is not of the class `kind`, or if `head` is given and the model has another head.
    """
    if not folder.exists():
        raise FileNotFoundError(f"--from {folder}: no such folder")
    model = load_model(folder, adapt=adapt)
    if not isinstance(model, kind):
        raise ValueError(f"--from {folder}: the model is of kind {model.kind!r}: expected {kind.kind!r}")
    if head is not None and model.config.head != head:
        raise ValueError(f"--from {folder}: the model has head={model.config.head!r}: expected {head!r}")
    return model


def load_encoder(folder: Path, head: str, settings: Mapping[str, Any]) -> tuple[EncoderModel, Reader]:
    """Load an encoder and its tokenizer. A new `head`, with these `settings` of the model config, replaces its head."""
    body = load_checkpoint(folder, EncoderModel, adapt=lambda config: config.with_head("none"))
    return body.under(body.config.with_head(head, **settings)), load_reader(folder)


def load_reader(folder: Path) -> Reader:
    """Load the tokenizer of an encoder from a folder that Glassformer or another library wrote."""
    return Reader.from_folder(folder, read_about(folder).get("tokenizer") if (folder / TASK).exists() else "pretrained")


def new_head_parameters(model: EncoderModel) -> list[str]:
    """Return the names of the head's parameters of a model whose head is new, so that LoRA trains them fully."""
    return [name for name, _ in model.named_parameters() if name.startswith("head.")]


def load_seq2seq(folder: Path) -> tuple[EncoderDecoderModel, Tokenizer, Tokenizer]:
    """Load an encoder-decoder that Glassformer trained, with its source and target tokenizers."""
    model = load_checkpoint(folder, EncoderDecoderModel, head="language_model")
    _check_own_tokenizer(folder, "an encoder-decoder")
    return model, *load_tokenizers(folder)


def load_decoder(folder: Path, special_tokens: Sequence[str], task: str) -> tuple[DecoderModel, Tokenizer]:
    """Load a decoder that Glassformer trained, with its tokenizer, which must have these special tokens.

    `task` is the name of the task, for the error message.
    """
    model = load_checkpoint(folder, DecoderModel, head="language_model")
    _check_own_tokenizer(folder, "a decoder")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    missing = [name for name in special_tokens if not tokenizer.has_special(name)]
    if missing:
        raise ValueError(
            f"--from {folder}: the tokenizer has no special token {missing[0]}: expected a model of the task {task}"
        )
    return model, tokenizer


def was_trained_here(folder: Path) -> bool:
    """Whether Glassformer trained the model in this folder, so that any task can keep using its tokenizer."""
    return (folder / TASK).is_file() or not (is_external(folder) or read_origin(folder) is not None)


def _check_own_tokenizer(folder: Path, kind: str) -> None:
    # Models of other libraries have other padding, start and end tokens than Glassformer.
    if not was_trained_here(folder):
        raise ValueError(
            f"--from {folder}: the model was not trained by Glassformer, and its tokenizer cannot be used for this "
            f"task: expected the folder of {kind} that `glassformer train` wrote"
        )
