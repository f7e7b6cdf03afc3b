"""Read and write Hugging Face folders: `config.json` and weights in one file or in shards, read one tensor at a time.

The contents are untrusted. File names, such as those in the weights index, cannot lead out of the folder
(`confined_path` in `checkpoint/safe_files.py`), except through the links of HF's download cache. The offsets in a
safetensors file are validated before a tensor is read. Pickles can run code when opened, so they are refused unless
`allow_pickle` is given, and then read by torch's tensors-only unpickler.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_model import ExternalModel, Tensors
from glassformer.checkpoint.hf import export_model, family_by_type, read_config, with_model_type
from glassformer.checkpoint.hf.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_PICKLE,
    ADAPTER_WEIGHTS,
    AdaptedTensors,
    with_adapter_head,
)
from glassformer.checkpoint.hf.extra_heads import ExtraHeads
from glassformer.checkpoint.hf.fused_experts import with_split_experts
from glassformer.checkpoint.hf.name_tables import Family
from glassformer.checkpoint.hf.renamed_tensors import with_current_names
from glassformer.checkpoint.hf.values import UnsupportedModelError, shown
from glassformer.checkpoint.limits import blocking_setting, effective_settings, refuse
from glassformer.checkpoint.output_folder import new_folder
from glassformer.checkpoint.safe_files import (
    MANIFEST,
    CorruptFolderError,
    confined_path,
    read_json_object,
    write_text,
)
from glassformer.checkpoint.tensor_files import DTYPES, SafeTensors

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
OWN_KEY = "n_encoder_layers"
"""A key of config.json that only Glassformer writes, for every model."""


def read_hf_folder(folder: Path, *, allow_pickle: bool = False) -> ExternalModel:
    """Open an HF folder. Tensors are read only when they are accessed. The tokenizer's files are not read.

    `allow_pickle` permits weights in `pytorch_model.bin`.
    """
    if has_adapter(folder):
        return _read_adapter(folder, allow_pickle)
    values = with_model_type(read_json_table(confined_path(folder, CONFIG)))
    tensors = with_split_experts(with_current_names(open_weights(folder, allow_pickle)), values["model_type"])
    return ExternalModel(config=values, tensors=tensors)


def has_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter in PEFT's format: its config and its weights."""
    has_weights = (folder / ADAPTER_WEIGHTS).is_file() or (folder / ADAPTER_PICKLE).is_file()
    return has_weights and (folder / ADAPTER_CONFIG).is_file()


def _read_adapter(folder: Path, allow_pickle: bool) -> ExternalModel:
    """Open the base model that an adapter names, with the adapter applied.

    Like HF, this takes the base model from `base_model_name_or_path` even if the folder holds a whole model, too. It is
    a folder, a name on the hub that is in the download cache, or the adapter's folder itself.
    """
    settings = read_json_table(confined_path(folder, ADAPTER_CONFIG))
    name = settings.get("base_model_name_or_path")
    if name is not None and not isinstance(name, str):
        raise CorruptFolderError(
            f"{folder / ADAPTER_CONFIG} has base_model_name_or_path={shown(name)}: expected a name"
        )
    base = find_model(name) if name else folder
    if not (base / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} is an adapter of {shown(name)}: expected its base model there; change "
            f"base_model_name_or_path in {ADAPTER_CONFIG} to the base model's folder"
        )
    values = with_model_type(read_json_table(confined_path(base, CONFIG)))
    family = family_by_type(values["model_type"])
    tensors = with_split_experts(with_current_names(open_weights(base, allow_pickle)), values["model_type"])
    if (folder / ADAPTER_WEIGHTS).is_file():
        adapter: Tensors = SafeTensors([confined_path(folder, ADAPTER_WEIGHTS)])
    else:
        adapter = _open_pickles(folder, [folder / ADAPTER_PICKLE], ADAPTER_WEIGHTS, allow_pickle)
    adapted = AdaptedTensors(tensors, adapter, settings, prefix=family.prefix)
    values = with_adapter_head(values, settings, adapter)
    tables = {side.removeprefix(prefix) for pair in family.copies for side in pair for prefix in ("", family.prefix)}
    tied = sorted(adapted.changed_names & tables)
    config = read_config(values, adapted)
    if tied and (config.ties_output or config.ties_embeddings):
        raise UnsupportedModelError(
            f"{folder}: the adapter changes {tied[0]}, which the base model ties to another tensor: expected a merged "
            "model (peft's merge_and_unload), or an adapter that leaves the embeddings as they are"
        )
    return ExternalModel(config=values, tensors=adapted, base=base)


def is_hf_folder(folder: Path) -> bool:
    """Return whether the folder is in HF's format, judged by its config.json.

    HF's config.json has a `model_type`, or if an old version wrote it, `architectures`. Without both, a folder with
    weights counts as HF's if neither its config.json nor a manifest shows that Glassformer wrote it.
    """
    path = folder / CONFIG
    if has_adapter(folder):
        return True
    if not path.is_file():
        return False
    values = read_json_table(path)
    if "model_type" in values or "architectures" in values:
        return True
    has_weights = any(folder.glob("pytorch_model*.bin")) or (folder / WEIGHTS).exists() or (folder / INDEX).exists()
    return has_weights and OWN_KEY not in values and not (folder / MANIFEST).exists()


