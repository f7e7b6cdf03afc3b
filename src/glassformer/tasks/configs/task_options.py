"""Convert the options that a user gives to a task into its config: `lr=0.001` becomes `config.train.lr`.

`base/dataclass_flags.py` derives the options, which are also the command-line flags, from the fields of the config.
"""

from collections.abc import Mapping
from dataclasses import replace
from keyword import iskeyword
from typing import Any, TypeVar

from glassformer.base.dataclass_flags import options_of
from glassformer.base.names import nearest

AUTOMATIC = frozenset(
    {
        *("model." + name for name in ("vocab_size", "n_encoder_layers", "n_decoder_layers", "d_model", "n_heads")),
        *("model." + name for name in ("d_ff", "dropout", "embedding_dropout", "init", "init_std")),
        *(
            "train." + name
            for name in ("minutes", "max_tokens", "optimizer", "lr", "weight_decay", "schedule", "threads")
        ),
        *("train." + name for name in ("warmup", "eval_every", "save_every", "label_smoothing", "word_dropout")),
        *("train.threads", "train.adversarial", "train.max_updates", "tokenizer.bpe_dropout", "swap_entities"),
    }
)
"""Dotted names of the options whose default `defaults.py` chooses for the data and the time."""
SHOWN_FIRST = ("minutes", "from", "device")
"""The options that `--help` shows first for every task."""
Config = TypeVar("Config")


def given_options(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return option values by dotted name (`train.lr`), from values by short or dotted name (`lr` or `train.lr`).

    Raises TypeError if `kind`, the class of a config, has no such option.
    """
    options = options_of(kind)
    names = {**options, **{option.path: option for option in options.values()}}
    for name in values:
        if name not in names:
            near = nearest(name, options)
            if near is not None and iskeyword(near):  # Python callers cannot write --from as `from`
                near = options[near].path
            hint = f"did you mean {near!r}?" if near else "glassformer train TASK --help-all lists the options"
            raise TypeError(f"{name!r} is not an option of {kind.__name__}: {hint}")
    return {names[name].path: value for name, value in values.items()}


def make_config(kind: type[Config], given: Mapping[str, Any]) -> Config:
    """Return a config of the class `kind` with the `given` values, by dotted name, and defaults for the remaining."""
    usual: Any = kind()
    changes: dict[str, dict[str, Any]] = {"": {}}
    for path, value in given.items():
        part, _, name = path.rpartition(".")
        changes.setdefault(part, {})[name] = value
    parts = {part: replace(getattr(usual, part), **some) for part, some in changes.items() if part}
    config: Config = replace(usual, **parts, **changes[""])
    return config
