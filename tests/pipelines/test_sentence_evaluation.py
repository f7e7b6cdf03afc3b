"""The methods that evaluators of sentence-transformers call."""

import numpy as np
import pytest
import torch

from checkpoint.hf.test_sentence_folder import write_modules
from checkpoint.hf_models import small_bert
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.load import load
from glassformer.pipelines.sentence_evaluation import SIMILARITIES, CrossEncoderModel, SentenceModel
from pipelines.hf_folders import save_tokenizer
from pipelines.test_pair_scorer import save_cross_encoder


@pytest.fixture
def embedder(tmp_path):
    small_bert("Bert", "Model").save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $A </s>")
    write_modules(tmp_path, "Transformer", "Pooling")
    found = load(tmp_path)
    return Embedder(found.model, found.tokenizer, prompts={"query": "the ", "document": "a "})


def test_vectors_are_those_of_the_pipeline(embedder):
    model, texts = SentenceModel(embedder), ["the cat", "dog"]
    assert np.array_equal(model.encode(texts), embedder.embed(texts).numpy())
    assert torch.equal(model.encode(texts, convert_to_tensor=True), embedder.embed(texts))
    assert np.array_equal(model.encode_query(["cat"]), embedder.embed(["the cat"]).numpy())
    assert np.array_equal(model.encode_document("cat"), embedder.embed("a cat").numpy())
    assert model.encode(texts, truncate_dim=3).shape == (2, 3)
    assert np.linalg.norm(model.encode(texts, normalize_embeddings=True), axis=1) == pytest.approx([1, 1])
    for options, message in (({"precision": "int8"}, "precision='int8'"), ({"prompt_name": "x"}, "prompt_name='x'")):
        with pytest.raises(ValueError, match=message):
            model.encode(texts, **options)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_have_one_row_for_each_first_vector(name, embedder):
    model = SentenceModel(embedder, similarity=name)
    first, second = model.encode(["a", "b", "c"]), model.encode(["a", "dog"])
    found = model.similarity(first, second)
    assert found.shape == (3, 2)
    assert found[0].argmax() == 0 or name == "dot"


def test_scores_of_pairs_are_those_of_the_pipeline(tmp_path):
    save_cross_encoder(tmp_path)
    scorer = load(tmp_path)
    pairs = [["the cat", "a dog"], ["a", "b"]]
    expected = scorer.score_pairs([(one, two) for one, two in pairs])
    assert CrossEncoderModel(scorer).predict(pairs) == pytest.approx(expected)


def test_several_classes_give_a_row_for_each_pair(tmp_path):
    save_cross_encoder(tmp_path, n_labels=3)
    model = CrossEncoderModel(load(tmp_path))
    assert model.num_labels == 3
    assert model.predict([["the cat", "a dog"]]).shape == (1, 3)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_a_folder_that_sentence_transformers_wrote_gives_its_vectors(pooling, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    small_bert("Bert", "Model").save_pretrained(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert", around="<s> $A </s>", chat=False)
    encoder = parts.Transformer(str(tmp_path / "bert"))
    modules = [encoder, parts.Pooling(encoder.get_embedding_dimension(), pooling)]
    if pooling in ("cls", "mean"):
        modules += [parts.Dense(encoder.get_embedding_dimension(), 5, bias=pooling == "cls")]
    if pooling != "max":
        modules += [parts.Normalize()]
    theirs = library.SentenceTransformer(modules=modules, device="cpu", prompts={"query": "the "})
    theirs.save(str(tmp_path / "whole"))
    ours, texts = SentenceModel(load(tmp_path / "whole")), ["the cat sat on the mat", "a dog", "", "cat " * 40]
    for method in ("encode", "encode_query", "encode_document"):
        found, expected = (torch.tensor(getattr(model, method)(texts)) for model in (ours, theirs))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("n_labels", [1, 3])
def test_a_cross_encoder_gives_the_scores_of_sentence_transformers(n_labels, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    save_cross_encoder(tmp_path / "bert", n_labels=n_labels)
    theirs = library.CrossEncoder(str(tmp_path / "bert"), device="cpu")
    plain = library.CrossEncoder(str(tmp_path / "bert"), device="cpu", activation_fn=torch.nn.Identity())
    plain.save_pretrained(str(tmp_path / "plain"))
    theirs.save_pretrained(str(tmp_path / "whole"))
    pairs = [["the cat", "a dog"], ["a", "the mat"], ["dog " * 9, "b"]]
    for name, model in (("bert", theirs), ("whole", theirs), ("plain", plain)):
        found = CrossEncoderModel(load(tmp_path / name)).predict(pairs)
        assert found == pytest.approx(model.predict(pairs), abs=1e-5)
