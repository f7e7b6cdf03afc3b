"""The interface of lm-eval: log-probabilities, rolling log-probabilities and generated texts of a local task file."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from glassformer.data.readers.multiple_choice import read_multiple_choice
from glassformer.pipelines.decoder_evaluation import score_multiple_choice, score_texts_by_perplexity
from glassformer.pipelines.lm_eval_model import LmEvalModel, lm_eval_class
from glassformer.pipelines.load import load
from tasks.pretrained_models import save_decoder

CHOICES = """\
task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{choices.index(answer)}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
PERPLEXITY = """\
task: local_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
"""
GENERATION = """\
task: local_generation
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {max_gen_toks: 8, until: ["\\n"], do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture
def generator(tmp_path):
    save_decoder(tmp_path / "hf")
    return load(tmp_path / "hf")


def request(*arguments):
    return SimpleNamespace(args=arguments)


def log_probs(generator, ids):
    with torch.no_grad():
        found = generator.model(torch.tensor([ids[:-1]])).log_softmax(-1)[0]
    return [found[place, ids[place + 1]].item() for place in range(len(ids) - 1)]


@pytest.mark.parametrize("begin", [None, "<s>"])
def test_log_probabilities_are_those_of_the_continuation(begin, tmp_path):
    save_decoder(tmp_path / "hf", begin=begin)
    generator = load(tmp_path / "hf")
    lines = [{"query": "one two", "choices": [" three", " cat"]}, {"query": "the ", "choices": ["cat", "mat"]}]
    requests = [request(line["query"], choice) for line in lines for choice in line["choices"]]
    requests.append(request("", "the cat"))
    model = LmEvalModel(generator)
    found = model.loglikelihood(requests)
    plain = generator.tokenizer.encode_plain
    for (total, _), one in zip(found, requests, strict=True):
        # A tokenizer that puts nothing before a text begins with the text, unless there is no context.
        before = model._start() if begin or not one.args[0] else []
        whole = [*before, *plain("".join(one.args))]
        n_scored = len(whole) - len(before) - len(plain(one.args[0].rstrip()))
        assert total == pytest.approx(sum(log_probs(generator, whole)[-n_scored:]), abs=1e-4)
    assert found[0] == pytest.approx(model.loglikelihood(requests[:1])[0])
    with pytest.raises(ValueError, match="the continuation '' after 'one' has 0 tokens of"):
        model.loglikelihood([request("one", "")])


def test_the_end_of_a_long_context_is_kept(generator):
    model, limit = LmEvalModel(generator), generator.model.config.max_len
    context = "one two three " * limit
    row, length = model._join(context, "four")
    assert (len(row), length) == (limit + 1, len(generator.tokenizer.encode_plain(" four")))
    ((total, _),) = model.loglikelihood([request(context, "four")])
    assert total == pytest.approx(sum(log_probs(generator, row)[-length:]), abs=1e-4)
    assert len(model.generate_until([request(context, {"max_gen_toks": 3})])) == 1


def test_a_greedy_continuation_is_recognized(generator):
    model = LmEvalModel(generator)
    plain, seen = generator.tokenizer.encode_plain, set()
    for context in ("one two", "the", "cat sat on", "vier drei", "mat", "five four three", "system", "a", "user one"):
        with torch.no_grad():
            best = int(generator.model(torch.tensor([plain(context)]))[0, -1].argmax())
        text = generator.tokenizer.decode([best])
        for continuation in (text, " two", " the cat"):
            if text and plain(context + continuation)[: len(plain(context))] == plain(context):
                is_best = plain(context + continuation) == [*plain(context), best]
                assert model.loglikelihood([request(context, continuation)])[0][1] == is_best
                seen.add(is_best)
    assert seen == {True, False}


def test_rolling_log_probabilities_cover_the_whole_text(generator):
    text = "the cat sat on the mat"
    ids = [*LmEvalModel(generator)._start(), *generator.tokenizer.encode_plain(text)]
    (found,) = LmEvalModel(generator).loglikelihood_rolling([request(text)])
    assert found == pytest.approx(sum(log_probs(generator, ids)), abs=1e-3)


def test_texts_are_generated_until_a_string(generator):
    model = LmEvalModel(generator)
    (whole,) = model.generate_until([request("one two", {"max_gen_toks": 12})])
    stop = whole[3:5]
    requests = [request("one two", {"max_gen_toks": 12, "until": [stop]}), request("cat", {"max_gen_toks": 2})]
    cut, other = model.generate_until([*requests, requests[0]])[:2]
    assert cut == whole[: whole.index(stop)]
    assert [other] == model.generate_until(requests[1:])


def test_the_class_is_one_of_lm_eval(generator, monkeypatch):
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


def test_without_lm_eval_there_is_no_class(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ImportError):
        lm_eval_class()


@pytest.mark.parametrize("begin", [None, "<s>"])
def test_lm_eval_itself_gives_the_numbers_of_eval_and_of_its_class_for_hf(begin, tmp_path, monkeypatch):
    evaluator = pytest.importorskip("lm_eval.evaluator")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = [
        {"question": "one two", "choices": ["three", "the cat", "a"], "answer": "three"},
        {"question": "the cat sat", "choices": ["on the mat", "two", "four"], "answer": "two"},
        {"question": "eins zwei", "choices": ["drei vier", "mat", "system"], "answer": "drei vier"},
    ]
    texts = ["the cat sat on the mat\n" * 3, "eins zwei drei vier fünf", "one two three four five " * 30]
    (tmp_path / "choices.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    documents = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "texts.jsonl").write_text(documents, encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    tasks = {"local_choices": CHOICES, "local_perplexity": PERPLEXITY, "local_generation": GENERATION}
    for name, text in tasks.items():
        file = tmp_path / "tasks" / f"{name}.yaml"
        file.write_text(text.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=str(tmp_path / "tasks"), include_defaults=False
    )
    save_decoder(tmp_path / "hf", begin=begin)
    generator = load(tmp_path / "hf")

    def results(model):
        found = evaluator.simple_evaluate(
            model=model, tasks=[*tasks], task_manager=manager, bootstrap_iters=0, log_samples=True
        )
        numbers = {
            f"{task} {name}": value
            for task, scores in found["results"].items()
            for name, value in scores.items()
            if isinstance(value, float)
        }
        return numbers, [sample["resps"] for sample in found["samples"]["local_generation"]]

    ours, written = results(lm_eval_class()(generator))
    hf_class = importlib.import_module("lm_eval.models.huggingface").HFLM
    theirs, expected = results(hf_class(pretrained=str(tmp_path / "hf"), device="cpu", batch_size=1))
    # With a token before each text, its class predicts that token, too.
    rolling = {name for name in ours if "perplexity" in name and begin is not None}
    assert {name: ours[name] for name in ours.keys() - rolling} == pytest.approx(
        {name: theirs[name] for name in theirs.keys() - rolling}, abs=1e-5
    )
    assert written == expected
    if begin is not None:  # `eval` puts a token before each question and each text in any case
        scores = score_texts_by_perplexity(generator, texts, stride=generator.model.config.max_len)
        assert ours["local_perplexity bits_per_byte,none"] == pytest.approx(scores["bits_per_byte"], abs=1e-5)
        chosen = score_multiple_choice(generator, list(read_multiple_choice([tmp_path / "choices.jsonl"])))
        assert 100 * ours["local_choices acc,none"] == pytest.approx(chosen["accuracy"])
