"""Save and load model folders.

    my-model/
        config.json          the fields of `ModelConfig`
        model.safetensors    each parameter once, by its name in the model
        manifest.json        SHA-256 of every other file
        tokenizer.json, README.md, ...

`save_model` writes a temporary folder next to the target and renames it, so that a crash leaves the old model readable.

`load_model` verifies the checksums and the config, and compares the names and shapes of the stored tensors with a model
on the meta device, which has shapes but no memory. Only then are the tensors read, one at a time, so that memory never
holds a second copy of the weights. No file can run code, unlike a pickle.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glassformer.base.checks import shortened
from glassformer.base.freed_memory import give_back_freed
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
from glassformer.checkpoint.tensor_files import SafeTensors
from glassformer.checkpoint.unread_weights import keep_unread, reading_later, take_unread
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.models.costs import shapes_by_name
from glassformer.models.factory import build_on_meta

STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LEAST_GIVEN_BACK = 16 << 20
"""`fill_parameters` returns freed memory to the system after it has filled this many bytes more, or a tenth more."""

WhenFilled = Callable[[nn.Module], None]
"""A function that is called with each module of a model as soon as all parameters in it have been read."""


def save_model(
    folder: Path | str,
    model: EncoderModel | DecoderModel | EncoderDecoderModel,
    texts: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
    owner: str = "",
) -> None:
    """Write a model folder atomically. `texts` maps names of further files, such as `README.md`, to their contents.

    An existing model folder is replaced only with `overwrite`, or if the same `owner` (a training run) wrote it and its
    files are unchanged. `owner` is stored in the manifest. Raises ValueError for a model that is packed, quantized or
    has adapters: its parameters are not those of its config.
    """
    missing = sorted(shapes_by_name(model.config).keys() - own_parameters(model).keys())
    if missing and any(".adapters." in name for name in own_parameters(model)):
        raise ValueError(
            "the model has adapters: merge them before, by merge_adapters(model) of glassformer.training.lora, or save "
            "them alone, by write_adapter of glassformer.training.adapter_folder"
        )
    if missing:
        raise ValueError(
            f"the model has no parameter {missing[0]}: it is packed or quantized for inference, and cannot be saved; "
            "load it without quantize, or save it before"
        )
    with new_folder(Path(folder), overwrite=overwrite, owner=owner) as work:
        write_text(work / CONFIG, json.dumps(model.config.to_dict(), indent=2))
        write_tensors(work / WEIGHTS, {name: value.contiguous().cpu() for name, value in own_parameters(model).items()})
        for name, text in (texts or {}).items():
            write_text(work / name, text)


def load_model(
    folder: Path, *, dtype: torch.dtype = torch.float32, when_filled: WhenFilled | None = None
) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Load a model folder that Glassformer wrote, in eval mode, on the CPU. The weights are converted to `dtype`.

    `when_filled` is called with each module as soon as its weights have been read (see `fill_parameters`).

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
        tensors = SafeTensors([weights])
    with naming_errors(folder):
        shapes = dict(zip(tensors.keys(), map(tensors.shape, tensors.keys()), strict=True))
        check_sizes(config, list(shapes.values()), lambda: sorted(shapes_by_name(config).keys() - shapes.keys()))
        model = build_on_meta(config).eval()
        names = list(_check_match(model, shapes, str(weights)))
        fill_parameters(model, ((name, tensors[name]) for name in names), dtype, when_filled)
    return model


def own_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters by name, detached. A tied parameter appears once, under its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_parameters(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into the model's parameters, in place.

    Raises ValueError unless the names and shapes match exactly. Its message starts with `where`.
    """
    own = _check_match(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, where)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def fill_parameters(
    model: nn.Module,
    values: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    when_filled: WhenFilled | None = None,
) -> None:
    """Replace the parameters of a model on the meta device with tensors, converted to `dtype`.

    `values` yields (parameter name, tensor), and one tensor is taken from it at a time. Tied parameters stay tied.
    Raises ValueError for a tensor whose dtype is not in `STORED`, such as an integer tensor.

    `when_filled` is called with each module whose parameters are all filled, the inner modules before the outer ones.
    It may replace the module's children, for example by quantized ones: nothing here holds the old ones any more.

    Inside `reading_later` nothing is filled: the model stays on the meta device until `read_now`, or until the
    processes of a training run have divided it among them.
    """
    if when_filled is None and keep_unread(model, values):
        return
    owners, empty = owners_of_parameters(model), dict(model.named_parameters())
    waiting = _Waiting(model) if when_filled is not None else None
    n_bytes = n_given_back = 0
    for name, tensor in values:
        check_stored(name, tensor)
        parameter = empty.pop(name)
        filled = nn.Parameter(_converted(tensor, dtype))
        n_bytes += filled.nbytes
        del tensor
        if n_bytes - n_given_back > max(LEAST_GIVEN_BACK, n_bytes // 10):
            give_back_freed()  # otherwise the heap keeps holes where tensors were read and converted
            n_given_back = n_bytes
        for module, key in owners.pop(parameter):
            setattr(module, key, filled)
        del filled, module
        if waiting is not None and when_filled is not None:
            for module in waiting.take_filled(parameter):
                when_filled(module)
                del module


def owners_of_parameters(model: nn.Module) -> dict[nn.Parameter, list[tuple[nn.Module, str]]]:
    """Return the modules that hold each parameter, and its attribute name there. Tied parameters have several."""
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((module, key))
    return owners


def check_stored(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless a stored tensor holds floating-point numbers (`STORED`)."""
    if tensor.dtype not in STORED:
        raise ValueError(f"{name} is stored in {tensor.dtype}: expected one of {', '.join(map(str, STORED))}")


def read_now(model: nn.Module) -> None:
    """Read the weights of a model that was loaded inside `reading_later`, if they have not been read yet."""
    values = take_unread(model)
    if values is not None:
        with reading_later(on=False):
            fill_parameters(model, values, torch.float32)


class _Waiting:
    """The modules of a model some of whose parameters are not filled yet, each with the number of these parameters."""

    def __init__(self, model: nn.Module):
        # Post-order: inner modules come before outer ones.
        self._modules: list[nn.Module | None] = []
        self._missing: list[int] = []
        self._users: dict[nn.Parameter, list[int]] = {}
        self._add(model, set())

    def _add(self, module: nn.Module, known: set[nn.Module]) -> None:
        known.add(module)
        for child in module.children():
            if child not in known:
                self._add(child, known)
        parameters = list(module.parameters())
        for parameter in parameters:
            self._users.setdefault(parameter, []).append(len(self._modules))
        self._modules.append(module)
        self._missing.append(len(parameters))

    def take_filled(self, parameter: nn.Parameter) -> Iterable[nn.Module]:
        """Count a parameter as filled, and yield the modules that miss no parameter any more."""
        for index in self._users.pop(parameter):
            self._missing[index] -= 1
            module = self._modules[index]
            if not self._missing[index] and module is not None:
                self._modules[index] = None
                yield module
                del module


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in `dtype`, contiguous and not a view, which would keep a larger tensor alive."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    if tensor.dtype == dtype and is_whole:
        return tensor
    # One copy: `Tensor.to` would keep the strides of a transposed tensor and need a second one.
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor)


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


def _check_match(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, nn.Parameter]:
    """Return the model's parameters by name. Raises ValueError unless they have exactly these names and shapes."""
    own = dict(model.named_parameters())
    missing, unknown = sorted(own.keys() - shapes.keys()), sorted(shapes.keys() - own.keys())
    if missing or unknown:
        raise ValueError(f"{where}: missing parameters {missing[:5]}, unexpected parameters {unknown[:5]}")
    for name, parameter in own.items():
        if parameter.shape != shapes[name]:
            raise ValueError(f"{where}: {name} is {shapes[name]}: expected {tuple(parameter.shape)}")
    return own


def _read_config(path: Path) -> ModelConfig:
    with refusing_wrong_values(path):
        return ModelConfig.from_dict(read_json_object(path))
