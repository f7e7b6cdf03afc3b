"""One file a task: how to read its data, train it, score it, run it."""
