"""Models on disk: safetensors and JSON, written so that a crash loses nothing, read so that nothing is trusted."""

from glassformer.checkpoint.model_folder import save_model
from glassformer.checkpoint.output_folder import OutputExistsError, new_folder
from glassformer.checkpoint.pretrained import load_model
from glassformer.checkpoint.safe_files import CorruptFolderError, verify_folder

__all__ = ["CorruptFolderError", "OutputExistsError", "load_model", "new_folder", "save_model", "verify_folder"]
