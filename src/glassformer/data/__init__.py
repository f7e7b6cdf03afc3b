"""Training data: readers of files, named corpora, and batches."""
