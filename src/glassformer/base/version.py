"""The version of Glassformer, in a module that every package may import (none imports from `glassformer` itself)."""

__version__ = "0.1.0"
