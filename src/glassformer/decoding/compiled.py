"""A computation compiled when it is first made, and played from then on without a question."""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor


class Compiled:
    """What reads and writes the same places each time. To compile a model's step takes half a minute.

    `torch.compile` asks before each run whether everything is as it was, which for a model takes as long as a layer or
    two. Here nothing can have changed but the numbers in these places, so that what it made is called directly.
    """

    def __init__(self, compute: Callable[[], Tensor], options: dict[str, bool]):
        self._compute, self._options = compute, options
        self._play: Callable[[], tuple[Tensor]] | None = None

    @staticmethod
    def _compute_plainly(own: "Compiled") -> Tensor:
        return own._compute()

    def __call__(self) -> Tensor:
        """Compute it."""
        if self._play is None:
            # With code of its own, for torch keeps what it makes by the code it was made of, and few of each.
            code = self._compute_plainly.__code__.replace()
            plain = FunctionType(code, self._compute_plainly.__globals__)
            first: Tensor = torch.compile(plain, backend=self._compile, dynamic=False, fullgraph=True)(self)
            return first
        (found,) = self._play()
        return found

    def _compile(self, graph: Any, examples: Any) -> Callable[..., Any]:
        """What torch asks of a backend. Of what it is called with, it learns where the places are."""
        from torch._inductor.compile_fx import compile_fx

        made: Any = compile_fx(graph, examples, config_patches=self._options)

        def run(*places: Tensor) -> tuple[Tensor]:
            self._play = partial(made, *places)
            return made(*places)

        return run
