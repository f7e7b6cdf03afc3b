"""How a model's decoding step is computed: plain, packed, int8, compiled, recorded as a CUDA graph.

`choose_runner.py` decides which of them is used. This package knows nothing of search.
"""