def save_hf_folder(
    folder: Path,
    model: EncoderModel | DecoderModel | EncoderDecoderModel,
    *,
    family: Family | None = None,
    values: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    extra_heads: ExtraHeads | None = None,
    more_tensors: Mapping[str, Mapping[str, Tensor]] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a folder that HF Transformers loads. An existing model folder is replaced only with `overwrite`.

    Args:
        family: HF model family to save as; the default is the first that can express the model.
        values: Further values for `config.json`, such as special token ids. Raises UnsupportedModelError if HF would
            read another model because of them.
        texts: Contents of further files by name, such as `tokenizer.json` and `1_Pooling/config.json`.
        extra_heads: Heads of the HF checkpoint that the model was loaded from, to be written back.
        more_tensors: Tensors of further safetensors files, by the name of the file.
    """
    from glassformer.checkpoint.model_folder import write_tensors

    config, tensors = export_model(model, family)
    if extra_heads is not None:
        config, tensors = _with_extra_heads(config, tensors, extra_heads, is_body=model.config.head == "none")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    whole = {**config, "dtype": dtype, **(values or {})}
    _check_values(config, whole, frozenset(tensors))
    with new_folder(folder, overwrite=overwrite) as work:
        write_text(work / CONFIG, json.dumps(whole, indent=2))
        ready = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        write_tensors(work / WEIGHTS, ready, {"format": "pt"})
        for name, text in (texts or {}).items():
            (work / name).parent.mkdir(exist_ok=True)
            write_text(work / name, text)
        for name, some in (more_tensors or {}).items():
            (work / name).parent.mkdir(exist_ok=True)
            write_tensors(work / name, {key: tensor.cpu().clone() for key, tensor in some.items()}, {"format": "pt"})


def _with_extra_heads(
    config: dict[str, Any], tensors: dict[str, Tensor], extra: ExtraHeads, *, is_body: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the values of `config.json` and the tensors of a model together with the extra heads.

    `is_body` means that our model has no head. Its tensor names then lack the family's prefix, and get it back where
    the checkpoint of the extra heads has it.
    """
    prefix = family_by_type(config["model_type"]).prefix if is_body and extra.has_prefix else ""
    dtype = next(iter(tensors.values())).dtype
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    tensors |= {name: tensor.to(dtype) for name, tensor in extra.tensors.items()}
    return (config | {"architectures": [extra.architecture]} if extra.architecture else config), tensors


def _check_values(config: Mapping[str, Any], whole: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raise UnsupportedModelError if the values that a caller added to `config.json` change the model.

    RoBERTa's `pad_token_id` may do so, because HF numbers RoBERTa's positions from `pad_token_id + 1`. `config` holds
    the values without the added ones, `whole` all values, and `names` the names of the stored tensors.
    """
    family = family_by_type(config["model_type"])
    one, two = (effective_settings(family.read_config(values, names)) for values in (config, whole))
    changed = [blocking_setting(key, value, [two[key]]) for key, value in one.items() if two.get(key, value) != value]
    ids = ", ".join(f"{key}={whole[key]}" for key in whole if key.endswith("_token_id"))
    refuse(f"HF's {family.model_type} with {ids}", changed)


def read_json_table(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that another library wrote. NaN, Infinity and duplicate keys are allowed."""
    return read_json_object(path, strict=False)


def open_weights(folder: Path, allow_pickle: bool) -> Tensors:
    """Open the weights of a folder: safetensors, in one file or in shards, or pickles with `allow_pickle`."""
    if (folder / WEIGHTS).exists():
        return SafeTensors([confined_path(folder, WEIGHTS)])
    if (folder / INDEX).exists():
        shards = read_json_table(confined_path(folder, INDEX)).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CorruptFolderError(f"{folder / INDEX} has no weight_map: expected a file name for each tensor")
        try:
            names = sorted(set(shards.values()))
        except TypeError as error:
            raise CorruptFolderError(f"{folder / INDEX} has a weight_map without file names: {error}") from error
        return SafeTensors([confined_path(folder, name) for name in names])
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        return _open_pickles(folder, pickles, WEIGHTS, allow_pickle)
    raise CorruptFolderError(f"{folder} holds no weights: expected {WEIGHTS}, or {INDEX} and its shards")


def _open_pickles(folder: Path, pickles: list[Path], expected: str, allow_pickle: bool) -> Tensors:
    if not allow_pickle:
        raise CorruptFolderError(
            f"{pickles[0]} is a pickle, which can run code when it is opened: expected {expected}; "
            "allow_pickle (--allow-pickle of run, eval, info and convert) opens it with torch's tensors-only reader, "
            "and convert --to hf --allow-pickle writes a copy that every command reads"
        )
    return PickledTensors([confined_path(folder, path.name) for path in pickles])


class PickledTensors:
    """The tensors of `pytorch_model.bin` files, read by torch's tensors-only unpickler (see `Tensors`).

    Files of torch 1.6 and later are zip archives, whose tensors are mapped from the file. Older files cannot be mapped
    and are read into memory as a whole.
    """

    def __init__(self, paths: list[Path]):
        import torch
        from torch import Tensor

        self._tensors: dict[str, Tensor] = {}
        for path in paths:
            try:
                with path.open("rb") as stream:
                    is_archive = stream.read(4) == b"PK\x03\x04"
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
            except Exception as error:  # a hostile file may raise anything
                raise CorruptFolderError(f"{path} cannot be read: {error}") from error
            if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
                raise CorruptFolderError(f"{path} holds more than tensors: expected a state dict")
            self._tensors |= found

    def keys(self) -> Iterator[str]:
        """Return an iterator over the names of all tensors."""
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return tuple(self._tensors[name].shape)

    def __getitem__(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._tensors[name]

    def stored_as(self, name: str) -> str:
        """Return the number format of a stored tensor by its name in safetensors, such as BF16."""
        found = str(self._tensors[name].dtype).removeprefix("torch.")
        return {long: short for short, long in DTYPES.items()}.get(found, found)
