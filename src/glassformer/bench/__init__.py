"""Decoding speed of Glassformer and other libraries on this machine."""
