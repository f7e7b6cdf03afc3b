"""The source code that each view of the explorer shows beside its formula."""

import ast
from functools import cache
from importlib.resources import files
from typing import TypedDict

EXCERPTS = {
    "flow": ("nn/layers.py", "Sublayer"),
    "tokenization": ("text/tokenizer.py", "Tokenizer.encode"),
    "attention": ("nn/attention_backends.py", "attention_weights"),
    "head": ("nn/attention_backends.py", "masked_softmax"),
    "sinusoidal": ("nn/positions.py", "sinusoids"),
    "learned": ("nn/positions.py", "LearnedPositions"),
    "rotary": ("nn/positions.py", "Rotary"),
    "relative": ("nn/positions.py", "RelativeBias"),
    "alibi": ("nn/positions.py", "Alibi"),
    "disentangled": ("nn/disentangled_positions.py", "DisentangledPositions"),
    "next": ("decoding/sampling.py", "filter_top_p"),
    "beam": ("decoding/beam.py", "beam_steps"),
    "lens": ("inspect/lens.py", "describe_lens"),
    "why": ("inspect/attribution.py", "integrated_scores"),
    "ablation": ("inspect/ablation.py", "ablate"),
    "learning": ("inspect/learning.py", "describe_learning"),
    "health": ("inspect/health.py", "check_health"),
}
"""For each view (the view of positions has one entry per kind of positions): a source file and a name in it."""
MOST_LINES = 70
"""A longer class or function is cut after this many lines."""


class Excerpt(TypedDict):
    """A piece of source code: the file, the name of the function or class, its first line and its text."""

    file: str
    name: str
    line: int
    code: str


@cache
def code_excerpts() -> dict[str, Excerpt]:
    """Return the excerpt of each view in `EXCERPTS`."""
    return {view: excerpt(file, name) for view, (file, name) in EXCERPTS.items()}


def excerpt(file: str, name: str) -> Excerpt:
    """Return the source code of the function, method or class `name` of the package's file `file`.

    Raises LookupError if the file does not define it.
    """
    text = files("glassformer").joinpath(*file.split("/")).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = _definition(node, part, file)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], "    ..."]
    return {"file": f"src/glassformer/{file}", "name": name, "line": node.lineno, "code": "\n".join(lines)}


def _definition(node: ast.AST, name: str, file: str) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name:
            return child
    raise LookupError(f"{file} does not define {name}")
