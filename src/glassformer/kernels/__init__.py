"""Single tensor operations with fast implementations: C++ for CPUs, Triton for GPUs.

`registry.py` picks an implementation; each one has a plain torch equivalent and a test against it.
"""
