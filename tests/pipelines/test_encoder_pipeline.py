"""The tokenizer of an encoder, and what all pipelines with an encoder share."""

import pytest
import torch

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.encoder_pipeline import Hiding, Reader, embed_lines, unknown_label
from glassformer.pipelines.tagger import Tagger
from glassformer.text.tokenizer import END
from pipelines.tiny_pipelines import LABELS, make, tokenizer, with_reader


def test_hidden_tokens_are_replaced_except_special_ones():
    hiding = Hiding(token=3, never=(0, 2))
    tokens = torch.tensor([[5, 6, 2, 0]])
    assert hiding.hide(tokens, torch.ones_like(tokens, dtype=torch.bool)).tolist() == [[3, 3, 2, 0]]
    assert hiding.hide(tokens, torch.tensor([[False, True, False, False]])).tolist() == [[5, 3, 2, 0]]


def test_a_long_text_is_cut_and_keeps_its_end_token():
    (read,) = Reader.own(tokenizer()).read([("the old cat sees the big saw", None)], limit=4)
    assert len(read) == 4
    assert read.ids[-1] == END


def test_a_reader_is_stored_with_its_kind(tmp_path):
    reader = Reader.own(tokenizer())
    (tmp_path / "tokenizer.json").write_text(reader.files["tokenizer.json"], encoding="utf-8")
    assert Reader.from_folder(tmp_path, reader.kind).read([("the cat", None)]) == reader.read([("the cat", None)])
    with pytest.raises(CorruptFolderError, match="has tokenizer='other': expected 'own' or 'pretrained'"):
        Reader.from_folder(tmp_path, "other")
    with pytest.raises(ValueError, match="holds no tokenizer: expected"):
        Reader.of_checkpoint(tmp_path / "nowhere")


def test_a_model_with_another_head_is_refused():
    with pytest.raises(ValueError, match="the model has head='embedding': expected 'token_class'"):
        with_reader(Tagger, "embedding", {"labels": LABELS}, pooling="mean")


def test_vectors_have_length_one_and_do_not_depend_on_the_batch():
    tool, texts = make(Classifier), ["the cat", "it is red. it is red.", "saw"]
    vectors = tool.embed(texts)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(tool.embed(texts, batch_tokens=1), vectors, atol=1e-6, rtol=0)
    assert [answer.record["vector"] is None for answer in embed_lines(tool, ["the cat", " "])] == [False, True]


def test_the_error_about_an_unknown_label_lists_some_labels():
    known = [f"label {number}" for number in range(25)]
    assert "expected one of label 0, label 1," in str(unknown_label("x", known, "a.tsv:3"))
    assert "label 19 and 5 more" in str(unknown_label("x", known, "a.tsv:3"))
