"""How a model's decoding step is computed: plain, packed, int8, compiled, recorded as a CUDA graph.

`choose_runner.py` decides how the steps of a model are computed. Which token follows is decided in `decoding/`.
"""
