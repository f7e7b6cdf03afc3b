"""Masking: an encoder learns hidden words, from nothing or from a BERT."""

import torch
import transformers

from glassformer.data.batching.text_rows import InMemoryRows
from glassformer.pipelines.load import load
from glassformer.pipelines.mask_filler import MaskFiller, mask_of, surrounding_tokens
from glassformer.tasks.masking import Masking, MaskingConfig
from tasks.pretraining_models import KINDS, quick


def test_it_learns_words_from_their_neighbors_and_the_loaded_model_scores_the_same(masked, corpus):
    folder, scores = masked
    task = Masking(quick(MaskingConfig(data=corpus, share=0.3)))
    how, guessed = task.baseline(corpus.splits())
    assert how == "the most frequent token"
    assert scores["loss"] < 0.6 * guessed["loss"]
    assert scores["accuracy"] > guessed["accuracy"] + 20
    tool = load(folder)
    assert isinstance(tool, MaskFiller)
    assert tool.score([*corpus.splits().valid]) == scores
    lines = ["the old dog ___ .", "", "no blank", "the red ___ moos . the big hen ___."]
    assert tool.run(lines) == ["the old dog barks .", "", "no blank", "the red cow moos . the big hen clucks."]
    vectors = tool.embed(["the old dog barks .", "the big dog barks .", "the red cow moos . the red cow moos ."])
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_the_masked_tokens_depend_on_the_epoch_and_the_row_alone(masked, corpus):
    tool = load(masked[0])
    rows = InMemoryRows([example.text for example in corpus.examples()], tool.encode, longest=tool.longest)
    batches = tool.batches(rows, max_tokens=256, seed=3)
    again = tool.batches(rows, max_tokens=256, seed=3)
    for step in (5, 0, len(batches) + 2):
        assert all(torch.equal(a, b) for a, b in zip(batches[step], again[step], strict=True))

    def hidden(batch):
        return {tuple(row) for row in batch.tokens.masked_fill(~batch.mask, 0).tolist()}

    epochs = [set().union(*(hidden(batches[e * len(batches) + s]) for s in range(len(batches)))) for e in (0, 1)]
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2
    batch = batches[0]
    end = {2}  # nothing special is ever asked for
    asked = batch.answers[batch.answers >= 0].tolist()
    assert not set(asked) & (tool.reader.tokenizer.special_ids | end)


def test_a_bert_of_hf_is_trained_further_with_its_head_and_mask_token(corpus, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "red", "big", ".", *KINDS, *KINDS.values()]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    task = Masking(quick(MaskingConfig(data=corpus, start_from=tmp_path / "bert"), updates=40))
    tool, fresh, _ = task.initialize(())
    assert not fresh
    assert torch.equal(tool.model.head.transform.dense.weight, theirs.cls.predictions.transform.dense.weight)
    assert mask_of(tool.reader) == 4
    assert (list(surrounding_tokens(tool.reader).before), list(surrounding_tokens(tool.reader).after)) == ([2], [3])
    assert task.train(tmp_path / "model")["accuracy"] > 30
    assert load(tmp_path / "model").run(["the old dog ___ ."])[0].startswith("the old dog ")
