"""The model card: data, size, scores and use. The tests execute its code snippet."""

import contextlib
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.cli.info import info
from glassformer.metrics.scores import Scores
from glassformer.pipelines.pipeline_registry import demo_tasks
from glassformer.pipelines.translator import Translator
from glassformer.tasks.card import code
from glassformer.tasks.recipes import load_recipe
from glassformer.tasks.task_registry import config_named, task_named
from glassformer.tasks.train_task import make_card
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.training.state import TrainState
from pipelines.tiny_pipelines import make

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SIZES = {"vocab_size": 300, "d_model": 16, "n_heads": 2, "d_ff": 16, "max_len": 64, "dropout": 0.0}


def lines_of_words(count=120):
    draw = random.Random(0)
    return [" ".join(draw.choices(list(WORDS), k=draw.randint(2, 5))) for _ in range(count)]


def write_data(folder, task):
    """Write files for a task, and return its data options."""
    kind = task_named(task).data_class()
    texts = lines_of_words()
    file = folder / "mine.jsonl"
    if task == "translation":
        (folder / "mine.en").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        (folder / "mine.fr").write_text("".join(f"{text.upper()}\n" for text in texts), encoding="utf-8")
        return kind(source=(folder / "mine.en",), target=(folder / "mine.fr",))
    if task in ("masking", "denoising", "language", "code"):
        (folder / "mine.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return kind(data=(folder / "mine.txt",), valid=(folder / "mine.txt",))
    if task == "tagging":
        file = folder / "mine.conll"
        file.write_text(
            "\n\n".join("\n".join(f"{word} B-{word}" for word in text.split()) for text in texts) + "\n",
            encoding="utf-8",
        )
        return kind(data=(file,))
    records = {
        "classification": lambda text: {"text": text, "label": text.split()[0]},
        "similarity": lambda text: {"text": text, "second": text[::-1], "score": len(text) % 5 / 4},
        "paraphrase": lambda text: {"text": text, "second": text[::-1], "label": len(text) % 2},
        "summarization": lambda text: {"source": f"{text}. More.", "target": text},
        "answering": lambda text: {"question": "first?", "context": text, "answer": text.split()[0]},
    }
    records["extraction"] = records["answering"]
    file.write_text("".join(json.dumps(records[task](text)) + "\n" for text in texts), encoding="utf-8")
    return kind(data=(file,))


def tiny(task, data, **train):
    """A config of a tiny model and two updates."""
    usual = task_named(task).Config(data=data)
    layers = {name: min(1, getattr(usual.model, name)) for name in ("n_encoder_layers", "n_decoder_layers")}
    values = {"updates": 2, "warmup": 1, "eval_every": 2, "save_every": 2, "max_tokens": 256, "device": "cpu", **train}
    config = replace(usual, model=replace(usual.model, **SIZES, **layers), train=replace(usual.train, **values))
    return replace(config, context=64) if hasattr(config, "context") else config


@pytest.mark.parametrize("task", sorted(demo_tasks()))
def test_the_card_of_each_task_names_data_size_and_scores_and_its_snippet_runs(tmp_path, monkeypatch, task, capsys):
    config = tiny(task, write_data(tmp_path, task))
    scores = task_named(task)(config).train(tmp_path / "my model")
    card = (tmp_path / "my model" / "README.md").read_text(encoding="utf-8")
    assert f"| task | `{task}` |" in card
    assert "/mine." in card
    assert re.search(r"\| training \w+ \| [1-9]", card)
    assert re.search(r"\| model \| \w+, [\d,]+ parameters", card)
    assert f"How they were computed: {scores.about}. " in card
    assert re.fullmatch(r"(.*, )?[\d,]+ validation \w+ (held out )?from mine\.\w+(, mine\.fr)?", scores.about)
    assert str(scores).endswith(f"({scores.about})"), "the last line of `train`"
    assert "validation after 2 updates (" in capsys.readouterr().err
    assert "chosen by them" in card
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(re.search(r"```toml\n(.*?)```", card, re.S)[1], encoding="utf-8")
    assert load_recipe(recipe, config_named(task)) == config
    assert "glassformer run 'my model'" in card
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(re.search(r"```python\n(.*?)```", card, re.S)[1], "card", "exec"), {})
    assert printed.getvalue().startswith("[")


