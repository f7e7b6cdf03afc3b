"""The files of a model folder, and sizes that do not fit the stored tensors."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.checkpoint import (
    model_folder,
)
from glassformer.checkpoint.layout import check_sizes
from glassformer.checkpoint.model_folder import READ_FILES
from glassformer.models import preset


def test_the_list_of_files_that_are_read_is_complete():
    source = Path(model_folder.__file__).parents[1]
    external = source / "checkpoint" / "external_formats.py"
    readers = [*(source / "text").glob("*.py"), *(source / "tasks").glob("*.py"), external]
    found = set()
    for path in readers:
        text = path.read_text(encoding="utf-8")
        found |= {*re.findall(r"""(?:folder|path) / [("']*([\w.]+\.(?:json|txt|jinja|model|spm|safetensors))""", text)}
    assert len(found) > 10
    assert found <= {*READ_FILES}


SHAPES = [(40, 16), (16, 16)] * 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 641}, "vocab_size=641: expected at most 640, the number of elements in the largest tensor"),
        ({"d_ff": 10**6}, "d_ff=1000000: expected at most 640"),
        ({"max_len": 641}, "max_len=641: expected at most 640"),
        ({"n_decoder_layers": 61}, "0 encoder and 61 decoder layers: expected at most 60 for a file with 60 tensors"),
        ({"n_decoder_layers": 1025, "share_layers": True}, "expected at most 1024"),
        ({"positions": "sinusoidal", "max_len": 2**17}, "max_len=131072: expected at most 65536 with sinusoidal"),
    ],
)
def test_sizes_that_the_tensors_cannot_have_are_refused(changes, message):
    config = preset("tiny-gpt2")
    check_sizes(config, SHAPES)
    with pytest.raises(ValueError, match=message):
        check_sizes(replace(config, **changes), SHAPES)


def test_missing_tensors_are_named_only_for_a_plausible_size():
    config = preset("tiny-gpt2", vocab_size=20_000)
    with pytest.raises(ValueError, match=r"Missing tensors: table\.weight$"):
        check_sizes(config, SHAPES, lambda: ["table.weight"])
    huge = replace(config, vocab_size=2**31 - 1)
    with pytest.raises(ValueError, match=r"the number of elements in the largest tensor$"):
        check_sizes(huge, SHAPES, lambda: pytest.fail("a model of this size must not be built"))
