"""Corpora that need no file of the user: downloaded by name, taken from Python itself, or generated."""
