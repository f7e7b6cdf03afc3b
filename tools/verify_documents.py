"""Compare the code in the five tutorial documents that this project implements with `glassformer.documents`.

`make verify-documents DOCUMENTS=folder` runs it. The folder holds the five texts, named 000* to 004*. Their Python
blocks are executed. Each definition is compared with the one in `glassformer.documents.document_NNN` ("ours"): its
name, its parameters with their defaults, and what it returns with the same weights. Two things are changed first:

- Document 003's blocks compute attention before the norm that their text puts first. They are repaired to call it
  inside the residual.
- Packages that a block imports and that are not installed are replaced by stand-ins.
"""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import torch
from torch import nn

from glassformer.documents import document_002, document_004, load_document_weights

DOCUMENTS = ("000", "001", "002", "003", "004")
STAND_INS = ("GPUtil", "altair", "matplotlib", "matplotlib.pyplot", "pandas", "seaborn", "spacy")
REPAIR = (
    r"(\w+), _ = self\.(self|cross)_attention\(([^)]*)\)\n\s*x = self\.(residual\d)\(x, lambda x: \1\)",
    r"x = self.\4(x, lambda x: self.\2_attention(\3)[0])",
)
REPAIRS = {"003": 3}
"""How many places REPAIR must change in each document; 0 in documents that are not listed."""

torch.manual_seed(0)
X, Y = torch.randn(2, 9, 16), torch.randn(2, 11, 16)
HEADS = torch.randn(2, 4, 9, 4)
KEEP, KEEP_TARGET = torch.ones(2, 11, dtype=torch.bool), torch.ones(2, 9, dtype=torch.bool)
KEEP[1, 8:], KEEP_TARGET[0, 7:] = False, False
SOURCE, TARGET = torch.randint(0, 100, (2, 11)), torch.randint(0, 100, (2, 9))
SRC_MASK, CAUSAL = KEEP[:, None, None, :], torch.ones(9, 9).tril().expand(2, 1, 9, 9)
MEMORY = torch.randn(2, 11, 512)
WIDE = np.random.default_rng(0).standard_normal((2, 5, 16))
NARROW = [np.random.default_rng(1).standard_normal(shape) for shape in ((2, 5, 4), (4, 8), (8,), (8, 4), (4,))]


@dataclass
class Case:
    """How a definition is tested: the constructor's arguments, and for each method the arguments of its calls."""

    build: tuple[Any, ...] = ()
    calls: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    make: Callable[[type, Any], Any] | None = None
    """Makes the document's object from its class and our object, if the document shows no constructor."""


