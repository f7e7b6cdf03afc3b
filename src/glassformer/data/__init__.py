"""Training data: readers of data files, corpora that users select by name, and batches."""
