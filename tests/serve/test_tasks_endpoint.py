import re

import pytest

from glassformer.pipelines.load import load
from glassformer.pipelines.pipeline import LineRequest

INPUTS = {
    "translator": ["the cat", "it is red", ""],
    "classifier": ["the cat", "it is red", ""],
    "tagger": ["the old cat sees", "the saw"],
    "extractor": ["what color is it?\tit is red", "what?\tthe old cat"],
    "writer": ["the cat", "it is"],
    "filler": ["the ___ cat", "no blank"],
    "embedder": ["the cat"],
}


def run(server, name, **body):
    status, _, found = server.ask(f"/v1/tasks/{name}", body)
    assert status == 200, found
    return found


@pytest.mark.parametrize("name", INPUTS)
def test_a_task_answers_as_run_does(server, model_paths, name):
    found = run(server, name, input=INPUTS[name])
    expected = load(model_paths[name]).answer_lines(INPUTS[name], LineRequest())
    if name == "embedder":
        assert len(found["results"][0]["vector"]) == 16
        return
    assert [one["output"] for one in found["results"]] == [answer.line for answer in expected]
    for one, answer in zip(found["results"], expected, strict=True):
        assert {**one, **answer.record, "score": None} == {**one, "score": None}


def test_questions_and_pairs_have_fields(server):
    asked = {"question": "what color\tis it?", "context": "it is red"}
    (one,) = run(server, "extractor", input=asked)["results"]
    assert asked["context"][one["start"] : one["end"]] == one["answer"]
    assert run(server, "classifier", input={"first": "the cat", "second": "it is"})["results"]


def test_several_texts_come_with_their_scores(server):
    (one,) = run(server, "translator", input="the cat", n_best=3, beam=4)["results"]
    scores = [entry["score"] for entry in one["n_best"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    drawn = [run(server, "translator", input="the cat", temperature=1, seed=5)["results"] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_translation_is_aligned_with_its_source(server):
    (one,) = run(server, "translator", input="it is red", alignment=True)["results"]
    assert all(entry["source"] in ("it", "is", "red") for entry in one["alignment"])


def test_labels_have_probabilities_and_entities_have_places(server):
    (one,) = run(server, "classifier", input="the cat", n_best=2)["results"]
    assert len(one["labels"]) == 2
    assert one["labels"][0]["probability"] >= one["labels"][1]["probability"]
    text = "the old cat"
    for entity in run(server, "tagger", input=text)["results"][0]["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_blanks_have_alternatives_with_probabilities(server):
    (one,) = run(server, "filler", input="the ___ cat", n_best=2)["results"]
    assert [entry["text"].endswith(" cat") for entry in one["n_best"]] == [True, True]
    ((first, *_),) = one["blanks"]
    assert first["probability"] == one["n_best"][0]["score"]
    (scored,) = run(server, "filler", input="the ___ cat", scores=True)["results"]
    assert scored["blanks"][0][0]["word"] == first["word"]
    assert "blanks" not in run(server, "filler", input="the ___ cat")["results"][0]


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("classifier", {"beam": 3}, "beam"),
        ("classifier", {"scores": True}, "scores"),
        ("tagger", {"n_best": 3}, "n_best"),
        ("writer", {"alignment": True}, "alignment"),
        ("translator", {"beam": 3, "temperature": 1}, "beam"),
        ("translator", {"seed": 3}, "seed"),
        ("translator", {"beam": 2, "n_best": 3}, "n_best"),
        ("translator", {"beam": 40}, "beam"),
        ("translator", {"max_tokens": 10**7}, "max_tokens"),
        ("translator", {"input": []}, "input"),
        ("translator", {"input": ["a"] * 1000}, "input"),
        ("translator", {"input": "cat " * 500}, "input"),
        ("extractor", {"input": "no tab"}, None),
        ("extractor", {"input": ["no tab"] * 3}, None),
    ],
)
def test_what_has_no_effect_or_is_wrong_is_refused(server, name, body, field):
    status, _, found = server.ask(f"/v1/tasks/{name}", {"input": "what?\tthe cat", **body})
    assert status == 400, found
    assert found["error"]["param"] == field
    assert "expected" in found["error"]["message"] or "has no effect" in found["error"]["message"]


@pytest.mark.parametrize("name", ["translator", "classifier", "filler", "embedder"])
def test_an_input_that_is_too_long_is_refused_or_cut_as_the_request_says(server, model_paths, name):
    inputs = ["the cat", "the ___ cat " * 300]
    status, _, found = server.ask(f"/v1/tasks/{name}", {"input": inputs})
    assert status == 400
    assert found["error"]["param"] == "input"
    assert re.search(r"expected at most \d+.*truncate=true", found["error"]["message"])
    assert "--truncate" not in found["error"]["message"]
    results = run(server, name, input=inputs, truncate=True)["results"]
    if name != "embedder":
        expected = load(model_paths[name], truncate=True).answer_lines(inputs, LineRequest())
        assert [one["output"] for one in results] == [answer.line for answer in expected]


def test_a_text_that_is_read_in_windows_is_never_too_long(server):
    assert run(server, "tagger", input="the cat " * 500)["results"]


def test_an_unknown_model_is_not_found(server):
    assert server.ask("/v1/tasks/nobody", {"input": "a"})[0] == 404


@pytest.mark.parametrize("kind", ["mbart", "nllb"])
def test_languages_are_chosen_for_each_request(server, model_paths, kind):
    model = load(model_paths[kind])
    codes = sorted(model.languages.codes)
    for source, target in ((codes[0], codes[1]), (codes[2], codes[0])):
        asked = {"source_language": source, "target_language": target, "beam": 1}
        found = run(server, kind, input=["one two", "vier"], **asked)["results"]
        expected = model.with_languages(source, target).run(["one two", "vier"], beam=1)
        assert [one["output"] for one in found] == expected


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("nllb", {}, "target_language"),
        ("nllb", {"source_language": "x", "target_language": "deu"}, "source_language"),
        ("nllb", {"target_language": "deu", "alignment": True}, "alignment"),
        ("translator", {"target_language": "de"}, "target_language"),
    ],
)
def test_wrong_languages_are_refused(server, name, body, field):
    status, _, found = server.ask(f"/v1/tasks/{name}", {"input": "one", **body})
    assert status == 400, found
    assert found["error"]["param"] == field
