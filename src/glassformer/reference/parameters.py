"""The learned numbers of a model by name, and next to each the gradient that a backward pass leaves for it."""

from collections.abc import Mapping

import numpy as np

Array = np.ndarray


class Parameters:
    """Arrays under dotted names. `at("encoder.layers.0")` is the part below that name; all parts share one store."""

    def __init__(self, values: Mapping[str, Array], *, dtype: type = np.float64):
        self.values: dict[str, Array] = {name: np.asarray(value, dtype=dtype) for name, value in values.items()}
        self.grads: dict[str, Array] = {}
        self._prefix = ""

    def at(self, name: str) -> "Parameters":
        """The parameters below `name`."""
        part = object.__new__(Parameters)
        part.values, part.grads, part._prefix = self.values, self.grads, f"{self._prefix}{name}."
        return part

    def __getitem__(self, name: str) -> Array:
        return self.values[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self.values

    def add_grad(self, name: str, grad: Array) -> None:
        """Add to a parameter's gradient.

        A parameter used twice gets the sum of both uses: that is all that tying means.
        """
        full = self._prefix + name
        self.grads[full] = self.grads[full] + grad if full in self.grads else grad

    def clear_grads(self) -> None:
        """Forget the gradients before the next backward pass."""
        self.grads.clear()
