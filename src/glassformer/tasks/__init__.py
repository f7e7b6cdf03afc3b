"""How models are trained: a base class per architecture, and one file per task with its data, config and loss."""
