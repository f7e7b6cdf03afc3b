"""Make batches of token ids: token files on disk, the order of the examples, padding, packing and noise."""
