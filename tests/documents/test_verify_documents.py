"""`make verify-documents` finds differences in signatures and results."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

TOOL = Path(__file__).parents[2] / "tools" / "verify_documents.py"


@pytest.fixture(scope="module")
def tool():
    specification = importlib.util.spec_from_file_location("verify_documents", TOOL)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    yield module
    del sys.modules[specification.name]


@pytest.mark.parametrize(
    ("ours", "is_same"),
    [
        (lambda x, mask=None: 0, True),
        (lambda x, mask=None, *, cache=None: 0, True),
        (lambda y, mask=None: 0, False),
        (lambda x, mask=0: 0, False),
        (lambda x, mask: 0, False),
        (lambda x: 0, False),
        (lambda x, mask=None, more=None: 0, False),
        (lambda x, mask=None, *, cache: 0, False),
    ],
)
def test_signatures_are_compared(tool, ours, is_same):
    assert (tool.signature_problem(lambda x, mask=None: 0, ours) is None) == is_same


@pytest.mark.parametrize(
    ("theirs", "ours", "is_same"),
    [
        (torch.ones(2), torch.ones(2) + 1e-7, True),
        (torch.ones(2), torch.ones(2) + 1e-4, False),
        (torch.ones(2), torch.full((2,), torch.nan), False),
        (torch.ones(2), torch.ones(2, 1), False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        (torch.ones(2), np.ones(2), False),
        ((torch.ones(2), torch.ones(3)), (torch.ones(2), torch.ones(3)), True),
        ((torch.ones(2), torch.ones(3)), torch.ones(2, 3), False),
        ((torch.ones(2), torch.ones(3)), (torch.ones(2),), False),
        (None, None, True),
        (None, torch.ones(2), False),
        (["a"], ["a"], True),
        (["a"], ["b"], False),
    ],
)
def test_results_are_compared(tool, theirs, ours, is_same):
    assert (tool.result_problem(theirs, ours)[0] is None) == is_same


DOCUMENT = """
```python
import torch.nn as nn

class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff={width}):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear2(self.linear1(x).{activation}())
```
"""


@pytest.mark.parametrize(
    ("width", "activation", "problem"),
    [
        (2048, "relu", None),
        (2048, "tanh", "FeedForward.forward: differs by"),
        (1024, "relu", "expected (self, d_model"),
    ],
)
def test_a_document_is_run_beside_ours(tool, monkeypatch, capsys, width, activation, problem):
    monkeypatch.setitem(tool.CASES, "000", {"FeedForward": tool.CASES["000"]["FeedForward"]})
    if width != 2048:  # the sizes of the weights would differ too
        case = tool.Case((16, width), tool.CASES["000"]["FeedForward"].calls)
        monkeypatch.setitem(tool.CASES, "000", {"FeedForward": case})
    report = tool.verify("000", DOCUMENT.format(width=width, activation=activation))
    printed = capsys.readouterr().out
    assert report.counts["bad"] == (problem is not None)
    assert problem is None or problem in printed
    assert (report.counts["blocks"], report.counts["definitions"], report.counts["signatures"]) == (1, 1, 2)


def test_definitions_and_cases_that_do_not_match_are_reported(tool, monkeypatch, capsys):
    monkeypatch.setitem(tool.CASES, "000", {"test_transformer": tool.CASES["000"]["test_transformer"]})
    report = tool.verify("000", DOCUMENT.format(width=2048, activation="relu"))
    assert report.counts["bad"] == 2
    printed = capsys.readouterr().out
    assert "000 FeedForward: not compared" in printed
    assert "000 test_transformer: the document doesn't define it" in printed


def test_a_path_that_is_no_folder_is_refused(tool, monkeypatch, capsys, tmp_path):
    for arguments in ([], [str(tmp_path / "nothing")], [str(tmp_path)]):
        monkeypatch.setattr(sys, "argv", ["verify_documents.py", *arguments])
        assert tool.main() == 2
    assert "expected a folder with the five texts" in capsys.readouterr().out
