"""Benchmarks: the decoding speed of Glassformer and of other libraries with the same weights, on this machine."""
