"""Load a model of any supported format: Glassformer and Hugging Face folders, GGUF files and llama2.c files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.base.names import path_suggestion
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.gguf_file import read_gguf
from glassformer.checkpoint.hf import import_model
from glassformer.checkpoint.hf.extra_heads import skipped_heads_note, skipped_names
from glassformer.checkpoint.hf.folder import is_hf_folder, read_hf_folder
from glassformer.checkpoint.layout import READ_FILES
from glassformer.checkpoint.llama2c import read_llama2c
from glassformer.checkpoint.load_errors import naming_errors
from glassformer.checkpoint.safe_files import MANIFEST, CorruptFolderError, SealedFolder, read_json_object

if TYPE_CHECKING:
    import torch

    from glassformer.checkpoint.model_folder import WhenFilled
    from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig

ORIGIN = "origin.json"
_LOG = logging.getLogger(__name__)


def is_external(path: Path) -> bool:
    """Return whether `path` is in another library's format: any file, or a folder in Hugging Face's format.

    Only Hugging Face's config.json has a `model_type`; Glassformer's has none.
    """
    return path.is_file() or (path.is_dir() and is_hf_folder(path))


def read_origin(folder: Path) -> dict[str, Any] | None:
    """Return the contents of a folder's `origin.json`; None if the folder was not converted from another format.

    The file holds the original's HF model family (`model_type`) and special token ids.
    """
    if not (folder / MANIFEST).is_file():
        return None  # `load_model` refuses a folder of ours without one
    sealed = SealedFolder(folder)
    return read_json_object(sealed.file(ORIGIN)) if sealed.has(ORIGIN) else None


def read_external(path: Path, *, allow_pickle: bool = False) -> ExternalModel:
    """Open a model in another library's format. Its tensors are read only when they are accessed.

    `allow_pickle` permits weights in `pytorch_model.bin`, which torch's tensors-only unpickler reads.
    """
    if path.is_dir():
        return read_hf_folder(path, allow_pickle=allow_pickle)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder: {path_suggestion(path)}")
    with path.open("rb") as stream:
        is_gguf = stream.read(4) == b"GGUF"
    if is_gguf:
        return read_gguf(path)
    if path.suffix == ".bin":
        return read_llama2c(path)
    raise ValueError(f"{path}: expected a model folder, a GGUF file, or a llama2.c .bin file")


def load_model(
    path: Path | str,
    *,
    dtype: torch.dtype | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
    allow_pickle: bool = False,
    when_filled: WhenFilled | None = None,
    keep_quantized: bool = False,
    external: ExternalModel | None = None,
) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Load a model folder or file of any supported format, in eval mode, on the CPU.

    `path` may also be a name on the Hugging Face hub, if the model is in their download cache.

    The weights are read one tensor at a time and converted to `dtype` (default float32). `when_filled` is called with
    each module as soon as its weights have been read; it may, for example, quantize the module.

    Four options apply only to external models, that is, models in another library's format. `adapt` may change the
    config before the model is built, for example to replace its head. `allow_pickle` permits weights in
    `pytorch_model.bin`. `external` is the model as the caller has opened it; None opens it here. With
    `keep_quantized`, the quantized weights of a GGUF file stay as they are stored: such a model can be used, but not
    trained or saved.
    """
    import torch

    from glassformer.checkpoint.model_folder import load_model as load_own

    path = find_model(path)
    with naming_errors(path):
        if not is_external(path):
            return load_own(path, dtype=dtype or torch.float32, when_filled=when_filled)
        verify_seal(path)
        external = external or read_external(path, allow_pickle=allow_pickle)
        if keep_quantized:
            from glassformer.checkpoint.gguf_model import has_quantized_tensors, import_quantized

            if has_quantized_tensors(external):
                return import_quantized(external)
        model = import_model(external.config, external.tensors, dtype=dtype, adapt=adapt, when_filled=when_filled)
        note = skipped_heads_note(skipped_names(external, model.config))
        if note is not None:
            _LOG.warning("%s: %s", path, note)
        return model


def verify_seal(path: Path) -> None:
    """Raise CorruptFolderError if an HF folder that Glassformer wrote differs from the checksums in its manifest.

    A folder is not checked if it has no manifest, or if its manifest is unreadable or lacks Glassformer's checksums.
    """
    manifest = path / MANIFEST
    try:
        is_ours = manifest.is_file() and isinstance(read_json_object(manifest).get("sha256"), dict)
    except CorruptFolderError:
        return
    if is_ours:
        weights = [file.name for file in path.iterdir() if file.suffix in (".safetensors", ".bin")]
        try:
            sealed = SealedFolder(path)
            sealed.verify()
            sealed.check_listed((*READ_FILES, *weights))
        except CorruptFolderError as error:
            raise CorruptFolderError(f"{error}. If you changed the folder yourself, remove {manifest}") from error
