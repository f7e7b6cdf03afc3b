"""Pickling of weights that are packed for the vector instructions of this CPU."""

from typing import Any

from glassformer.kernels.kernel_registry import cpp_kernels


class PackedForCPU:
    """Base class of objects that hold packed weights and a C++ function, in `_linear`, that computes with them.

    The function cannot be pickled, so it is looked up again. The layout of the weights depends on the CPU: a pickle
    from a CPU with other instructions is refused.
    """

    _linear: Any

    def _find_function(self) -> None:
        """Set `_linear`."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_linear"}
        return {**state, "packed_for": cpp_kernels().instruction_set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed_for, here = state["packed_for"], cpp_kernels().instruction_set()
        if packed_for != here:
            raise RuntimeError(
                f"the quantized weights were pickled on a CPU with {packed_for} instructions: expected {here}, as "
                "here. Load the model from its folder instead"
            )
        self.__dict__.update({name: value for name, value in state.items() if name != "packed_for"})
        self._find_function()
