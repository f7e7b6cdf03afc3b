"""Read and write models: Glassformer's folders (safetensors and JSON with checksums) and other libraries' formats.

Folders are written atomically, and their checksums are verified when they are read.
"""

from typing import TYPE_CHECKING

from glassformer.checkpoint.output_folder import OutputExistsError, new_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, verify_folder

if TYPE_CHECKING:
    from glassformer.checkpoint.external_formats import load_model
    from glassformer.checkpoint.model_folder import save_model
else:
    from glassformer.base.lazy import lazy_names

    __getattr__ = lazy_names(__name__, {"model_folder": ["save_model"], "external_formats": ["load_model"]})

__all__ = ["CorruptFolderError", "OutputExistsError", "load_model", "new_folder", "save_model", "verify_folder"]
