"""A computation compiled when it is first made, and played from then on without a question."""

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


class Compiled:
    """What reads and writes the same tensors each time. To compile a step takes about six seconds a layer.

    `torch.compile` asks before each run whether everything is as it was, which for a model takes as long as a layer or
    two. Here the tensors of the first run, parameters among them, are those of all others; what Python does besides is
    not done again, and settings that change later, such as the number of threads, do not count.
    """

    def __init__(self, compute: Callable[[], Tensor], options: dict[str, bool]):
        self._compute, self._options = compute, options
        self._play: Callable[[], tuple[Tensor]] | None = None

    @property
    def is_made(self) -> bool:
        """Whether it was computed before."""
        return self._play is not None

    @staticmethod
    def _compute_plainly(own: "Compiled") -> Tensor:
        return own._compute()

    def __call__(self) -> Tensor:
        """Compute it."""
        if self._play is None:
            separate_compile_cache()
            # With code of its own, for torch keeps what it makes by the code it was made of, and few of each; and with
            # names of its own, for torch leaves there what would hold all of this forever.
            plain = FunctionType(self._compute_plainly.__code__.replace(), dict(self._compute_plainly.__globals__))
            first: Tensor = torch.compile(plain, backend=_backend(self), dynamic=False, fullgraph=True)(self)
            return first
        (found,) = self._play()
        return found


def options_for(device: torch.device) -> dict[str, bool]:
    """How to compile a step for a device."""
    if device.type == "cuda":
        return {"coordinate_descent_tuning": True}  # products of one row become sums in kernels of their own
    return {"cpp_wrapper": True}  # C++ calls the kernels


def _backend(compiled: Compiled) -> Callable[..., Any]:
    """What torch hands the traced computation to. When that is run, it is learned which tensors it is about."""
    owner, options = weakref.ref(compiled), compiled._options  # torch keeps every backend it has seen

    def compile_graph(graph: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        outputs: Any = graph.graph.output_node().args[0]
        if len(outputs) != 1:
            raise ValueError(f"the step gives {len(outputs)} tensors: expected scores alone, and nothing kept besides")
        if any(x.is_cuda for x in examples if isinstance(x, Tensor)):
            add_apart(graph)
        kept = copy.deepcopy(graph)  # the compiler may change what it gets
        try:
            made: Any = compile_fx(graph, examples, config_patches=options)
        except RuntimeError as error:
            # What torch before 2.13 writes in C++ sometimes does not compile; then Python calls the kernels.
            if not options.get("cpp_wrapper") or "CppCompileError" not in str(error):
                raise
            made = compile_fx(kept, examples, config_patches={})

        def run(*tensors: Tensor) -> Any:
            own = owner()
            if own is not None:
                own._play = partial(made, *tensors)
            return made(*tensors)

        return run

    return compile_graph


def add_apart(graph: GraphModule) -> None:
    """Where a product has one row, add its bias behind it: on a GPU torch makes a kernel of such a product and of what
    follows, but not where something is added at once.

    What is split afterwards stays as it is: each part would become a kernel.
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
