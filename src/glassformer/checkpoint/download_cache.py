"""Find a model of the Hugging Face hub, such as `org/name`, among the files that other tools have downloaded.

Nothing is ever downloaded here. The cache has a folder `models--ORG--NAME` for each model. Its `refs/main` names the
newest downloaded commit, and `snapshots/COMMIT` holds that commit's files, as links into `blobs`.
"""

import os
import re
from pathlib import Path

from glassformer.base.names import no_such_model

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""The form of a model's name on the hub."""
FILE_ENDINGS = (".gguf", ".bin")
"""Endings of model files. A name that ends so is a path."""


def find_model(path: Path | str) -> Path:
    """Return the path of a model: `path` itself, or the newest snapshot in the cache if `path` is a name on the hub.

    An existing path comes first. For a sentence-transformers folder whose encoder has a folder inside it, the result is
    that folder. Raises FileNotFoundError if a name such as `org/name` is neither an existing path nor
    in the cache; the message has the command that downloads it.
    """
    path = Path(path)
    if (path / "modules.json").is_file():
        from glassformer.checkpoint.hf.sentence_folder import encoder_folder

        return encoder_folder(path)
    name = str(path)
    if path.exists() or not HUB_NAME.fullmatch(name) or path.suffix.lower() in FILE_ENDINGS:
        return path
    snapshot = cached_snapshot(name)
    if snapshot is not None:
        return find_model(snapshot)
    if path.parent.is_dir():  # the user means a folder here
        raise FileNotFoundError(no_such_model(path))
    raise FileNotFoundError(
        f"{name}: no such model folder, and Hugging Face's cache {cache_folder()} does not hold it: check the name, or "
        f"download it with: hf download {name}"
    )


def cached_snapshot(name: str) -> Path | None:
    """Return the folder of a model's newest snapshot in Hugging Face's cache; None if the cache does not have it.

    `name` is the model's name on the hub. Without `refs/main`, the only snapshot is taken.
    """
    repository = cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        found = [folder for folder in (repository / "snapshots").glob("*") if folder.is_dir()]
        return found[0] if len(found) == 1 else None
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def cache_folder() -> Path:
    """Return the folder of Hugging Face's cache, by the same environment variables that their tools read."""
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / below
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return home / "huggingface" / "hub"
