"""What the configs of all tasks share: base classes, options, default values. Imports no torch."""
