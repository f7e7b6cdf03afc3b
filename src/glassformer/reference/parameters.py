"""Parameters by name, each with the gradient that a backward pass adds."""

from collections.abc import Mapping

import numpy as np

Array = np.ndarray


class Parameters:
    """Arrays by dotted name. `at("encoder.layers.0")` is a view of the parameters below that name."""

    def __init__(self, values: Mapping[str, Array], *, dtype: type = np.float64):
        self.values: dict[str, Array] = {name: np.asarray(value, dtype=dtype) for name, value in values.items()}
        self.grads: dict[str, Array] = {}
        self._prefix = ""

    def at(self, name: str) -> "Parameters":
        """Return a view of the parameters below `name`."""
        part = object.__new__(Parameters)
        part.values, part.grads, part._prefix = self.values, self.grads, f"{self._prefix}{name}."
        return part

    def __getitem__(self, name: str) -> Array:
        return self.values[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self.values

    def add_grad(self, name: str, grad: Array) -> None:
        """Add to a parameter's gradient. A tied parameter gets the sum over its uses."""
        full = self._prefix + name
        self.grads[full] = self.grads[full] + grad if full in self.grads else grad

    def clear_grads(self) -> None:
        """Clear the gradients before the next backward pass."""
        self.grads.clear()
