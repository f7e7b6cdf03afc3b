"""Helpers without torch that every package may use: value checks, suggestions for misspelled names, lazy imports."""
