"""The curve is that of the log, and the checkpoints of a run are replayed on the same text."""

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.json_values import unpack
from glassformer.inspect.learning import describe_learning
from glassformer.inspect.pipeline_text import read_text


@pytest.mark.full  # a quick run is replayed in the test of the demo
def test_a_run_is_replayed(reviews, tmp_path):
    out = tmp_path / "model"
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "vocab_size": 300}
    settings = {"updates": 6, "warmup": 1, "eval_every": 2, "save_every": 2, "keep_last": 3, "minutes": 0}
    gf.train("classification", data=reviews, out=out, device="cpu", max_tokens=256, **sizes, **settings)
    pipe = gf.load(out)
    read = read_text(pipe, "it is good", ExplainOptions())
    before = {name: value.clone() for name, value in pipe.model.named_parameters()}
    with torch.inference_mode():
        found = describe_learning(pipe, read, ExplainOptions(), tmp_path / "model.run")
    assert [point["update"] for point in found["curve"]] == [1, 2, 3, 4, 5, 6]
    assert all(point["loss"] > 0 for point in found["curve"])
    assert [point["update"] for point in found["curve"] if point["validation"]] == [2, 4, 6]
    updates = [one["update"] for one in found["checkpoints"]]
    assert updates == [one["update"] for one in found["samples"]]
    assert len(updates) >= 2
    maps = [unpack(one["attention"]) for one in found["checkpoints"]]
    assert not np.allclose(maps[0], maps[-1], atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in pipe.model.named_parameters())


def test_without_a_log_there_is_nothing_to_tell(tmp_path):
    assert describe_learning(None, None, ExplainOptions(), tmp_path) is None
