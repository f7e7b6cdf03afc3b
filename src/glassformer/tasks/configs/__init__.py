"""Base classes, options and default values of the configs of all tasks. Imports no torch."""
