"""Choose default options that fit the data and the time.

`choose_defaults` chooses a model and its training options from the size of the corpus and from the number of
floating-point operations that fit into the time. docs/defaults.md shows the training runs behind its numbers. An option
that the user gave is never changed, and options that depend on it follow: with `--d-model 256` the feed-forward layer
of an encoder-decoder is 768 wide.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

from glassformer.models.config import ModelConfig
from glassformer.models.config_names import HEAD_FIELDS
from glassformer.models.costs import training_flops
from glassformer.models.presets import FULL_SIZE, preset
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.encoder_rule import EncoderRule
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.task_options import AUTOMATIC, make_config

Size = Literal["auto", "tiny", "small", "base"]
SIZES: dict[str, tuple[int, int]] = {"tiny": (128, 1), "small": (256, 3), "base": (512, 6)}
"""Width, and number of layers of the encoder and of the decoder, for each `--size`. base has those of the base model of
Vaswani et al. (2017). A model with one stack has twice as many layers."""
DEFAULT_MINUTES = {"encoder": 5.0, "decoder": 10.0, "encoder_decoder": 10.0}
"""Value of --minutes by kind of model, if neither --minutes nor --updates is given."""
REFERENCE_FLOPS = 2.9e12
"""Unit of `scale` in the rules below: the floating-point operations of two minutes of training on two slow cores. The
rules were measured at scales from 1 to 50 and are extrapolated beyond."""
MAX_VOCABULARY = 32_000
"""Largest vocabulary that is chosen."""
NOT_OF_A_FAMILY = frozenset(
    {
        *("vocab_size", "source_vocab_size", "n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "max_len"),
        *("n_heads", "n_kv_heads", "head_dim", "embedding_width", "sliding_window", "token_types", "position_offset"),
        *("global_layers", "local_rope_theta", "unrotated_layers"),
        *("expert_d_ff", "shared_expert_d_ff", "dense_layers"),
        *("rope_width", "rope_scaling", "rope_factor", "rope_original_len", "rope_low_rotations"),
        *("rope_high_rotations", "rope_attention_factor", "rope_short_divisors", "rope_long_divisors"),
        *("head", *HEAD_FIELDS, "output_bias", "dropout", "embedding_dropout", "layer_drop"),
        *("attention_dropout", "activation_dropout", "init", "init_std"),
    }
)
"""Fields of a model config that `--preset` does not take from the family: sizes, head, dropout, initialization."""
PAIR_DEPTHS, ENCODER_DEPTHS = (10, 100, 3_000, 30_000), (30, 300, 3_000, 30_000)
"""Scales (in units of `REFERENCE_FLOPS`) above which each stack of an encoder-decoder has 2, 3, 4 and 6 layers, and
above which an encoder has 2, 3, 4 and 6 times the layers of its rule."""
WARMUP = 0.06
"""Length of the warm-up as a fraction of all updates, so that it changes with the number of updates."""
HIGHEST_TUNING_LR = 3e-3
"""The highest default learning rate of AdamW when a model that Glassformer trained is trained further. Training from
scratch with Muon has a higher one. After a minute of Shakespeare, 150 updates with 1e-2, 3e-3 and 1e-3 came to 2.459,
2.439 and 2.462 bits per byte on more of it, and to 2.560, 2.606 and 2.705 on Wikipedia. A model that was trained for
longer loses more by 1e-2."""
FINE_TUNING_CONTEXT = 512
"""Tokens of a training window of a decoder that is fine-tuned, unless the model reads fewer."""
TRAINING_SHARE = 0.85
"""Fraction of the time that is spent on updates; the rest is for validations and the final scores."""


class TrainingBudget(NamedTuple):
    """The training budget, in seconds or in updates, and a function that measures the training speed in FLOP/s."""

    seconds: float
    """Seconds for the updates; 0 if the number of updates is given instead."""
    updates: int
    """Number of updates; 0 if the time is given instead."""
    flops_per_second: Callable[[TaskConfig], float]
    """Returns the floating-point operations per second of training with a config on this machine."""


def default_minutes(kind: type[TaskConfig], given: Mapping[str, Any]) -> float:
    """Return the minutes to train: as given, else the default; 0 if the number of updates is given instead."""
    if given.get("train.minutes"):
        return float(given["train.minutes"])
    return 0.0 if given.get("train.updates") else DEFAULT_MINUTES[_usual(kind).model.kind]


def choose_defaults(
    kind: type[TaskConfig], given: Mapping[str, Any], corpus: CorpusSize, speed: TrainingBudget, size: Size = "auto"
) -> dict[str, Any]:
    """Return the chosen options of a task by dotted name; given values replace chosen ones.

    The speed of the machine depends on the model, and the choice of the model on the speed. So the model is chosen and
    its speed measured repeatedly, at most four times, until the model stays the same.

    Args:
        kind: The class of the task's config.
        given: The options that the user gave, by dotted name.
        corpus: The size of the training data.
        speed: The time or the number of updates, and the function that measures the speed.
        size: A named size of the model; "auto" chooses it.
    """
    given = {**_shape(_usual(kind).model, size), **given}
    fixed = {name: value for name, value in given.items() if name in AUTOMATIC}
    minutes = default_minutes(kind, given)
    if minutes:
        fixed["train.minutes"] = minutes
    scale = (speed.updates / 1000) ** 1.8 if speed.updates else 1.0
    chosen: dict[str, Any] = {}
    for _ in range(4):
        before = chosen
        chosen = {**_choose(kind, given, corpus, scale, speed), **fixed}
        if not speed.seconds or _model_of(chosen) == _model_of(before):
            break
        flops = speed.flops_per_second(make_config(kind, {**given, **chosen})) * speed.seconds
        scale = flops / REFERENCE_FLOPS
    if divides_matrices(given.get("train.parallel", "")) and "train.optimizer" not in given:
        # Muon needs whole matrices. AdamW is as good at the same learning rate: 1.750 instead of 1.755 bits per byte
        # after 300 updates of the default language model.
        chosen["train.optimizer"] = "adamw"
    return chosen


def divides_matrices(parallel: str) -> bool:
    """Return whether each process holds only parts of matrices with this value of `--parallel`: shard=N or tensor=N."""
    sizes = dict(part.strip().partition("=")[::2] for part in parallel.split(","))
    return "shard" in sizes or sizes.get("tensor", "1") != "1"


def choose_for_fine_tuning(
    kind: type[TaskConfig], given: Mapping[str, Any], *, is_pretrained: bool, longest: int | None = None
) -> dict[str, Any]:
    """Return the options for fine-tuning a trained model, by dotted name; given values replace chosen ones.

    `is_pretrained` says that Glassformer did not train the model, which then gets a small learning rate. Otherwise it
    is that of the task, at most `HIGHEST_TUNING_LR`. `longest` is the most tokens that it can read; None is no limit. A
    language model of Glassformer keeps it as its context.
    """
    values: dict[str, Any] = {"train.optimizer": "adamw", "train.schedule": "linear", "train.weight_decay": 0.01}
    values["train.warmup"] = WARMUP
    if is_pretrained:
        values["train.lr"] = 5e-4 if given.get("train.lora_rank") else 5e-5
        if "context" in {field.name for field in fields(kind)}:
            values["context"] = min(FINE_TUNING_CONTEXT, longest or FINE_TUNING_CONTEXT)
    else:
        values["train.lr"] = min(_usual(kind).train.lr, HIGHEST_TUNING_LR)
        if longest is not None and "context" in {field.name for field in fields(kind)}:
            values["context"] = longest
    minutes = default_minutes(kind, given)
    if minutes:
        values["train.minutes"] = minutes
    return {**values, **{name: value for name, value in given.items() if name in AUTOMATIC or name in values}}


def _choose(
    kind: type[TaskConfig], given: Mapping[str, Any], corpus: CorpusSize, scale: float, speed: TrainingBudget
) -> dict[str, Any]:
    """Return default values of model and training options, by dotted name, for the data and the time.

    `scale` is the number of operations that fit into the time, in units of `REFERENCE_FLOPS`. If the task has an
    `EncoderRule` and too few updates fit, the sets of options in its `cheaper` are tried one after the other.
    """
    rule = kind.ENCODER_RULE
    if rule is None:
        return _choose_once(kind, given, corpus, scale, speed, {})
    for change in ({}, *rule.cheaper):
        values = _choose_once(kind, given, corpus, scale, speed, change)
        if _fitting(kind, {**values, **given}, corpus, scale, speed) >= rule.enough_updates:
            break
    return values


def _choose_once(
    kind: type[TaskConfig],
    given: Mapping[str, Any],
    corpus: CorpusSize,
    scale: float,
    speed: TrainingBudget,
    change: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what `_choose` returns, for one attempt to fit the training into the time.

    `change` holds the options of this attempt that replace those of the task's `EncoderRule`: none in the first
    attempt, then one set of `EncoderRule.cheaper` after the other.
    """
    usual, rule = _usual(kind), kind.ENCODER_RULE
    is_pair = usual.model.kind == "encoder_decoder"
    longest = min(max(corpus.lengths()), given.get("model.max_len", usual.model.max_len) or 10**9)
    if is_pair:
        values = _architecture(usual.model, given, corpus, scale)
    elif rule:
        values = {**_encoder(rule, {**change, **given}, corpus, scale), **change}
    else:
        values = _usual_architecture(usual.model, given)
    most = usual.model.vocab_size if not is_pair and not rule else MAX_VOCABULARY
    vocabulary = rule.vocabulary(corpus) if rule and rule.vocabulary else _vocabulary(scale, corpus)
    values["model.vocab_size"] = min(vocabulary, most)
    least = _round(8 * longest, 256)  # so that an update sees several examples
    tokens = _round(512 * scale**0.35, 256) if is_pair else rule.batch_tokens(corpus) if rule else 1024
    values["train.max_tokens"] = max(tokens, least)
    together = {**values, **given}
    config = make_config(kind, together)
    updates = _fitting(kind, together, corpus, scale, speed)
    updates_per_epoch = max(1, longest * corpus.examples) / config.train.max_tokens
    if is_pair:
        values |= _learning(config.model, updates, updates / updates_per_epoch)
    if rule and rule.max_updates and not speed.updates:
        values["train.max_updates"] = max(rule.max_updates, round(rule.max_epochs * updates_per_epoch))
        updates = min(updates, values["train.max_updates"])
    if rule:  # a validation takes a second, and few examples are soon learned by heart
        validations = min(10, max(1, updates // 100))
    else:
        validations = min(10, max(1, round(speed.seconds / 120) if speed.seconds else updates // 500))
    values["train.warmup"] = WARMUP
    values["train.eval_every"] = values["train.save_every"] = max(1, -(-updates // validations))
    return values


def _fitting(
    kind: type[TaskConfig], values: Mapping[str, Any], corpus: CorpusSize, scale: float, speed: TrainingBudget
) -> int:
    """Return the given number of updates, else how many fit into the time if the options are `values`."""
    return speed.updates or max(20, round(scale * REFERENCE_FLOPS / update_flops(make_config(kind, values), corpus)))


def _architecture(model: ModelConfig, given: Mapping[str, Any], corpus: CorpusSize, scale: float) -> dict[str, Any]:
    """Return width and depth of an encoder-decoder, with heads, feed-forward size and initialization for the width."""
    width = given.get("model.d_model") or _width(scale, corpus)
    depth = _growth(scale, PAIR_DEPTHS)
    is_gated = given.get("model.gated", model.gated)
    return {
        "model.d_model": width,
        "model.n_encoder_layers": depth,
        "model.n_decoder_layers": depth,
        "model.n_heads": _heads(width),
        "model.d_ff": (2 if is_gated else 3) * width,
        "model.init": "normal",
        "model.init_std": round(width**-0.5, 4),
    }


def _encoder(rule: EncoderRule, given: Mapping[str, Any], corpus: CorpusSize, scale: float) -> dict[str, Any]:
    """Return the architecture and the training options of an encoder, as the `rule` of its task says."""
    width = given.get("model.d_model") or min(
        _round(rule.width * max(1.0, scale / 5) ** 0.25, 32),
        _round(rule.width * max(1.0, corpus.tokens / 500_000) ** 0.25, 32),
        1024,
    )
    return {
        "model.d_model": width,
        "model.n_encoder_layers": rule.layers * _growth(scale, ENCODER_DEPTHS),
        "model.n_heads": _heads(width),
        "model.d_ff": 2 * width,
        "model.init": "normal",
        "model.init_std": round(width**-0.5, 4),
        "train.optimizer": "muon",
        "train.lr": 5e-3,
        "train.weight_decay": 0.3,
        "train.schedule": "linear",
        **{name: value for name, value in rule.others.items() if name not in _unused(given)},
    }


def _unused(given: Mapping[str, Any]) -> set[str]:
    """Return the names of options that have no effect together with the given ones."""
    return {"train.label_smoothing"} if given.get("data.multi_label") else set()


def _usual_architecture(model: ModelConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heads, feed-forward size and initialization of an encoder or decoder of the given width.

    Without a given width nothing is changed, and the result is empty.
    """
    width = given.get("model.d_model")
    if not width:
        return {}
    return {"model.n_heads": _heads(width), "model.d_ff": 2 * width, "model.init_std": round(width**-0.5, 4)}


def _learning(model: ModelConfig, updates: int, epochs: float) -> dict[str, Any]:
    """Return the optimizer options of an encoder-decoder, and the dropout and weight decay against overfitting."""
    width, capacity = model.d_model, model.n_decoder_layers * (model.d_model / 128) ** 2
    dropout = _dropout(epochs * max(1.0, capacity) ** 0.5)  # a larger model needs fewer epochs for it
    # What weights forget in a run is the sum of learning rate times weight decay: it should stay about the same.
    decay = min(1.0, max(0.15, 600 / updates, epochs / 30))
    return {
        "model.dropout": dropout,
        "model.embedding_dropout": dropout,
        "train.optimizer": "muon",
        "train.lr": round(1e-2 * min(1.0, (192 / width) ** 0.5), 5),
        "train.weight_decay": round(decay, 2),
        "train.schedule": "linear",
    }


def preset_options(kind: type[TaskConfig], name: str) -> dict[str, Any]:
    """Return the options of a model family's architecture by dotted name, such as norms, positions and activation.

    Sizes, head, dropout and initialization are left out. Raises ValueError if the family is of another kind of model
    than the task trains.
    """
    wanted, found = _usual(kind).model, preset(name)
    if found.kind != wanted.kind:
        fitting = ", ".join(one for one in FULL_SIZE if preset(one).kind == wanted.kind)
        raise ValueError(
            f"--preset {name} is of kind {found.kind!r}: this task trains a model of kind {wanted.kind!r}, "
            f"expected one of {fitting}"
        )
    # Only a head that writes words can share the table of embeddings.
    left_out = NOT_OF_A_FAMILY if wanted.head == "language_model" else NOT_OF_A_FAMILY | {"tie"}
    return {f"model.{one.name}": getattr(found, one.name) for one in fields(found) if one.name not in left_out}


def _usual(kind: type[TaskConfig]) -> TaskConfig:
    """Return the config of a task with the fixed default of every option."""
    return kind()  # type: ignore[call-arg]  # every task has a default for each part


def _shape(model: ModelConfig, size: Size) -> dict[str, Any]:
    """Return the width and the number of layers of a named size, by dotted name; empty for "auto"."""
    if size == "auto":
        return {}
    width, depth = SIZES[size]
    sides = {
        "model.n_encoder_layers": model.n_encoder_layers,
        "model.n_decoder_layers": model.n_decoder_layers,
    }
    single = model.kind != "encoder_decoder"
    layers = {name: 2 * depth if single else depth for name, count in sides.items() if count}
    return {"model.d_model": width, **layers}


def _width(scale: float, corpus: CorpusSize) -> int:
    """Return the width of an encoder-decoder: 128 for a few minutes on a slow machine, more for more time.

    The number of tokens in the corpus also limits it.
    """
    by_time = 128 * (scale / 5) ** 0.25 if scale > 5 else (128 if scale > 0.3 else 96 if scale > 0.1 else 64)
    by_data = 128 * max(1.0, corpus.tokens / 50_000) ** 0.25
    return max(64, min(1024, _round(min(by_time, by_data), 32)))


def _growth(scale: float, steps: tuple[int, ...]) -> int:
    """Return a number of layers, or a factor for it, that grows with `scale`.

    It is 1, 2, 3, 4 or 6 if `scale` is larger than none, one, two, three or all of the four `steps`.
    """
    return (1, 2, 3, 4, 6)[sum(scale > step for step in steps)]


def _heads(width: int) -> int:
    """Return the number of heads for a width, such that a head has a width of 32 or a little more."""
    return max(heads for heads in range(1, max(1, width // 32) + 1) if width % heads == 0)


def _vocabulary(scale: float, corpus: CorpusSize) -> int:
    """Return the vocabulary size, which grows with the time and with the amount of text.

    A larger vocabulary takes longer to learn and needs more text, so the smaller of both limits applies.
    """
    by_time, by_data = 4000 * scale**0.3, 4000 * max(1.0, corpus.tokens / 34_000) ** 0.28
    return max(1000, min(MAX_VOCABULARY, _round(min(by_time, by_data), 500)))


def vocabulary_for(corpus: CorpusSize) -> int:
    """Return the vocabulary size for a corpus, if there is enough time to learn it."""
    return _vocabulary(1e9, corpus)


def _dropout(epochs: float) -> float:
    """Return the dropout for a run of this many epochs.

    It is 0 for few epochs, because a model memorizes only examples that it sees often. The values are for a model with
    one layer of width 128. A larger model memorizes sooner: for it the caller passes a larger number of epochs.
    """
    return 0.0 if epochs <= 13 else 0.1 if epochs <= 60 else 0.2 if epochs <= 100 else 0.3


def update_flops(config: TaskConfig, corpus: CorpusSize) -> float:
    """Return the estimated floating-point operations of one update, as if all examples had the mean length."""
    source, target = corpus.lengths()
    if config.model.kind != "encoder_decoder":
        source, target = (max(source, target), 0) if config.model.kind == "encoder" else (0, max(source, target))
    rows = max(1, config.train.max_tokens // max(source, target, 1))
    limit = config.model.max_len or 10**9
    once = training_flops(config.model, batch=rows, source_length=min(source, limit), target_length=min(target, limit))
    return once * config.train.passes


def _model_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen sizes of the model, on which the measured speed depends."""
    names = ("d_model", "n_encoder_layers", "n_decoder_layers", "vocab_size")
    return {name: values.get(f"model.{name}") for name in names}


def _round(value: float, step: int) -> int:
    return max(step, round(value / step) * step)
