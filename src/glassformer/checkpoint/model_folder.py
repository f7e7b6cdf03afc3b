"""Save and load model folders.

    my-model/
        config.json          the fields of `ModelConfig`
        model.safetensors    each parameter once, by its name in the model
        manifest.json        SHA-256 of every other file
        tokenizer.json, README.md, ...

`save_model` writes a temporary folder next to the target and renames it, so that a crash leaves the old model readable.

`load_model` verifies the checksums and the config, reads all tensors, and then compares their names and shapes with a
model on the meta device, which has shapes but no memory. Only then are the model's parameters allocated, so a config
that does not match the weights costs no more memory than the weights file. No file can run code, unlike a pickle.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glassformer.base.checks import shortened
from glassformer.base.names import no_such_model
from glassformer.base.write_errors import WriteError
from glassformer.checkpoint.layout import CONFIG as CONFIG
from glassformer.checkpoint.layout import READ_FILES as READ_FILES
from glassformer.checkpoint.layout import WEIGHTS as WEIGHTS
from glassformer.checkpoint.layout import check_sizes
from glassformer.checkpoint.load_errors import naming_errors, refusing_wrong_values
from glassformer.checkpoint.output_folder import new_folder, recover_folder
from glassformer.checkpoint.safe_files import (
    CorruptFolderError,
    read_json_object,
    verify_folder,
    write_text,
)
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig, build_model

STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def save_model(
    folder: Path,
    model: EncoderModel | DecoderModel | EncoderDecoderModel,
    texts: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
    owner: str = "",
) -> None:
    """Write a model folder atomically. `texts` maps names of further files, such as `README.md`, to their contents.

    An existing model folder is replaced only with `overwrite`, or if the same `owner` (a training run) wrote it and its
    files are unchanged. `owner` is stored in the manifest.
    """
    with new_folder(folder, overwrite=overwrite, owner=owner) as work:
        write_text(work / CONFIG, json.dumps(model.config.to_dict(), indent=2))
        write_tensors(work / WEIGHTS, {name: value.contiguous().cpu() for name, value in own_parameters(model).items()})
        for name, text in (texts or {}).items():
            write_text(work / name, text)


def load_model(folder: Path) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Load a model folder that Glassformer wrote: in float32, in eval mode, on the CPU.

    Raises CorruptFolderError if a file is missing or damaged, or if a file that Glassformer reads (`READ_FILES`) is not
    in the manifest. Raises ValueError if the tensors do not match the config.
    """
    recover_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(no_such_model(folder))
    sealed = verify_folder(folder)
    sealed.check_listed(READ_FILES)
    config, weights = _read_config(sealed.file(CONFIG)), sealed.file(WEIGHTS)
    with naming_errors(weights):
        tensors = read_tensors(weights)
    with naming_errors(folder):
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        check_sizes(config, shapes, lambda: sorted(_parameter_names(config) - tensors.keys()))
        model = _build_on_meta(config)
        _check_match(model, tensors, str(weights))
        fill_parameters(model, tensors.items(), torch.float32)
    return model.eval()


def own_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters by name, detached. A tied parameter appears once, under its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_parameters(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into the model's parameters, in place.

    Raises ValueError unless the names and shapes match exactly. Its message starts with `where`.
    """
    own = _check_match(model, tensors, where)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def fill_parameters(model: nn.Module, values: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Replace the parameters of a model on the meta device with tensors, converted to `dtype`.

    `values` yields (parameter name, tensor), and one tensor is taken from it at a time. Tied parameters stay tied.
    Raises ValueError for a tensor whose dtype is not in `STORED`, such as an integer tensor.
    """
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, key))  # tied parameters have several owners
    empty = dict(model.named_parameters())
    for name, tensor in values:
        if tensor.dtype not in STORED:
            raise ValueError(f"{name} is stored in {tensor.dtype}: expected one of {', '.join(map(str, STORED))}")
        whole = tensor.to(dtype).contiguous()
        if whole.untyped_storage().nbytes() != whole.nbytes:  # a view would keep the larger tensor alive
            whole = whole.clone()
        filled = nn.Parameter(whole)
        for module, key in places[empty[name]]:
            setattr(module, key, filled)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file by name. Raises CorruptFolderError if it cannot be read."""
    if not path.is_file():  # opening a pipe would block
        raise CorruptFolderError(f"{path} is missing: expected a file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CorruptFolderError(f"{path} cannot be read: {shortened(str(error))}") from error


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. An operating system error, such as a full disk, is raised as a WriteError.

    `metadata` is stored in the file's header.
    """
    try:
        save_file(dict(tensors), file, metadata=metadata)
    except SafetensorError as error:  # safetensors reports an OSError only in the message text
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise WriteError(file, os.strerror(int(number[1])), int(number[1])) from error


def _check_match(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> dict[str, nn.Parameter]:
    """Return the model's parameters by name. Raises ValueError unless `tensors` has the same names and shapes."""
    own = dict(model.named_parameters())
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise ValueError(f"{where}: missing parameters {missing[:5]}, unexpected parameters {unknown[:5]}")
    for name, parameter in own.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(f"{where}: {name} is {tuple(tensors[name].shape)}: expected {tuple(parameter.shape)}")
    return own


def _build_on_meta(config: ModelConfig) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    with torch.device("meta"):
        return build_model(config)


def _parameter_names(config: ModelConfig) -> set[str]:
    return {name for name, _ in _build_on_meta(config).named_parameters()}


def _read_config(path: Path) -> ModelConfig:
    with refusing_wrong_values(path):
        return ModelConfig.from_dict(read_json_object(path))
