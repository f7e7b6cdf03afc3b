"""`glassformer.train`: the options of the command line as keyword arguments."""

import json

import pytest
import torch

import glassformer
from glassformer.tasks.train_function import read_request
from tasks.pretrained_models import save_decoder


def test_python_trains_with_the_same_options(tmp_path, reviews):
    options = {"updates": 2, "d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "vocab_size": 300}
    scores = glassformer.train("classification", data=str(reviews), out=str(tmp_path / "m"), device="cpu", **options)
    assert 0 <= scores["accuracy"] <= 100
    assert json.loads((tmp_path / "m" / "task.json").read_text(encoding="utf-8"))["task"] == "classification"
    with pytest.raises(ValueError, match=r"updates 2 \(now 3\)"):
        glassformer.train(
            "classification", data=[reviews], out=tmp_path / "m", device="cpu", **{**options, "updates": 3}
        )
    more = {**options, "updates": 3, "continue": True}
    glassformer.train("classification", data=[reviews], out=tmp_path / "m", device="cpu", **more)


def test_settings_may_be_drawn_at_random_for_several_trainings(tmp_path, reviews):
    options = {"updates": 1, "d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "vocab_size": 300}
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    torch.manual_seed(5)
    drawn = [torch.rand(1).item()]
    glassformer.train("classification", data=reviews, out=tmp_path / "m", device="cpu", **options)
    drawn.append(torch.rand(1).item())
    with pytest.raises(RuntimeError, match="stop here"):  # restored after a failure too
        glassformer.train("classification", data=reviews, out=tmp_path / "n", device="cpu", on_step=fail, **options)
    assert [*drawn, torch.rand(1).item()] == expected


def fail(event):
    raise RuntimeError("stop here")


def test_a_second_training_inside_a_training_is_refused(tmp_path, reviews):
    options = {"updates": 1, "d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "vocab_size": 300}
    options |= {"data": reviews, "device": "cpu"}
    with pytest.raises(RuntimeError, match="another training runs in this process: expected one at a time"):
        glassformer.train(
            "classification",
            out=tmp_path / "m",
            on_step=lambda event: glassformer.train("classification", out=tmp_path / "n", **options),
            **options,
        )
    assert not (tmp_path / "n.run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmpu": 3}, "'warmpu' is not an option of TranslationConfig: did you mean 'warmup'"),
        ({"lr": "x"}, "lr='x': expected a number"),
        ({"train.lr": "x"}, "lr='x': expected a number"),
        ({"source": 3}, "source=3: expected a list of paths"),
        ({"start_from": 3}, "start_from=3: expected a path"),
        ({"from": 3}, "start_from=3: expected a path"),
        ({"from_": "m"}, "'from_' is not an option of TranslationConfig: did you mean 'start_from'"),
        ({"size": "giant"}, "size='giant': expected one of auto, tiny, small, base"),
    ],
)
def test_python_options_are_checked_before_anything_is_written(tmp_path, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        glassformer.train("translation", out=tmp_path / "m", **options)
    with pytest.raises(ValueError, match="'translatoin' is not a task: did you mean 'translation'"):
        glassformer.train("translatoin", out=tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_complete_and_takes_no_size(tmp_path, reviews):
    (tmp_path / "r.toml").write_text("[train]\nupdates = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="--recipe describes the whole model"):
        glassformer.train("classification", data=reviews, out=tmp_path / "m", recipe=tmp_path / "r.toml", size="tiny")


def test_a_recipe_without_a_context_follows_the_limit_of_the_model(tmp_path, capsys):
    save_decoder(tmp_path / "hf")  # reads at most 128 tokens
    (tmp_path / "r.toml").write_text(f'from = "{(tmp_path / "hf").as_posix()}"\n', encoding="utf-8")
    given = {"data.data": (tmp_path / "talks.jsonl",)}
    assert read_request("chat", given, recipe=tmp_path / "r.toml").config.context == 128
    assert "context: 128 tokens, the limit of --from " in capsys.readouterr().err
    assert read_request("chat", {**given, "context": 500}, recipe=tmp_path / "r.toml").config.context == 500
    assert read_request("chat", {**given, "context": 64}, recipe=tmp_path / "r.toml").config.context == 64
    save_decoder(tmp_path / "long", max_position_embeddings=2048)
    more = {**given, "start_from": tmp_path / "long"}
    assert read_request("chat", more, recipe=tmp_path / "r.toml").config.context == 512
    assert "context" not in capsys.readouterr().err
