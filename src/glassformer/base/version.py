"""The version of Glassformer, for the front door and for the packages below it that store it."""

__version__ = "0.1.0"
