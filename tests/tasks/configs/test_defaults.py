"""Defaults fit the data and the time, and given options override them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.base.dataclass_flags import options_of
from glassformer.models import ModelConfig
from glassformer.models.presets import FULL_SIZE, preset
from glassformer.tasks.configs.defaults import (
    DEFAULT_MINUTES,
    REFERENCE_FLOPS,
    SIZES,
    CorpusSize,
    TrainingBudget,
    choose_defaults,
    choose_for_fine_tuning,
    default_minutes,
    divides_matrices,
    preset_options,
)
from glassformer.tasks.configs.task_options import AUTOMATIC, make_config
from glassformer.tasks.task_registry import TASKS, config_named, task_named
from glassformer.training.train_config import TrainConfig
from glassformer.training.training_speed import measure_training_speed

MULTI30K = CorpusSize(29_000, 2_100_000, 1_800_000)
TRANSLATION = config_named("translation")


def chosen_for(corpus, seconds, *, given=None, size="auto", flops_per_second=2.9e10, kind=TRANSLATION):
    speed = TrainingBudget(seconds, 0, lambda config: flops_per_second)
    return choose_defaults(kind, given or {}, corpus, speed, size)


@given(
    task=st.sampled_from(sorted(TASKS)),
    examples=st.integers(1, 10**8),
    length=st.integers(1, 5_000),
    seconds=st.floats(0.1, 1e6),
    speed=st.floats(1e8, 1e15),
    size=st.sampled_from(["auto", *SIZES]),
)
def test_any_corpus_and_time_give_a_valid_config(task, examples, length, seconds, speed, size):
    kind = config_named(task)
    chosen = chosen_for(
        CorpusSize(examples, examples * length, examples * length),
        seconds,
        size=size,
        flops_per_second=speed,
        kind=kind,
    )
    assert chosen.keys() <= AUTOMATIC
    config = make_config(kind, chosen)
    assert config.model.d_model % config.model.n_heads == 0
    assert json.loads(json.dumps(chosen)) == chosen, "the run folder keeps it as JSON"


@given(data=st.data())
def test_given_options_override_the_defaults(data):
    options = {option.path: option for option in options_of(TRANSLATION).values()}
    values = {
        "model.d_model": st.sampled_from([32, 48, 100, 256]),
        "model.vocab_size": st.integers(500, 9_000),
        "model.dropout": st.sampled_from([0.0, 0.15]),
        "train.lr": st.floats(1e-5, 1e-1),
        "train.max_tokens": st.integers(64, 9_000),
        "train.warmup": st.integers(0, 900),
        "train.weight_decay": st.floats(0, 1),
    }
    given = data.draw(st.fixed_dictionaries({}, optional=values))
    assert values.keys() <= options.keys() & AUTOMATIC
    chosen = chosen_for(MULTI30K, 100.0, given=given)
    assert {name: chosen[name] for name in given} == given


@pytest.mark.parametrize("task", ["translation", "language", "classification"])
def test_matrices_in_parts_are_not_trained_by_muon(task):
    kind = config_named(task)
    for parallel, optimizer in (("data=2", "muon"), ("shard=2", "adamw"), ("data=2,tensor=2", "adamw")):
        chosen = chosen_for(MULTI30K, 120, given={"train.parallel": parallel}, kind=kind)
        assert make_config(kind, {**chosen, "train.parallel": parallel}).train.optimizer == optimizer
    given = {"train.parallel": "shard=2", "train.optimizer": "adam"}
    assert chosen_for(MULTI30K, 120, given=given, kind=kind)["train.optimizer"] == "adam"
    assert not divides_matrices("")
    assert not divides_matrices("data=2, tensor=1")


def test_values_that_depend_on_a_given_width_follow_it():
    chosen = chosen_for(MULTI30K, 100.0, given={"model.d_model": 320})
    assert (chosen["model.d_ff"], chosen["model.n_heads"], chosen["model.init_std"]) == (960, 10, 0.0559)


def test_a_gated_layer_is_narrower_because_it_has_three_matrices():
    plain, gated = (chosen_for(MULTI30K, 100.0, given={"model.gated": gated}) for gated in (False, True))
    assert plain["model.d_ff"] == 3 * plain["model.d_model"]
    assert gated["model.d_ff"] == 2 * gated["model.d_model"]


def test_more_time_never_gives_a_smaller_model():
    widths, sizes = [], []
    for seconds in (5, 50, 100, 300, 900, 3_000, 10_000, 10**6, 10**8):
        chosen = chosen_for(CorpusSize(10**7, 10**9, 10**9), float(seconds))
        widths.append(chosen["model.d_model"])
        sizes.append(chosen["model.vocab_size"])
    assert widths == sorted(widths)
    assert sizes == sorted(sizes)
    assert widths[0] < widths[-1]


def test_few_examples_give_more_dropout_and_weight_decay():
    few, many = chosen_for(CorpusSize(1_000, 65_000, 60_000), 900.0), chosen_for(MULTI30K, 100.0)
    assert few["model.dropout"] > many["model.dropout"] == 0
    assert few["train.weight_decay"] == 1.0


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("seconds", [20.0, 100.0, 5000.0])
def test_the_warm_up_is_a_share_so_that_it_follows_a_corrected_plan(task, seconds):
    assert chosen_for(MULTI30K, seconds, kind=config_named(task))["train.warmup"] == 0.06
    for options in ({}, {"train.updates": 300}):
        assert choose_for_fine_tuning(config_named(task), options, is_pretrained=True)["train.warmup"] == 0.06


def test_the_speed_is_measured_for_the_chosen_model():
    """A machine that is fast only with wide models gets a wide model."""

    def flops_per_second(config):
        return 3e12 if config.model.d_model >= 128 else 1e9

    speed = TrainingBudget(100.0, 0, flops_per_second)
    assert choose_defaults(TRANSLATION, {}, MULTI30K, speed)["model.d_model"] > 160


def test_texts_beyond_the_limit_of_the_model_do_not_enlarge_batches():
    long, longer = (chosen_for(CorpusSize(1000, 1000 * n, 1000 * n), 100.0) for n in (1_100, 100_000))
    assert long["train.max_tokens"] == longer["train.max_tokens"] == 8 * 256


def test_a_named_size_sets_width_and_depth():
    for size, (width, depth) in SIZES.items():
        chosen = chosen_for(MULTI30K, 100.0, size=size)
        assert (chosen["model.d_model"], chosen["model.n_encoder_layers"], chosen["model.n_decoder_layers"]) == (
            width,
            depth,
            depth,
        )


@pytest.mark.parametrize("task", TASKS)
def test_each_task_trains_for_a_moderate_time_by_default(task):
    kind = config_named(task)
    assert default_minutes(kind, {}) in DEFAULT_MINUTES.values()
    assert default_minutes(kind, {"train.minutes": 3}) == 3
    assert default_minutes(kind, {"train.updates": 300}) == 0


@pytest.mark.parametrize("task", TASKS)
def test_every_preset_of_the_right_kind_gives_a_valid_config(task):
    kind = config_named(task)
    fitting = [name for name in FULL_SIZE if preset(name).kind == kind().model.kind]
    assert fitting
    for name in fitting:
        given = preset_options(kind, name)
        chosen = chosen_for(MULTI30K, 60, given=given, kind=kind, size="tiny")
        assert make_config(kind, {**given, **chosen}).model.kind == preset(name).kind


def test_a_preset_gives_its_architecture_and_not_its_size():
    options = preset_options(config_named("language"), "gpt2")
    assert options["model.positions"] == "learned"
    assert "model.d_model" not in options
    with pytest.raises(ValueError, match="'decoder': this task trains a model of kind 'encoder_decoder'"):
        preset_options(TRANSLATION, "gpt2")


def test_the_speed_of_training_is_measured_for_each_kind_of_model():
    for changes in ({"n_encoder_layers": 1}, {"n_decoder_layers": 1}, {"n_encoder_layers": 1, "n_decoder_layers": 1}):
        head = "none" if "n_decoder_layers" not in changes else "language_model"
        config = ModelConfig(vocab_size=50, d_model=16, n_heads=2, d_ff=32, max_len=12, head=head, **changes)
        assert measure_training_speed(config, TrainConfig(minutes=0.01, max_tokens=64, device="cpu"), 20) > 0


def test_the_reference_time_gives_the_measured_settings():
    chosen = chosen_for(MULTI30K, REFERENCE_FLOPS / 2.9e10)
    assert (chosen["model.d_model"], chosen["model.vocab_size"], chosen["train.max_tokens"]) == (128, 4000, 512)


def test_a_classifier_of_several_labels_gets_no_option_without_effect():
    kind = config_named("classification")
    corpus = CorpusSize(5_000, 250_000)
    assert chosen_for(corpus, 250.0, kind=kind)["train.label_smoothing"] == 0.1
    several = chosen_for(corpus, 250.0, kind=kind, given={"data.multi_label": True})
    assert "train.label_smoothing" not in several
    assert not task_named("classification")(make_config(kind, {**several, "data.multi_label": True})).unused() & {
        name.rpartition(".")[2] for name in several
    }


def test_the_defaults_of_tagging_use_bpe_dropout_and_entity_swaps():
    chosen = chosen_for(CorpusSize(14_000, 1_100_000), 250.0, kind=config_named("tagging"))
    assert chosen["swap_entities"] > 0
    assert chosen["tokenizer.bpe_dropout"] > 0
    assert chosen["train.adversarial"] == 1.0
    short = chosen_for(CorpusSize(14_000, 1_100_000), 25.0, kind=config_named("tagging"))
    assert short["train.adversarial"] == 0.0, "updates count more while they are few"


def test_a_classifier_stops_where_more_updates_do_not_help():
    kind = config_named("classification")
    small, large, huge = (chosen_for(CorpusSize(n, 50 * n), 2500.0, kind=kind) for n in (5_000, 60_000, 10**6))
    assert small["train.max_updates"] == 1200
    assert small["train.max_updates"] < large["train.max_updates"] < huge["train.max_updates"]
    assert small["model.vocab_size"] < large["model.vocab_size"] < huge["model.vocab_size"] <= 32_000
    assert small["train.max_tokens"] < large["train.max_tokens"] < huge["train.max_tokens"]
    assert small["train.eval_every"] <= 1200
    asked = chosen_for(CorpusSize(5_000, 250_000), 250.0, kind=kind, given={"train.max_updates": 7})
    assert asked["train.max_updates"] == 7


def test_a_classifier_with_little_time_makes_cheaper_updates_instead_of_few():
    kind, corpus = config_named("classification"), CorpusSize(60_000, 3_000_000)
    found = [chosen_for(corpus, seconds, kind=kind) for seconds in (10.0, 100.0, 250.0)]
    assert [one["model.d_model"] for one in found] == [128, 128, 256]
    assert [one["model.d_ff"] for one in found] == [256, 256, 512]
    assert [one["train.adversarial"] for one in found] == [0.0, 2.0, 2.0]
    wide = chosen_for(corpus, 10.0, kind=kind, given={"model.d_model": 384})
    assert (wide["model.d_model"], wide["model.d_ff"]) == (384, 768), "what is given stays"


def test_a_translator_with_more_time_is_deeper_and_drops_more():
    def at(units):
        return chosen_for(MULTI30K, units * REFERENCE_FLOPS / 2.9e10)

    assert [at(units)["model.n_decoder_layers"] for units in (1, 7, 25, 50)] == [1, 1, 2, 2]
    assert [at(units)["model.dropout"] for units in (1, 7, 12, 25, 50)] == [0.0, 0.0, 0.0, 0.1, 0.1]
