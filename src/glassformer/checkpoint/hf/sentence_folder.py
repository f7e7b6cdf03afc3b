"""Folders of sentence-transformers: `modules.json` lists what follows the encoder, such as pooling.

Supported are a pooling, at most one dense layer and a normalization, in this order. Other modules are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.hf.values import UnsupportedModelError, read_bool, read_int, shown
from glassformer.checkpoint.safe_files import CorruptFolderError, read_json, read_json_object
from glassformer.models.config import ModelConfig, PoolingName
from glassformer.nn.activations import HeadActivationName

if TYPE_CHECKING:
    from glassformer.checkpoint.external_model import Tensors

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
DENSE_WEIGHTS = "2_Dense/model.safetensors"
DENSE_NAMES = {"linear.weight": "weight", "linear.bias": "bias"}
"""Names of the tensors of a dense layer -> ours."""
POOLINGS: dict[str, PoolingName] = {
    "cls": "first",
    "lasttoken": "last",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
}
"""Names of poolings in `pooling_mode` -> ours."""
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Flags of files before version 6, which have the meaning of a `pooling_mode`."""
ACTIVATIONS: dict[str, HeadActivationName] = {
    "Tanh": "tanh",
    "Identity": "identity",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""torch's names of the activation of a dense layer -> ours."""


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The modules of a sentence-transformers folder after its encoder, and its prompts."""

    folder: Path
    encoder: Path
    """Folder of the encoder: its config, weights and tokenizer."""
    pooling: PoolingName = "mean"
    dense: Path | None = None
    """Folder of the dense layer after the pooling; None if there is none."""
    head: Mapping[str, Any]
    """Fields of `ModelConfig` for an embedding head that does the same."""
    prompts: Mapping[str, str]
    """Texts to put before an input, by name."""
    default_prompt: str = ""
    """The text that is put before an input if no other is asked for."""
    similarity: str = "cosine"
    """How two vectors are compared: cosine, dot, euclidean or manhattan."""


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """Read the modules of a sentence-transformers folder, or of the folder of its encoder; None for other folders.

    A folder with `1_Pooling` and no `modules.json` counts as one that normalizes its vectors. The result is None for a
    cross-encoder, too, which lists its encoder alone.
    """
    if (folder / MODULES).is_file():
        entries = _entries(folder)
        return None if [kind for kind, _ in entries] == ["Transformer"] else _read(folder, entries)
    if (folder.parent / MODULES).is_file() and encoder_folder(folder.parent) == folder:
        return read_sentence_modules(folder.parent)
    if (folder / "1_Pooling" / "config.json").is_file():
        return _read(folder, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "")])
    return None


def encoder_folder(folder: Path) -> Path:
    """Return the folder of the encoder in a sentence-transformers folder, and any other folder itself."""
    if (folder / "config.json").is_file() or not (folder / MODULES).is_file():
        return folder
    kind, path = next(iter(_entries(folder)), ("", ""))
    return _subfolder(folder, path) if kind == "Transformer" and path else folder


def with_sentence_head(folder: Path, config: ModelConfig) -> ModelConfig:
    """Return the config with an embedding head, as the folder says. Without modules it is the mean of unit length."""
    found = read_sentence_modules(folder)
    return config.with_head("embedding", **({"pooling": "mean"} if found is None else found.head))


def dense_tensors(folder: Path, tensors: Tensors) -> dict[str, Any]:
    """Return the weight and bias of a dense layer, by our names, from the tensors of its folder."""
    unknown = [name for name in tensors.keys() if name not in DENSE_NAMES]  # noqa: SIM118
    if unknown:
        raise UnsupportedModelError(f"{folder} holds {unknown[0]}, not supported: expected {', '.join(DENSE_NAMES)}")
    return {DENSE_NAMES[name]: tensors[name] for name in tensors.keys()}  # noqa: SIM118


def sentence_texts(config: ModelConfig, *, longest: int | None = None) -> dict[str, str]:
    """Return the files of a sentence-transformers folder for an embedding head, by name: `read_sentence_modules` back.

    The encoder is in the folder itself, and the weights of a dense layer are in `DENSE_WEIGHTS`. `longest` is the most
    tokens of a text.
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * config.head_transform, *["Normalize"] * config.unit_length]
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    mode = next(theirs for theirs, ours in POOLINGS.items() if ours == config.pool_by)
    pooling = {old: new == mode for old, new in OLD_POOLINGS.items()}
    found: dict[str, Any] = {
        MODULES: modules,
        "1_Pooling/config.json": {"word_embedding_dimension": config.d_model, **pooling, "include_prompt": True},
    }
    if longest is not None:
        found["sentence_bert_config.json"] = {"max_seq_length": longest, "do_lower_case": False}
    if config.head_transform:
        name = next((one for one, ours in ACTIVATIONS.items() if ours == (config.head_activation or "tanh")), None)
        if name is None:
            raise UnsupportedModelError(
                f"sentence-transformers: head_activation={config.head_activation!r}, which is not supported: expected "
                f"one of {', '.join(ACTIVATIONS.values())}"
            )
        found["2_Dense/config.json"] = {
            "in_features": config.d_model,
            "out_features": config.embedding_size,
            "bias": config.head_bias,
            "activation_function": f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}",
        }
    return {name: json.dumps(value, indent=2) for name, value in found.items()}


