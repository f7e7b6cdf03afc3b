"""Where caches live: fetched files and compiled kernels."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for caches: $GLASSFORMER_CACHE, or `glassformer` in the user's cache folder.

    Raises OSError for a user without a home who sets neither $GLASSFORMER_CACHE nor $XDG_CACHE_HOME.
    """
    if own := os.environ.get("GLASSFORMER_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "glassformer"
    try:
        return Path.home() / ".cache" / "glassformer"
    except RuntimeError as error:
        raise OSError("there is no home folder to keep caches in: set GLASSFORMER_CACHE to a folder") from error
