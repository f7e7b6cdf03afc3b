"""From token ids to batches: token files on disk, the order of the examples, padding, packing and noise."""
