"""Check where an explanation may be written: to a new file, or over one that holds an explanation already."""

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from glassformer.checkpoint.layout import CONFIG
from glassformer.checkpoint.output_folder import OutputExistsError

MODEL_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "task.json")
"""A folder with a config.json and one of these is a model folder. Many other folders have a config.json, too."""
START_BYTES = 4096
"""Number of bytes at the start of a file that are compared."""


class OutputKind(NamedTuple):
    """A kind of file that holds an explanation."""

    name: str
    """Name of the kind in errors."""
    start: re.Pattern[bytes]
    """Matches the start of every such file."""


PAGE = OutputKind(
    "a page of glassformer explain",
    re.compile(rb"<!doctype html>\r?\n<html.{0,1500}<title>Glassformer explorer</title>\r?\n<style>", re.DOTALL),
)
NUMBERS = OutputKind(
    "the numbers of glassformer explain",
    re.compile(rb'\{"version":\d+,"model":\{"name":"(?:[^"\\]|\\.){0,1500}","family":"'),
)


def check_explanation_file(path: Path, kind: OutputKind, *, overwrite: bool = False) -> None:
    """Raise OutputExistsError unless an explanation may be written to `path`.

    This is allowed if `path` is missing, or is a file of this `kind` already. With `overwrite` it may be any regular
    file. Links, folders and devices are never replaced, and nothing is written into a model folder.
    """
    folder = next(filter(_is_model_folder, path.absolute().parents[:2]), None)  # a manifest lists files of folders, too
    if folder is not None:
        raise OutputExistsError(
            f"{path} is inside the model folder {folder}: expected a file outside of it. Choose another folder"
        )
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # the write will name what is missing
        return
    if not stat.S_ISREG(mode):
        raise OutputExistsError(
            f"{path} exists and is a link, a folder or a device: it is never replaced. Choose another name"
        )
    if overwrite:
        return
    with path.open("rb") as stream:
        start = stream.read(START_BYTES)
    if not kind.start.match(start):
        raise OutputExistsError(f"{path} exists and is not {kind.name}: it is not replaced. Choose another name")


def _is_model_folder(folder: Path) -> bool:
    return os.path.lexists(folder / CONFIG) and any(os.path.lexists(folder / name) for name in MODEL_FILES)
