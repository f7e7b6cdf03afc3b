"""The interface of lm-eval: log-probabilities, rolling log-probabilities and generated texts of a local task file."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from glassformer.pipelines.lm_eval_model import LmEvalModel, lm_eval_class
from glassformer.pipelines.load import load
from tasks.pretrained_models import save_decoder


@pytest.fixture
def generator(tmp_path):
    save_decoder(tmp_path / "hf")
    return load(tmp_path / "hf")


def request(*arguments):
    return SimpleNamespace(args=arguments)


def log_probs(generator, ids):
    with torch.no_grad():
        found = generator.model(torch.tensor([ids])).log_softmax(-1)[0]
    return [found[place, ids[place + 1]].item() for place in range(len(ids) - 1)]


def test_log_probabilities_are_those_of_the_continuation(generator, tmp_path):
    lines = [{"query": "one two", "choices": [" three", " cat"]}, {"query": "the ", "choices": ["cat", "mat"]}]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    docs = [json.loads(line) for line in (tmp_path / "task.jsonl").read_text(encoding="utf-8").splitlines()]
    requests = [request(doc["query"], choice) for doc in docs for choice in doc["choices"]]
    model = LmEvalModel(generator)
    found = model.loglikelihood(requests)
    encode = generator.tokenizer.encode_plain
    for (total, _), one in zip(found, requests, strict=True):
        whole = [*model._start(), *encode("".join(one.args))]
        n_scored = len(whole) - 1 - len(encode(one.args[0].rstrip()))
        assert total == pytest.approx(sum(log_probs(generator, whole)[-n_scored:]), abs=1e-4)
    assert found[0] == model.loglikelihood(requests[:1])[0]


def test_a_greedy_continuation_is_recognized(generator):
    model = LmEvalModel(generator)
    row, _ = model._join("one two", " three")
    with torch.no_grad():
        best = int(generator.model(torch.tensor([row[:-1]]))[0, -1].argmax())
    assert model._is_greedy([*row[:-1], best], 1)
    assert not model._is_greedy([*row[:-1], (best + 1) % 300], 1)


def test_rolling_log_probabilities_cover_the_whole_text(generator):
    text = "the cat sat on the mat"
    ids = [*LmEvalModel(generator)._start(), *generator.tokenizer.encode_plain(text)]
    (found,) = LmEvalModel(generator).loglikelihood_rolling([request(text)])
    assert found == pytest.approx(sum(log_probs(generator, ids)), abs=1e-3)


def test_texts_are_generated_until_a_string(generator):
    model = LmEvalModel(generator)
    (whole,) = model.generate_until([request("one two", {"max_gen_toks": 12})])
    stop = whole[3:5]
    (cut,) = model.generate_until([request("one two", {"max_gen_toks": 12, "until": [stop]})])
    assert cut == whole[: whole.index(stop)]


def test_the_class_is_one_of_lm_eval(generator, monkeypatch):
    with pytest.raises(ImportError):
        lm_eval_class()
    module = ModuleType("lm_eval.api.model")
    module.LM = type("LM", (), {})
    for name, one in (
        ("lm_eval", ModuleType("lm_eval")),
        ("lm_eval.api", ModuleType("api")),
        (module.__name__, module),
    ):
        monkeypatch.setitem(sys.modules, name, one)
    kind = lm_eval_class()
    assert issubclass(kind, module.LM)
    assert kind(generator).loglikelihood([request("one", " two")])[0][0] < 0