def _entries(folder: Path) -> list[tuple[str, str]]:
    """Return the kind and the path of each module that `modules.json` lists, in order."""
    path = folder / MODULES
    listed = read_json(path, strict=False)
    if not isinstance(listed, list):
        raise CorruptFolderError(f"{path} holds {shown(listed)}: expected a list of modules")
    found = []
    for index, entry in enumerate(listed):
        kind, place = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise CorruptFolderError(f"{path}: entry {index} is {shown(entry)}: expected a type and a path")
        found.append((kind.rpartition(".")[2], place))
    return found


def _subfolder(folder: Path, name: str) -> Path:
    path = folder / name
    if name in (".", "..") or Path(name).name != name or not path.is_dir() or path.is_symlink():
        raise CorruptFolderError(f"{folder / MODULES} refers to the folder {shown(name)}: expected one inside {folder}")
    return path


def _read(folder: Path, entries: list[tuple[str, str]]) -> SentenceModules:
    kinds = [kind for kind, _ in entries]
    expected = ["Transformer", "Pooling", *["Dense"] * ("Dense" in kinds), *["Normalize"] * ("Normalize" in kinds)]
    if kinds != expected:
        raise UnsupportedModelError(
            f"{folder / MODULES} lists {', '.join(kinds) or 'nothing'}, which is not supported: expected Transformer, "
            "Pooling, then at most one Dense and one Normalize"
        )
    places = dict(entries)
    head: dict[str, Any] = {
        "pooling": _pooling(_subfolder(folder, places["Pooling"]) / "config.json"),
        "unit_length": "Normalize" in kinds,
    }
    dense = _subfolder(folder, places["Dense"]) if "Dense" in kinds else None
    if dense is not None:
        head |= _dense(dense / "config.json")
    path = folder / SETTINGS
    settings = read_json_object(path, strict=False) if path.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CorruptFolderError(f"{path} has prompts={shown(prompts)}: expected texts by name")
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CorruptFolderError(f"{path} has default_prompt_name={shown(default)}: expected one of its prompts")
    similarity = settings.get("similarity_fn_name") or "cosine"
    return SentenceModules(
        folder=folder,
        encoder=encoder_folder(folder),
        pooling=head["pooling"],
        dense=dense,
        head=head,
        prompts=prompts,
        default_prompt="" if default is None else prompts[default],
        similarity=similarity if isinstance(similarity, str) else "cosine",
    )


def _pooling(path: Path) -> PoolingName:
    values = read_json_object(path, strict=False)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [new for old, new in OLD_POOLINGS.items() if values.get(old) is True]
    names = [modes] if isinstance(modes, str) else modes
    if not isinstance(names, list) or len(names) != 1 or names[0] not in POOLINGS:
        raise UnsupportedModelError(
            f"{path} asks for the pooling {shown(names)}, which is not supported: expected one of {', '.join(POOLINGS)}"
        )
    if values.get("include_prompt") is False:
        raise UnsupportedModelError(f"{path} has include_prompt=false, which is not supported: expected true")
    return POOLINGS[names[0]]


def _dense(path: Path) -> dict[str, Any]:
    """Return the fields of `ModelConfig` for the dense layer of an embedding head."""
    values = read_json_object(path, strict=False)
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if not name.startswith("torch.nn.modules.") or name.rpartition(".")[2] not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{path} has activation_function={shown(name)}, which is not supported: expected one of "
            f"{', '.join(ACTIVATIONS)} in torch.nn.modules"
        )
    for key, allowed in (("module_input_name", "sentence_embedding"), ("module_output_name", "sentence_embedding")):
        if values.get(key, allowed) not in (allowed, None):
            raise UnsupportedModelError(
                f"{path} has {key}={shown(values[key])}, which is not supported: expected {allowed!r}"
            )
    if read_bool(values, "use_residual", default=False):
        raise UnsupportedModelError(f"{path} has use_residual=true, which is not supported: expected false")
    return {
        "head_transform": True,
        "head_activation": ACTIVATIONS[name.rpartition(".")[2]],
        "head_bias": read_bool(values, "bias", default=True),
        "head_width": read_int(values, "out_features"),
    }
