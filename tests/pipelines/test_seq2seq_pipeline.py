"""Pipelines with an encoder-decoder: candidates, long sources, tokenizers and limits."""

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.pipeline import LineRequest
from glassformer.pipelines.seq2seq_pipeline import MAX_BEAMS, check_cost, load_tokenizers
from glassformer.pipelines.translator import Translator
from glassformer.text.tokenizer import END
from pipelines.tiny_pipelines import make, tokenizer


def test_n_best_texts_are_sorted_by_score():
    tool = make(Translator)
    config = GenerationConfig(num_beams=4, num_return_sequences=3, max_new_tokens=6)
    (answer,) = tool.answer_lines(["the cat"], LineRequest(n_best=3, generation=config))
    assert len(answer.texts) == 3
    assert list(answer.scores) == sorted(answer.scores, reverse=True)
    assert answer.record["n_best"][0]["text"] == answer.line == answer.record["text"]


def test_greedy_and_beam_search_score_the_same_text_alike():
    tool = make(Translator)
    (greedy,) = tool.candidates(["the cat"], GenerationConfig(max_new_tokens=6), with_scores=True)
    (beam,) = tool.candidates(["the cat"], GenerationConfig(max_new_tokens=6, num_beams=2, num_return_sequences=2))
    same_text = [one.score for one in beam if one.text == greedy[0].text]
    assert greedy[0].score < 0
    assert same_text == [] or same_text[0] == pytest.approx(greedy[0].score, abs=1e-4)


def test_a_text_ends_before_a_stop_string():
    tool, config = make(Translator), GenerationConfig(max_new_tokens=6)
    (whole,) = tool.candidates(["the cat"], config)
    stop = whole[0].text[1:3]
    (cut,) = tool.candidates(["the cat"], replace(config, stop_strings=(stop,)))
    assert cut[0].text == whole[0].text[: whole[0].text.index(stop)] != whole[0].text
    with pytest.raises(ValueError, match="stop_strings with num_beams=2: expected greedy search or sampling"):
        tool.candidates(["the cat"], replace(config, stop_strings=(stop,), num_beams=2))


def test_a_long_source_is_cut_at_the_side_that_the_pipeline_drops():
    ids, translator, answerer = list(range(100, 200)), make(Translator), make(Answerer)
    with pytest.raises(ValueError, match=r"the input has 101 tokens: expected at most 64, .* --truncate"):
        translator.read_sources([ids])
    translator.truncate = answerer.truncate = True
    assert translator.read_sources([ids]) == [[*ids[:63], END]]
    assert answerer.read_sources([ids]) == [[*ids[-63:], END]]
    assert translator.read_sources([ids[:63]]) == [[*ids[:63], END]]
    assert translator.n_truncated == answerer.n_truncated == 1


def test_one_long_source_of_a_list_is_named_by_its_place():
    tool = make(Translator)
    with pytest.raises(ValueError, match="input 2 of 2 has 246 tokens"):
        tool.translate(["the cat", "it is red. " * 61])
    tool.truncate = True
    assert tool.translate(["the cat", "it is red. " * 61])[0] == tool.translate("the cat")
    assert tool.n_truncated == 1


def test_two_tokenizers_are_stored_in_two_files_and_a_missing_one_is_named(tmp_path):
    tool = make(Translator)
    assert set(tool.files()) == {"generation_config.json", "tokenizer.json"}
    tool.target_tokenizer = tokenizer("<x>")
    assert {"source_tokenizer.json", "target_tokenizer.json"} <= set(tool.files())
    (tmp_path / "source_tokenizer.json").write_text(tool.source_tokenizer.to_json(), encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer: expected tokenizer.json, or target_tokenizer.json"):
        load_tokenizers(tmp_path)


def test_a_folder_cannot_ask_for_an_unbounded_search():
    check_cost(Path("m"), MAX_BEAMS, 256)
    with pytest.raises(ValueError, match=rf"m asks for {MAX_BEAMS + 1} beams .* expected at most {MAX_BEAMS}"):
        check_cost(Path("m"), MAX_BEAMS + 1, 256)


def test_the_scoring_method_names_the_search():
    tool, methods = make(Translator), []
    for changes in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "do_sample": True}):
        tool.generation = replace(tool.generation, **changes)
        methods.append(tool.scoring_method())
    assert methods == ["greedy", "beam 3", "sampling"]
