"""Summarize a model from its config and the headers of its weight files, without torch and without loading weights.

The bytes of weight files are read only to verify checksums and to find tied tensors that a file stores twice.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.base.names import no_such_model
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import is_external, read_external, read_origin, verify_seal
from glassformer.checkpoint.external_model import ExternalModel, Tensors
from glassformer.checkpoint.hf import read_config
from glassformer.checkpoint.layout import CONFIG, READ_FILES, WEIGHTS, check_sizes
from glassformer.checkpoint.load_errors import naming_errors, refusing_wrong_values
from glassformer.checkpoint.output_folder import recover_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, read_json_object, verify_folder
from glassformer.checkpoint.tensor_files import SafeTensors
from glassformer.models.config import ModelConfig
from glassformer.models.costs import count_parameters


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """What `summarize` finds: a model's config, its number of parameters and the number formats of its weights."""

    config: ModelConfig
    n_parameters: int
    """Equal to `build_model(config).n_parameters()`: tied tables count once."""
    stored: Mapping[str, int]
    """How many numbers the files store in each number format (F32, BF16, Q4_K), most frequent format first."""
    family: str | None
    """HF's `model_type`, if the model is in another library's format or was converted from one."""
    external: ExternalModel | None
    """The opened model in another library's format; None for a folder in Glassformer's format."""


def summarize(path: Path | str, *, allow_pickle: bool = False) -> ModelSummary:
    """Summarize a model folder, a GGUF file or a llama2.c file. If a folder has a manifest, its checksums are verified.

    `allow_pickle` permits weights in `pytorch_model.bin`; only these need torch.
    """
    path = find_model(path)
    with naming_errors(path):
        return _summarize_external(path, allow_pickle) if is_external(path) else _summarize_own(path)


def stored_format(path: Path, allow_pickle: bool = False) -> str:
    """Return the format in which a model stores most of its numbers, such as F32. Only headers of files are read."""
    with naming_errors(path):
        if is_external(path):
            tensors = read_external(path, allow_pickle=allow_pickle).tensors
        elif (path / WEIGHTS).is_file():
            tensors = SafeTensors([path / WEIGHTS])
        else:
            return "F32"  # loading will say what is missing
        return next(iter(_stored_numbers(tensors)), "F32")


def _summarize_own(folder: Path) -> ModelSummary:
    recover_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(no_such_model(folder))
    sealed = verify_folder(folder)
    sealed.check_listed(READ_FILES)
    with refusing_wrong_values(sealed.file(CONFIG)):
        config = ModelConfig.from_dict(read_json_object(sealed.file(CONFIG)))
    tensors = SafeTensors([sealed.file(WEIGHTS)])
    check_sizes(config, [*map(tensors.shape, tensors.keys())])
    n_stored, n_parameters = sum(_stored_numbers(tensors).values()), count_parameters(config)
    if n_stored != n_parameters:
        raise CorruptFolderError(
            f"{folder / WEIGHTS} holds {n_stored:,} numbers: expected {n_parameters:,} by {CONFIG}"
        )
    origin: dict[str, Any] = read_origin(folder) or {}
    family = origin.get("model_type")
    return ModelSummary(
        config=config,
        n_parameters=n_parameters,
        stored=_stored_numbers(tensors),
        family=family if isinstance(family, str) else None,
        external=None,
    )


def _summarize_external(path: Path, allow_pickle: bool) -> ModelSummary:
    if path.is_dir():
        verify_seal(path)
    external = read_external(path, allow_pickle=allow_pickle)
    tensors = external.tensors
    config = read_config(external.config, tensors, _have_equal_bytes if isinstance(tensors, SafeTensors) else None)
    check_sizes(config, [*map(tensors.shape, tensors.keys())])
    return ModelSummary(
        config=config,
        n_parameters=count_parameters(config),
        stored=_stored_numbers(tensors),
        family=str(external.config["model_type"]),
        external=external,
    )


def _have_equal_bytes(tensors: Tensors, name: str, other: str) -> bool:
    assert isinstance(tensors, SafeTensors)
    return tensors.have_equal_bytes(name, other)


def _stored_numbers(tensors: Tensors) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name in tensors.keys():  # noqa: SIM118
        counts[tensors.stored_as(name)] += math.prod(tensors.shape(name))
    return dict(counts.most_common())
