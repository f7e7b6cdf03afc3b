"""Compile a decoding step once and call the compiled code directly, without torch.compile's guards."""

import copy
import math
import operator
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import linear

from glassformer.runtime.compile_cache import separate_compile_cache

TESTED_TORCH = (2, 10), (2, 13)
"""The oldest and newest torch with which the cloned code objects below were tested."""


class CompiledStep:
    """A decoding step, compiled on its first call, that always reads and writes the same tensors.

    `compute` takes no arguments: it reads its inputs from tensors that it holds. To give it new inputs, the caller
    overwrites these tensors in place (`copy_`) before a call. Compiling takes about 6 s per layer.

    `torch.compile` checks before every call whether its assumptions (guards) still hold, which takes as long as one or
    two layers. This class skips the checks, so later calls do not notice changes: they use the tensors of the first
    call, parameters included, even if an attribute now holds another tensor; they run no Python side effects of
    `compute`, and ignore new global settings, such as another number of threads. After such a change make a new step.
    """

    def __init__(self, compute: Callable[[], Tensor], options: dict[str, bool]):
        self._compute, self._options = compute, options
        self._compiled_call: Callable[[], tuple[Tensor]] | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled yet, which the first call does."""
        return self._compiled_call is not None

    @staticmethod
    def _run(own: "CompiledStep") -> Tensor:
        return own._compute()

    def __call__(self) -> Tensor:
        """Run the step. The first call compiles it."""
        if self._compiled_call is None:
            separate_compile_cache()
            # torch caches compiled code per code object and evicts after a few entries, so give each step its own
            # copy of the code object. Its own globals, too, because torch stores references there that never go away.
            plain = FunctionType(self._run.__code__.replace(), dict(self._run.__globals__))
            first: Tensor = torch.compile(plain, backend=_backend(self), dynamic=False, fullgraph=True)(self)
            return first
        (found,) = self._compiled_call()
        return found


def options_for(device: torch.device) -> dict[str, bool]:
    """Return the compiler options for a step on this device."""
    if device.type == "cuda":
        return {"coordinate_descent_tuning": True}  # products of one row become fused reductions
    return {"cpp_wrapper": True}  # C++ instead of Python launches the kernels


def _backend(compiled: CompiledStep) -> Callable[..., Any]:
    """Return the `torch.compile` backend of a `CompiledStep`, a function that compiles the traced graph.

    When the compiled code runs for the first time, it is stored in the step, together with the tensors of that run.
    """
    owner, options = weakref.ref(compiled), compiled._options  # torch keeps every backend alive

    def compile_graph(graph: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        outputs: Any = graph.graph.output_node().args[0]
        if len(outputs) != 1:
            raise ValueError(f"the step returns {len(outputs)} tensors: expected the logits only, and no side effects")
        if any(x.is_cuda for x in examples if isinstance(x, Tensor)):
            split_bias_from_single_row_products(graph)
        kept = copy.deepcopy(graph)  # the compiler may modify its input
        try:
            made: Any = compile_fx(graph, examples, config_patches=options)
        except RuntimeError as error:
            # The C++ wrapper that torch before 2.13 generates sometimes does not compile. Use the Python wrapper then.
            if not options.get("cpp_wrapper") or "CppCompileError" not in str(error):
                raise
            made = compile_fx(kept, examples, config_patches={})

        def run(*tensors: Tensor) -> Any:
            own = owner()
            if own is not None:
                own._compiled_call = partial(made, *tensors)
            return made(*tensors)

        return run

    return compile_graph


def split_bias_from_single_row_products(graph: GraphModule) -> None:
    """Turn each `linear(x, weight, bias)` whose `x` has a single row into a product and an addition, in place.

    On a GPU torch fuses a single-row product with the operations after it, but not a product with a bias. Products
    whose result is split stay as they are, because each part would become a kernel of its own.
    """
    for node in graph.graph.find_nodes(op="call_function", target=linear):
        x, weight, bias = (*node.args, None, None)[:3]
        is_split = any(user.target in ("split", "chunk") for user in node.users)
        if bias is None or is_split or math.prod(node.meta["example_value"].shape[:-1]) != 1:
            continue
        with graph.graph.inserting_after(node):
            product = graph.graph.call_function(linear, (x, weight))
        with graph.graph.inserting_after(product):
            whole = graph.graph.call_function(operator.add, (product, bias))
        node.replace_all_uses_with(whole)
        graph.graph.erase_node(node)
    graph.recompile()
