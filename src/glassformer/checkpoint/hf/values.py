"""Read values of HF's `config.json`: old and new keys, type checks, and errors for unsupported values.

In every function, `values` is the parsed `config.json`, and `keys` are the names of one setting in different families
and versions of HF.
"""

import reprlib
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from glassformer.checkpoint.limits import UnsupportedModelError as UnsupportedModelError
from glassformer.nn.activations import ActivationName

Choice = TypeVar("Choice")
_MISSING = object()

MAX_INT = 2**31 - 1
"""The largest integer that is accepted. No real model needs more."""

FROM_HF_ACTIVATION: dict[str, ActivationName] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
TO_HF_ACTIVATION: dict[ActivationName, str] = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def read_value(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """Return the value of the first key that is present, or `default`. A value of None counts as absent.

    Raises ValueError if no key is present and there is no default.
    """
    for key in keys:
        if values.get(key) is not None:
            return values[key]
    if default is _MISSING:
        raise ValueError(f"config.json has no {' or '.join(map(repr, keys))}: expected one")
    return default


def read_int(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """Like `read_value`, for an integer. Raises ValueError for another type or an absolute value above `MAX_INT`."""
    found = read_value(values, *keys, default=default)
    if found is not default and (type(found) is not int or abs(found) > MAX_INT):
        raise ValueError(
            f"config.json has {_key(values, keys)}={shown(found)}: expected a whole number, at most {MAX_INT}"
        )
    return found


def read_float(values: Mapping[str, Any], *keys: str, default: float) -> float:
    """Like `read_value`, for a finite number, returned as a float. Raises ValueError for any other value."""
    found = read_value(values, *keys, default=default)
    if type(found) not in (int, float) or not abs(found) <= sys.float_info.max:
        raise ValueError(f"config.json has {_key(values, keys)}={shown(found)}: expected a finite number")
    return float(found)


def read_n_heads(values: Mapping[str, Any], *keys: str, width: int, default: Any = _MISSING) -> int:
    """Like `read_int`, for a number of attention heads. Raises ValueError unless it is from 1 to `width`."""
    found: int = read_int(values, *keys, default=default)
    if not 1 <= found <= width:
        raise ValueError(
            f"config.json has {_key(values, keys)}={found}: expected at least 1, at most {width}, the width"
        )
    return found


def read_bool(values: Mapping[str, Any], *keys: str, default: bool) -> bool:
    """Like `read_value`, for a bool. Raises ValueError for any other value."""
    found = read_value(values, *keys, default=default)
    if not isinstance(found, bool):
        raise ValueError(f"config.json has {_key(values, keys)}={shown(found)}: expected true or false")
    return found


def read_choice(values: Mapping[str, Any], *keys: str, default: str, known: Mapping[str, Choice]) -> Choice:
    """Like `read_value`, for a string with a fixed set of values. Return what `known` maps the string to.

    Raises UnsupportedModelError for a value that is not in `known`.
    """
    name = read_value(values, *keys, default=default)
    if not isinstance(name, str) or name not in known:
        key = _key(values, keys)
        raise UnsupportedModelError(
            f"config.json has {key}={shown(name)}, which is not supported: expected one of {', '.join(known)}"
        )
    return known[name]


def _key(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """Return the first of `keys` that is present, or else the first one, for error messages."""
    return next((key for key in keys if values.get(key) is not None), keys[0])


def shown(found: object) -> str:
    """Return a short `repr` of a value for an error message, however long or deeply nested the value is."""
    return reprlib.repr(found)


def require(values: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Raise UnsupportedModelError unless the key is absent, is None or has one of the allowed values."""
    if values.get(key) is not None and values[key] not in allowed:
        raise UnsupportedModelError(
            f"config.json has {key}={shown(values[key])}, which is not supported: "
            f"expected {' or '.join(map(repr, allowed))}"
        )


def read_activation(values: Mapping[str, Any], *keys: str, default: str) -> ActivationName:
    """Like `read_choice`, for an activation function. Return Glassformer's name for it."""
    return read_choice(values, *keys, default=default, known=FROM_HF_ACTIVATION)


def read_architecture(values: Mapping[str, Any]) -> str:
    """Return the first name in `architectures`, the HF class that saved the model, or "" if there is none."""
    names = read_value(values, "architectures", default=[])
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def has_lm_head(values: Mapping[str, Any], base: str, *heads: str) -> bool:
    """Return whether the checkpoint has a language-model head, judged by the HF class in `architectures`.

    `base` is the class without a head; `heads` are the classes with a language-model head. A config without
    `architectures` counts as having one. Raises UnsupportedModelError for any other class: its head is not supported.
    """
    name = read_architecture(values)
    if name and name not in (base, *heads):
        raise UnsupportedModelError(
            f"config.json has architectures=[{name[:80]!r}], whose head is not supported: expected "
            f"{' or '.join((*heads, base))}"
        )
    return name != base


def read_n_labels(values: Mapping[str, Any]) -> int:
    """Return the number of classes of a classification head.

    It is the length of `id2label`; without `id2label` it is `num_labels`, and without both it is 2.
    """
    labels = read_value(values, "id2label", default=None)
    if labels is None:
        return int(read_int(values, "num_labels", default=2))
    if not isinstance(labels, Mapping):
        raise ValueError(f"config.json has id2label={shown(labels)}: expected a name for each class")
    return len(labels)
