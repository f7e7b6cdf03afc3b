"""Pretrained models of token classes find the entities that HF's pipeline finds."""

import json
import random
import warnings

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

from checkpoint import random_hf
from checkpoint.hf_comparison import near
from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.load import load
from glassformer.pipelines.pretrained_tagger import PretrainedTagger
from glassformer.pipelines.tagger import Tagger
from glassformer.text.tags import Entity, entities_of
from pipelines.tiny_pipelines import make

FAMILIES = ["bert", "distilbert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "deberta-v2", "deberta"]
FAMILIES += ["mpnet", "modernbert", "megatron-bert"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def word_pieces():
    pieces = [*SPECIAL, *"abcdef.,-'", *(f"##{letter}" for letter in "abcdef"), "ab", "##cd", "fed"]
    inner = tokenizers.Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return inner


def unigrams():
    pieces = [(piece, 0.0) for piece in SPECIAL] + [(piece, -2.0) for piece in ("\u2581", *"abcdef.,-'")]
    pieces += [("\u2581ab", -1.0), ("cd", -1.5), ("\u2581fed", -1.0)]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    return inner


def byte_pairs():
    pieces = [*SPECIAL, "\u0120", *"abcdef.,-'", "\u0120a", "\u0120ab", "cd"]
    merges = [("\u0120", "a"), ("\u0120a", "b"), ("c", "d")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return inner


TOKENIZERS = [word_pieces, unigrams, byte_pairs]


def save_tagger(family, folder, seed, *, max_len=64, make_tokenizer=word_pieces, **settings):
    """Write a random HF model of token classes with a tokenizer, and return HF's pipeline for it."""
    seeds = (seed for seed in range(seed * 100, 10_000) if random_hf.draw(family, seed).refusal is None)
    drawn = random_hf.draw(family, next(seeds))
    drawn.class_name = type(drawn.config).__name__.removesuffix("Config") + "ForTokenClassification"
    drawn.config.update({"vocab_size": 60, "max_position_embeddings": max_len, "pad_token_id": 1} | settings)
    theirs = random_hf.build(drawn, seed)
    theirs.save_pretrained(folder)
    inner = make_tokenizer()
    inner.add_special_tokens(SPECIAL[:3])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    roles = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_input_names=["input_ids", "attention_mask"], **roles
    )
    words.save_pretrained(folder)
    return transformers.TokenClassificationPipeline(model=theirs, tokenizer=words, aggregation_strategy="first")


def texts(seed, count):
    choose = random.Random(seed)
    return ["".join(choose.choices("abcdef   .,-'x", k=choose.randint(1, 25))) for _ in range(count)]


def hf_entities(theirs, text):
    """Return (label, start, end, score) of HF's entities, without the spaces that some tokens begin with."""
    with warnings.catch_warnings():  # about tokenizers without marks of words
        warnings.simplefilter("ignore")
        found = theirs(text)
    entities = []
    for one in found:
        span = text[one["start"] : one["end"]]
        start = one["start"] + len(span) - len(span.lstrip())
        entities.append((one["entity_group"], start, start + len(span.strip()), float(one["score"])))
    return entities


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_entities_are_those_of_hf(family, tmp_path, count):
    for seed in range(count(1, 20)):
        turn = seed + FAMILIES.index(family)
        names = TAGS[turn % 5 :] + TAGS[: turn % 5] if seed % 4 < 3 else [f"LABEL_{n}" for n in range(5)]
        folder = tmp_path / str(seed)
        maker = TOKENIZERS[turn % 3]
        theirs = save_tagger(family, folder, seed, make_tokenizer=maker, id2label=dict(enumerate(names)))
        ours = load(folder)
        assert isinstance(ours, PretrainedTagger)
        assert ours.tags == names
        several = texts(seed, 12)
        rows = ours.reader.read([(text, None) for text in several])
        for row, found in zip(rows, ours.answers(rows), strict=True):
            with torch.no_grad():
                assert near(found, theirs.model(torch.tensor([row.ids])).logits[0])
        for text, found in zip(several, ours.entities(several), strict=True):
            expected = hf_entities(theirs, text)
            assert [one[1:4] for one in found] == [one[:3] for one in expected], (family, seed, text)
            assert [one.probability for one in found] == pytest.approx([one[3] for one in expected], abs=1e-5)
            assert all(text[one.start : one.end] == one.text for one in found)


def test_a_long_text_is_read_in_windows(tmp_path):
    # A model whose tokens do not see each other tags a token the same in every window.
    save_tagger("bert", tmp_path, 0, max_len=12, id2label=dict(enumerate(TAGS)), type_vocab_size=1)
    ours = load(tmp_path)
    with torch.no_grad():
        for layer in ours.model.encoder.layers:
            layer.self_attn.out_proj.weight.zero_()
        ours.model.embeddings.positions.weight.zero_()
    words = texts(5, 30)
    whole = " ".join(word for text in words for word in text.split())
    tags = {one.text: one.label for word in whole.split() for one in ours.entities(word) if one.text == word}
    found = [one for one in ours.entities(whole) if one.text in tags]
    assert len(found) > 5
    assert all(tags[one.text] == one.label for one in found)
    assert ours.n_truncated == 0
    ours.entities("ab" + "abcdef" * 5)
    assert ours.n_truncated == 1


def test_lines_have_entities_in_brackets(tmp_path):
    save_tagger("bert", tmp_path, 0, id2label=dict(enumerate(["PER"] * 5)))
    ours = load(tmp_path)
    assert ours.run(["ab cd.", ""]) == ["[ab cd. PER]", ""]
    answer = ours.answer_lines(["ab cd."], None)[0].record
    assert answer["entities"][0] == {"text": "ab cd.", "label": "PER", "start": 0, "end": 6} | {
        "probability": answer["entities"][0]["probability"]
    }
    with pytest.raises(TypeError, match=r"^lines is 'ab cd.': expected a list of strings$"):
        ours.answer_lines("ab cd.", None)
    with pytest.raises(ValueError, match="4 tags for a model of 5 classes"):
        PretrainedTagger(ours.model, ours.reader, tags=TAGS[:4])


@pytest.mark.parametrize("make_tokenizer", TOKENIZERS)
def test_words_are_scored_by_the_tags_of_their_first_tokens(make_tokenizer, tmp_path):
    theirs = save_tagger("bert", tmp_path, 3, id2label=dict(enumerate(TAGS)), make_tokenizer=make_tokenizer)
    ours, examples = load(tmp_path), []
    for seed in range(12):
        words = " ".join(texts(seed, 2)).split() or ["ab"]
        encoded = theirs.tokenizer(" ".join(words), return_tensors="pt", return_offsets_mapping=True)
        places = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            best = theirs.model(**encoded).logits[0].argmax(-1).tolist()
        tags, begin = [], 0
        for word in words:
            first = next(i for i, span in enumerate(places) if span[1] > begin and span[0] < begin + len(word))
            tags.append(TAGS[best[first]])
            begin += len(word) + 1
        examples.append(TaggedSentence(tuple(words), tuple(entities_of(tags, "iob1"))))
    assert sum(len(example.entities) for example in examples) > 5
    assert ours.score(examples).values["f1"] == 100
    halved = [example._replace(entities=example.entities[::2]) for example in examples]
    assert ours.score(halved).values["f1"] < 90
    wrong = examples[0]._replace(entities=(Entity(0, 1, "CITY"),))
    with pytest.raises(ValueError, match="CITY"):
        ours.score([wrong])


def test_convert_writes_the_head_and_the_names_of_its_classes(tmp_path):
    theirs = save_tagger("deberta-v2", tmp_path / "a", 1, id2label=dict(enumerate(TAGS)))
    convert(tmp_path / "a", tmp_path / "b", "hf")
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "b").eval()
    assert again.config.id2label == dict(enumerate(TAGS))
    tokens = torch.randint(4, 40, (2, 9))
    with torch.no_grad():
        assert near(again(tokens).logits, theirs.model(tokens).logits)
    assert load(tmp_path / "b").entities(texts(0, 5)) == load(tmp_path / "a").entities(texts(0, 5))


def test_a_tagger_of_ours_comes_back_from_hf(tmp_path):
    ours = make(Tagger)
    ours.save(tmp_path / "ours", "")
    convert(tmp_path / "ours", tmp_path / "hf", "hf")
    values = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert list(values["id2label"].values()) == ours.paths.tags
    again = load(tmp_path / "hf")
    assert isinstance(again, Tagger)
    lines = ["the old cat, sees  Rome.", "a dog"]
    assert again.entities(lines) == ours.entities(lines)
