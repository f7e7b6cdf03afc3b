"""Training tasks, such as translation: a base class per architecture; per task a module with data, config and loss."""