def test_the_card_of_a_translator_names_both_sides_and_its_searches(tmp_path, capsys):
    scores = Translation(tiny("translation", write_data(tmp_path, "translation"))).train(tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert f"| source files | `{tmp_path / 'mine.en'}` |" in card
    assert f"| target files | `{tmp_path / 'mine.fr'}` |" in card
    guess = "(guessed from the file names)"
    assert f"| source language | en {guess} |\n| target language | fr {guess} |" in card
    assert scores.about.startswith("beam 4, ")
    assert re.search(r"during the training was computed: greedy, \d+ validation pairs held out", card)
    assert "updates (greedy, " in capsys.readouterr().err


GUESSED, UNKNOWN = " (guessed from the file names)", "not known"


@pytest.mark.parametrize(
    ("data", "source", "target"),
    [
        (PairData(source="a.en", target="a.de.gz"), f"en{GUESSED}", f"de{GUESSED}"),
        (PairData(source=["a.pt-BR", "b.pt-BR"], target="a.zh_Hant"), f"pt-BR{GUESSED}", f"zh_Hant{GUESSED}"),
        (PairData(source=["a.en", "b.fr"], target="a.txt"), UNKNOWN, UNKNOWN),
        (PairData(source="a.py", target="a.xx"), UNKNOWN, UNKNOWN),
        (PairData(source="pairs.tsv"), UNKNOWN, UNKNOWN),
        (PairData(source="a.txt", target="b.txt"), UNKNOWN, UNKNOWN),
        (PairData(source="a.txt", target="b.txt", target_language="fr"), UNKNOWN, "fr"),
        (PairData(source="a.txt", target="b.txt", source_language="en", target_language="de"), "en", "de"),
        (PairData(source="a.en", target="b.de", source_language="en-GB"), "en-GB", f"de{GUESSED}"),
        (PairData(corpus="multi30k"), "en", "de"),
        (PairData(corpus="multi30k", source_language="de", target_language="en"), "de", "en"),
    ],
)
def test_card_info_and_task_json_name_the_languages_that_are_known(data, source, target, tmp_path, capsys):
    facts = dict(Translation(TranslationConfig(data=data)).data_facts())
    assert facts["source language"].partition(";")[0] == source
    assert facts["target language"].partition(";")[0] == target
    make(Translator).save(tmp_path / "m", "card", data)
    about = json.loads((tmp_path / "m" / "task.json").read_text(encoding="utf-8"))["data"]
    for side, shown in (("source", source), ("target", target)):
        assert about[f"{side}_language"] == ("" if shown == UNKNOWN else shown.partition(" ")[0])
    info(tmp_path / "m")
    told = capsys.readouterr().out
    assert f"\n  languages      source {source}, target {target}\n" in told
    assert "source_language" not in told
    assert PairData(**about).languages()[0].code == about["source_language"], "what eval reads"
    Translator.from_folder(tmp_path / "m")


def test_file_names_with_markup_characters_are_escaped_in_the_card(tmp_path):
    assert code("a`b``c") == "``` a`b``c ```"
    folder = tmp_path / "a|b"
    folder.mkdir()
    task = Translation(tiny("translation", write_data(folder, "translation")))

    class Pipeline:
        class model:  # noqa: N801
            config, kind = task.config.model, "encoder_decoder"

            def n_parameters():
                return 5

    ready = type("Ready", (), {"pipeline": Pipeline, "n_train": 3, "is_test": True, "validation": "x"})
    card = make_card(task, Path("-m"), ready, TrainState(), Scores({"f1_a|b": 1.0}, about="x"))
    assert r"a\|b/mine.en" in card
    assert r"| F1 of a\|b | 1.00 |" in card
    assert "glassformer run ./-m" in card
    assert "was not chosen by them" in card
