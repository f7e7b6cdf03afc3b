"""Readers of data files. Errors about a record name its file and line."""
