"""The version of Glassformer. Packages import it from here, because none imports from `glassformer/__init__.py`."""

__version__ = "0.1.0"