def once(*arguments: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return the `calls` of a case that calls `forward` once with these arguments."""
    return {"forward": [arguments]}


def parts_of_002(*names: str) -> Callable[[type, Any], Any]:
    """Return a `Case.make` that adds the attributes used by `forward`, the only method that document 002 shows."""

    def make(kind: type, ours: Any) -> Any:
        theirs = kind()
        for name in names:
            setattr(theirs, name, document_002.MultiHeadAttention(16, 4, 0.1))
        theirs.feed_forward_block = document_002.FeedForwardBlock(16, 20, 0.1)
        residuals = [document_002.ResidualConnection(16, 0.1) for _ in range(len(names) + 1)]
        theirs.residual_connections = nn.ModuleList(residuals)
        return theirs

    return make


PAPER = {
    "PositionalEncoding": Case((16, 0.1), once(X)),
    "MultiHeadAttention": Case(
        (16, 4),
        {
            "scaled_dot_product_attention": [(HEADS, HEADS, HEADS), (HEADS, HEADS, HEADS, CAUSAL)],
            "forward": [(X, X, X), (X, Y, Y, SRC_MASK), (X, X, X, CAUSAL)],
        },
    ),
    "FeedForward": Case((16,), once(X)),
    "EncoderLayer": Case((16, 4), {"forward": [(Y,), (Y, SRC_MASK)]}),
    "DecoderLayer": Case((16, 4), {"forward": [(X, Y, SRC_MASK, CAUSAL), (X, Y, None, None)]}),
    "Transformer": Case(
        (100, 100, 512, 8, 2), {"forward": [(SOURCE, TARGET), (SOURCE, TARGET, SRC_MASK.float(), CAUSAL)]}
    ),
    "test_transformer": Case(calls={"": [()]}),
}
CASES: dict[str, dict[str, Case]] = {
    "000": PAPER,
    "001": PAPER,
    "002": {
        "InputEmbedding": Case((16, 100), once(SOURCE)),
        "FeedForwardBlock": Case((16, 20, 0.1), once(X)),
        "EncoderLayer": Case((16, 4, 20, 0.1), once(Y, SRC_MASK), parts_of_002("self_attention_block")),
        "DecoderBlock": Case(
            (16, 4, 20, 0.1),
            once(X, Y, SRC_MASK, CAUSAL),
            parts_of_002("self_attention_block", "cross_attention_block"),
        ),
        "ProjectionLayer": Case((16, 100), once(X)),
        "build_transformer": Case(calls={"": [(20, 25, 9, 7, 16, 2, 4, 0.1, 24)]}),
    },
    "003": {
        "TokenEmbedding": Case((100, 16), once(SOURCE)),
        "PositionalEncoding": Case((16,), once(X)),
        "visualize_positional_encoding": Case(calls={"": [()]}),
        "MultiHeadAttention": Case(
            (16, 4),
            {
                "split_heads": [(X,)],
                "merge_heads": [(HEADS,)],
                "scaled_dot_product_attention": [(HEADS, HEADS, HEADS), (HEADS, HEADS, HEADS, CAUSAL)],
                "forward": [(X, X, X), (X, Y, Y, SRC_MASK), (X, X, X, CAUSAL)],
            },
        ),
        "visualize_attention": Case(calls={"": [(torch.rand(1, 2, 3, 3), ["a", "b", "c"])]}),
        "PositionWiseFeedForward": Case((16, 20), once(X)),
        "LayerNormalization": Case((16,), once(X)),
        "ResidualConnection": Case((16,), once(X, torch.sin)),
        "EncoderBlock": Case((16, 4, 20), {"forward": [(Y,), (Y, SRC_MASK)]}),
        "DecoderBlock": Case((16, 4, 20), {"forward": [(X, Y), (X, Y, SRC_MASK, CAUSAL)]}),
        "Encoder": Case((16, 4, 20, 2), {"forward": [(Y,), (Y, SRC_MASK)]}),
        "Decoder": Case((16, 4, 20, 2), {"forward": [(X, Y), (X, Y, SRC_MASK, CAUSAL)]}),
        "Transformer": Case(
            (100, 100),
            {
                "encode": [(SOURCE,), (SOURCE, SRC_MASK)],
                "decode": [(TARGET, MEMORY), (TARGET, MEMORY, SRC_MASK, CAUSAL)],
                "forward": [(SOURCE, TARGET), (SOURCE, TARGET, SRC_MASK, CAUSAL)],
            },
        ),
        "BERTModel": Case((30522,), {"forward": [(SOURCE,), (SOURCE, KEEP)]}),
        "GPTModel": Case((50257,), {"generate_causal_mask": [(7,)], "forward": [(SOURCE,), (SOURCE, KEEP)]}),
        "T5Model": Case((32128,), {"forward": [(SOURCE, TARGET), (SOURCE, TARGET, KEEP, KEEP_TARGET)]}),
    },
    "004": {
        "simple_tokenizer": Case(calls={"": [("Hello Transformer world",)]}),
        "create_embeddings": Case(calls={"": [(5, 8)]}),
        "get_token_embeddings": Case(calls={"": [(["b", "a", "b"], {"a": 0, "b": 1}, np.arange(6.0).reshape(2, 3))]}),
        "positional_encoding": Case(calls={"": [(7, 8), (7, 5)]}),
        "softmax": Case(calls={"": [(np.array([0.5, -1.0, 3.0]),)]}),
        "split_heads": Case(calls={"": [(WIDE, 4)]}),
        "combine_heads": Case(calls={"": [(WIDE[:, None],)]}),
        "layer_norm": Case(calls={"": [(WIDE,), (WIDE, 1e-3)]}),
        "relu": Case(calls={"": [(WIDE,)]}),
        "feed_forward": Case(calls={"": [tuple(NARROW)]}),
        "feed_forward_with_residual": Case(calls={"": [tuple(NARROW)]}),
        "EncoderLayer": Case((16, 4, 20), once(WIDE)),
        "TransformerEncoder": Case((2, 16, 4, 20), once(WIDE)),
    },
}
AS_ARRAYS = {("004", "softmax")}
"""Functions that a document defines twice, first returning a list and later an array; ours returns the array."""


def names_given(number: str) -> dict[str, Any]:
    """Return the variables that a document's blocks use but neither define nor import."""
    if number == "002":
        given = ("PositionalEncoding", "Transformer")
        return {"torch": torch, "nn": nn, "math": math} | {name: getattr(document_002, name) for name in given}
    if number == "004":
        generator = np.random.default_rng(2)
        matrices = {name: generator.standard_normal((8, 4)) for name in ("Wq", "Wk", "Wv")}
        given = ("MultiHeadAttention", "AddNorm", "FeedForward")
        classes = {name: getattr(document_004, name) for name in given}
        return {**matrices, **classes, "attention_output": generator.standard_normal((2, 5, 4))}
    return {}


class Report:
    """Counts the comparisons of a document, by kind, and prints each one that found a difference."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("blocks", "shell", "definitions", "signatures", "results", "bad"), 0)
        self.largest = 0.0

    def note(self, kind: str, title: str, problem: str | None) -> None:
        """Count one comparison, and print `problem`, the difference that it found; None if it found none."""
        self.counts[kind] += 1
        if problem is not None:
            self.counts["bad"] += 1
            print(f"BAD {title}: {problem}")

    def __str__(self) -> str:
        said = "{blocks} Python blocks run ({shell} of shell commands left out), {definitions} definitions, "
        said += "{signatures} signatures and {results} results compared, {bad} differ; "
        return said.format(**self.counts) + f"largest difference {self.largest:.1e}"


def main() -> int:
    """Compare all five documents and print the counts. Return the exit code: 0 if everything agrees."""
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if folder is None or not folder.is_dir():
        print(f"DOCUMENTS={sys.argv[1:]}: expected a folder with the five texts, named 000* to 004*")
        return 2
    totals = Report()
    for number in DOCUMENTS:
        paths = sorted(folder.glob(f"{number}*"))
        if len(paths) != 1:
            print(f"{folder} has {len(paths)} files named {number}*: expected one")
            return 2
        report = verify(number, paths[0].read_text(encoding="utf-8"))
        print(f"document {number}: {report}")
        for name, count in report.counts.items():
            totals.counts[name] += count
        totals.largest = max(totals.largest, report.largest)
    print(f"together: {totals}")
    return 1 if totals.counts["bad"] else 0


def verify(number: str, text: str) -> Report:
    """Execute the Python blocks of document `number` in order, and compare each definition with ours."""
    report = Report()
    ours = importlib.import_module(f"glassformer.documents.document_{number}")
    text, repairs = re.subn(*REPAIR, text)
    if repairs != REPAIRS.get(number, 0):
        report.note("blocks", number, f"{repairs} places were repaired: expected {REPAIRS.get(number, 0)}")
    names = names_given(number)
    seen: set[str] = set()
    with stand_ins(), in_new_folder():
        for code in re.findall(r"```python\n(.*?)```", text, re.S):
            if code.startswith("%%"):
                report.counts["shell"] += 1
                continue
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, f"document {number}", "exec"), names)
            report.counts["blocks"] += 1
            for node in ast.parse(code).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    seen.add(node.name)
                    report.counts["definitions"] += 1
                    compare(number, node, names, ours, report)
    for name in sorted(set(CASES[number]) - seen):
        report.note("definitions", f"{number} {name}", "the document doesn't define it")
    return report


def compare(
    number: str, node: ast.ClassDef | ast.FunctionDef, names: dict[str, Any], ours: Any, report: Report
) -> None:
    """Compare a class or function of a document (`node`, executed in `names`) with the one in our module `ours`."""
    title, theirs, case = f"{number} {node.name}", names[node.name], CASES[number].get(node.name)
    if case is None or not hasattr(ours, node.name):
        report.note("results", title, "not compared: expected a case here, and the name in ours")
        return
    mine = getattr(ours, node.name)
    if isinstance(node, ast.FunctionDef):
        report.note("signatures", title, signature_problem(theirs, mine))
        if node.name == "build_transformer":  # its body ends in a name that the document leaves open
            names["transformer"] = mine(*case.calls[""][0])
        for arguments in case.calls[""]:
            compare_calls(title, (number, node.name), theirs, mine, arguments, report)
        if node.name == "test_transformer":
            compare_outputs(title, theirs, names, ours, report)
        return
    methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
    for method in methods:
        problem = "ours has no such method" if not hasattr(mine, method) else None
        problem = problem or signature_problem(getattr(theirs, method), getattr(mine, method))
        report.note("signatures", f"{title}.{method}", problem)
        if method != "__init__" and method not in case.calls:
            report.note("results", f"{title}.{method}", "not called: expected a case here")
    own = mine(*case.build)
    their = case.make(theirs, own) if case.make else theirs(*case.build)
    for name, value in vars(their).items():
        if isinstance(value, int | float) and not name.startswith("_") and name != "training":
            report.note("results", f"{title}.{name}", result_problem(value, getattr(own, name, None))[0])
    share_weights(title, their, own, report)
    for method, calls in case.calls.items():
        for arguments in calls:
            pair = getattr(their, method), getattr(own, method)
            compare_calls(f"{title}.{method}", (number, node.name), *pair, arguments, report)


def share_weights(title: str, theirs: Any, ours: Any, report: Report) -> None:
    """Give both modules the same random weights, in the norms too, and check that both have as many parameters."""
    if not isinstance(theirs, nn.Module):
        vars(theirs).update(vars(ours))
        return
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    load_document_weights(ours, theirs.state_dict())
    counts = [sum(parameter.numel() for parameter in module.parameters()) for module in (theirs.eval(), ours.eval())]
    report.note("results", title, None if counts[0] == counts[1] else f"{counts[0]:,} and {counts[1]:,} parameters")


def signature_problem(theirs: Any, ours: Any) -> str | None:
    """Describe how two signatures differ; None if equal. Ours may add keyword-only parameters that have a default."""
    expected, found = (
        [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
        for function in (theirs, ours)
    )
    more = found[len(expected) :]
    is_same = found[: len(expected)] == expected
    parameter = inspect.Parameter
    is_same &= all(kind is parameter.KEYWORD_ONLY and default is not parameter.empty for _, kind, default in more)
    return None if is_same else f"{inspect.signature(ours)}: expected {inspect.signature(theirs)}"


def compare_calls(
    title: str, key: tuple[str, str], theirs: Any, ours: Any, arguments: tuple[Any, ...], report: Report
) -> None:
    """Call both functions with the same arguments and seed; compare what they return and which files they write."""
    found = []
    for call in (theirs, ours):
        torch.manual_seed(1)
        np.random.seed(1)
        with in_new_folder() as folder, torch.set_grad_enabled(key[1] == "test_transformer"):
            with contextlib.redirect_stdout(io.StringIO()):
                returned = call(*arguments)
            files = sorted(path.name for path in folder.iterdir() if path.stat().st_size)
        found.append((np.asarray(returned) if key in AS_ARRAYS else returned, files))
    problem, difference = result_problem(found[0][0], found[1][0])
    if problem is None and found[0][1] != found[1][1]:
        problem = f"wrote {found[1][1]}: expected {found[0][1]}"
    report.largest = max(report.largest, difference)
    report.note("results", title, problem)


def result_problem(theirs: Any, ours: Any) -> tuple[str | None, float]:
    """Describe how two results differ (None if equal), and return the largest relative difference of their numbers."""
    if isinstance(theirs, tuple | list):
        if type(theirs) is not type(ours) or len(theirs) != len(ours):
            return f"returned {type(ours).__name__}: expected a {type(theirs).__name__} of {len(theirs)}", 0.0
        parts = [result_problem(*pair) for pair in zip(theirs, ours, strict=True)]
        return next((problem for problem, _ in parts if problem), None), max((d for _, d in parts), default=0.0)
    if isinstance(theirs, torch.Tensor | np.ndarray) and isinstance(ours, type(theirs)):
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            return f"{tuple(ours.shape)} {ours.dtype}: expected {tuple(theirs.shape)} {theirs.dtype}", math.inf
        expected, found = (np.asarray(x, dtype=np.float64) for x in (theirs, ours))
        difference = float(np.abs(expected - found).max() / max(1.0, np.abs(expected).max()))
        return None if difference < 1e-5 else f"differs by {difference:.1e}", difference
    if isinstance(theirs, nn.Module) and type(theirs) is type(ours):
        shapes = [[parameter.shape for parameter in model.parameters()] for model in (theirs, ours)]
        return None if shapes[0] == shapes[1] else "its parameters have other shapes", 0.0
    is_same = type(theirs) is type(ours) and theirs == ours
    return None if is_same else f"returned {type(ours).__name__}: expected {type(theirs).__name__}, equal", 0.0


def compare_outputs(title: str, theirs: Any, names: dict[str, Any], ours: Any, report: Report) -> None:
    """Check that the document's test function prints the same for our classes, ignoring decimal numbers."""
    said = []
    own = {name: getattr(ours, name) for name in ours.__all__ if name in names and name != theirs.__name__}
    for replaced in ({}, own):
        kept = {name: names[name] for name in replaced}
        names.update(replaced)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            theirs()
        names.update(kept)
        said.append(re.sub(r"-?\d+\.\d+", "#", printed.getvalue()))
    report.note("results", title, None if said[0] == said[1] else f"prints\n{said[1]}\nexpected\n{said[0]}")


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Context manager that replaces packages that are not installed by mock objects."""
    missing = []
    for name in STAND_INS:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
            sys.modules[name] = MagicMock()
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


@contextlib.contextmanager
def in_new_folder() -> Iterator[Path]:
    """Context manager that changes to a new temporary folder, where the documents' code may write files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
