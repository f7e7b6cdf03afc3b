"""The location of the cache folder, which holds downloaded files and compiled kernels."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $GLASSFORMER_CACHE, or else the folder `glassformer` in $XDG_CACHE_HOME or in `~/.cache`.

    Raises OSError if neither variable is set and the user has no home folder.
    """
    if own := os.environ.get("GLASSFORMER_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "glassformer"
    try:
        return Path.home() / ".cache" / "glassformer"
    except RuntimeError as error:
        raise OSError("no home folder for caches: set GLASSFORMER_CACHE to a folder") from error
