"""A model's parameters by name, and the gradients that a backward pass adds up."""

from collections.abc import Mapping

import numpy as np

Array = np.ndarray


class Parameters:
    """Parameters by dotted name, and their gradients.

    `at("encoder.layers.0")` returns a view whose names are relative to that prefix.
    """

    def __init__(self, values: Mapping[str, Array], *, dtype: type = np.float64):
        self.values: dict[str, Array] = {name: np.asarray(value, dtype=dtype) for name, value in values.items()}
        self.grads: dict[str, Array] = {}
        self._prefix = ""

    def at(self, name: str) -> "Parameters":
        """Return a view of the parameters whose names start with `name` and a dot. It shares values and gradients."""
        part = object.__new__(Parameters)
        part.values, part.grads, part._prefix = self.values, self.grads, f"{self._prefix}{name}."
        return part

    def __getitem__(self, name: str) -> Array:
        return self.values[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self.values

    def add_grad(self, name: str, grad: Array) -> None:
        """Add `grad` to the gradient of the parameter `name`. A tied parameter gets the sum over its uses."""
        full = self._prefix + name
        self.grads[full] = self.grads[full] + grad if full in self.grads else grad

    def clear_grads(self) -> None:
        """Remove all gradients, before the next backward pass."""
        self.grads.clear()
