"""The model folder: `config.json`, `model.safetensors`, tokenizers, a model card, and a manifest of checksums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glassformer.checkpoint.safe_files import CorruptFolderError, new_folder, verify_folder
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig, build_model

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def own_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by its canonical name: a tied table is not written twice."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_parameters(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy these values into the model; names and shapes must be exactly its own."""
    own = dict(model.named_parameters())
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise ValueError(f"{where}: missing parameters {missing[:5]}, unknown ones {unknown[:5]}")
    for name, parameter in own.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(f"{where}: {name} is {tuple(tensors[name].shape)}: expected {tuple(parameter.shape)}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CorruptFolderError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptFolderError(f"{path} cannot be read: {error}") from error


def save_model(
    folder: Path, model: EncoderModel | DecoderModel | EncoderDecoderModel, texts: Mapping[str, str] | None = None
) -> None:
    """Write a model, and the text files that belong to it (`tokenizer.json`, `README.md`), as one whole folder."""
    with new_folder(folder) as work:
        (work / CONFIG).write_text(json.dumps(model.config.to_dict(), indent=2), encoding="utf-8")
        save_file({name: value.contiguous().cpu() for name, value in own_parameters(model).items()}, work / WEIGHTS)
        for name, text in (texts or {}).items():
            (work / name).write_text(text, encoding="utf-8")


def load_model(folder: Path) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """The model saved in a folder, in evaluation mode, on the CPU; its checksums are verified first."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such model folder")
    verify_folder(folder)
    model = build_model(ModelConfig.from_dict(read_json(folder / CONFIG)))
    load_parameters(model, read_tensors(folder / WEIGHTS), str(folder / WEIGHTS))
    return model.eval()
