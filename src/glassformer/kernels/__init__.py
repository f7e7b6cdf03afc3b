"""Fast implementations of single operations of a decoding step: in C++ for CPUs, in Triton for GPUs.

`kernel_registry.py` picks an implementation. `kernel_set.py` describes the operations and has them in plain torch.
"""
