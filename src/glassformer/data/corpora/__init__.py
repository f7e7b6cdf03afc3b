"""Corpora that users select by name: downloaded, read from a folder, taken from Python's own files, or generated."""
