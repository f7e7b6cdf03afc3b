"""The folder of caches: downloaded files and compiled kernels."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: $GLASSFORMER_CACHE, or `glassformer` in the user's cache folder.

    Raises OSError if the user has no home folder and sets neither $GLASSFORMER_CACHE nor $XDG_CACHE_HOME.
    """
    if own := os.environ.get("GLASSFORMER_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "glassformer"
    try:
        return Path.home() / ".cache" / "glassformer"
    except RuntimeError as error:
        raise OSError("no home folder for caches: set GLASSFORMER_CACHE to a folder") from error
