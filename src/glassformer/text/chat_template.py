"""Compile chat templates, which are untrusted programs, after rewriting them to check their limits.

The language is Jinja as model folders use it. Jinja itself reports function calls to the sandbox (`chat_sandbox.py`),
which checks them. The rewriting turns other operations into calls of the sandbox, so that they are checked too: loop
iterations, literal text, concatenation, lists and comparisons.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

from glassformer.text.chat_bounds import TEXT_METHODS
from glassformer.text.chat_sandbox import Sandbox

MAX_SOURCE = 100_000
"""Maximum length of a template in characters. The longest in use have about 20,000."""
MAX_REASON = 2_000
"""Maximum length of a template's error message in characters."""
MAX_NODES = 6_000
"""Maximum number of syntax nodes in a template; more would take long to compile."""

_REFUSED = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block, nodes.EvalContextModifier)
_PRINTING_FILTERS = frozenset({"d", "default", "join"})
"""Filters that may print their arguments. Other filters only search for their arguments or compare with them."""


class ChatTemplate:
    """A compiled chat template.

    `rename` maps texts to replacements. Where the template itself writes such a text, the replacement is printed
    instead. If two of the texts match at the same place, the earlier entry is used. Texts that the template only
    compares with are unchanged.
    """

    def __init__(self, source: str, rename: Mapping[str, str] | None = None):
        if len(source) > MAX_SOURCE:
            raise ValueError(f"the chat template has {len(source)} characters: expected at most {MAX_SOURCE}")
        self._sandbox = Sandbox()
        try:
            program = self._sandbox.parse(source)
            if (size := sum(1 for _ in program.find_all(nodes.Node))) > MAX_NODES:
                raise SecurityError(f"it has {size} parts: expected at most {MAX_NODES}")
            self._template = self._sandbox.from_string(_Rewriter(rename or {}).visit(program))
        except Exception as error:  # also errors of Python's compiler
            raise ValueError(f"the chat template cannot be read: {_reason(error)}") from error

    def render(self, variables: Mapping[str, Any], now: datetime | None = None) -> str:
        """Return the rendered text. `variables` hold plain values: texts, numbers, lists and dictionaries.

        `now` is the time that the template sees, by default the current time. Raises ValueError if the template fails
        or exceeds a limit.
        """
        self._sandbox.budget.start(now or datetime.now())
        try:
            return "".join(self._template.generate(**variables))
        except Exception as error:  # a template may raise anything
            raise ValueError(f"the chat template failed: {_reason(error)}") from error


class _Rewriter(NodeTransformer):
    """Inserts limit checks into a template's syntax tree, and replaces the texts in `rename` where they are printed."""

    def __init__(self, rename: Mapping[str, str]):
        self._rename = rename
        self._renamed = re.compile("|".join(map(re.escape, rename)) or "(?!)")
        self._comparing = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, _REFUSED):
            raise SecurityError(f"line {node.lineno}: {type(node).__name__.lower()} has no place in a chat template")
        return super().visit(node, *args, **kwargs)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        # As a constant it is printed and counted like every other value.
        return self.visit_Const(nodes.Const(node.data, lineno=node.lineno))

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if isinstance(node.value, str) and not self._comparing:
            node.value = self._renamed.sub(lambda found: self._rename[found[0]], node.value)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.test is not None:
            node.test = _ask("ticked", node.test)
        return _ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return _ticking(self.generic_visit(node))

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask("joined", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _ask("checked", self.generic_visit(node))

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask("checked", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        node.arg = self._compare(node.arg)
        return _ask("ticked", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        node.expr = self._compare(node.expr)
        node.ops = [self._compare(operand) for operand in node.ops]
        return _ask("ticked", node)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        # A text's method only compares with its arguments. A macro prints its arguments, and so do `format` and `join`
        # of a text that is written in the template.
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        is_own = isinstance(node.node, nodes.Getattr) and isinstance(node.node.node, nodes.Const)
        prints = method not in TEXT_METHODS or (is_own and method in ("format", "join"))
        return self._arguments(node, self.visit if prints else self._compare)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        if node.node is not None:
            node.node = self.visit(node.node)
        return self._arguments(node, self.visit if node.name in _PRINTING_FILTERS else self._compare)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        return self._arguments(node, self._compare)

    def _arguments(self, node: Any, visit: Callable[[nodes.Node], Any]) -> nodes.Node:
        node.args = [visit(argument) for argument in node.args]
        node.kwargs = [visit(argument) for argument in node.kwargs]
        node.dyn_args = node.dyn_args and visit(node.dyn_args)
        node.dyn_kwargs = node.dyn_kwargs and visit(node.dyn_kwargs)
        return node

    def _compare(self, node: nodes.Node) -> Any:
        self._comparing += 1
        try:
            return self.visit(node)
        finally:
            self._comparing -= 1


def _reason(error: Exception) -> str:
    """Return an error's message, cut to MAX_REASON characters, because it may quote a text of any length."""
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."


def _ask(method: str, *arguments: Any) -> nodes.Expr:
    """Return a syntax node that calls a method of the sandbox. No name in a template can shadow it."""
    lineno = arguments[0].lineno if arguments else 0
    return nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None, lineno=lineno)


def _ticking(node: Any) -> nodes.Node:
    """Insert a time check at the start of the body of a loop or macro, and return the node."""
    nothing = nodes.Const(None, lineno=node.lineno)
    node.body.insert(0, nodes.ExprStmt(_ask("ticked", nothing), lineno=node.lineno))
    return node
