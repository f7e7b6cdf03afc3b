"""Readers of data files. Every error names the file and the line."""
