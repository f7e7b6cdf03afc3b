"""Reading another library's `config.json`: old and new keys, and a clear word about what is not supported."""

from collections.abc import Mapping
from typing import Any

_MISSING = object()

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


class UnsupportedModelError(ValueError):
    """A checkpoint that this library cannot express."""


def value(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """The first of these keys that is there; None counts as absent."""
    for key in keys:
        if values.get(key) is not None:
            return values[key]
    if default is _MISSING:
        raise ValueError(f"config.json has no {' or '.join(map(repr, keys))}: expected one")
    return default


def whole(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """The same, for a whole number."""
    found = value(values, *keys, default=default)
    if found is not default and (isinstance(found, bool) or not isinstance(found, int)):
        raise ValueError(f"config.json has {keys[0]}={found!r}: expected a whole number")
    return found


def require(values: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Raise unless the key is absent or one of these."""
    if values.get(key) is not None and values[key] not in allowed:
        raise UnsupportedModelError(
            f"config.json has {key}={values[key]!r}, which is not supported: expected {' or '.join(map(repr, allowed))}"
        )


def activation(values: Mapping[str, Any], *keys: str, default: str) -> str:
    """Our name of an activation."""
    name = value(values, *keys, default=default)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json has {keys[0]}={name!r}, which is not supported: expected one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def rope_theta(values: Mapping[str, Any], *, default: float = 10000.0) -> float:
    """The base of rotary angles, under `rope_parameters` or the older `rope_theta`; scaled ones are refused."""
    parameters = value(values, "rope_parameters", default={})
    scaling = value(values, "rope_scaling", default={})
    for name, found in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if not isinstance(found, Mapping):
            raise ValueError(f"config.json has {name}={found!r}: expected a table")
        kind = found.get("rope_type", found.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(f"config.json has {name} of type {kind!r}, not supported: expected 'default'")
        if found.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"config.json turns a part of each head only ({name}): expected all of it")
    require(values, "partial_rotary_factor", 1.0)
    return float(value({**values, **parameters}, "rope_theta", default=default))


def architecture(values: Mapping[str, Any]) -> str:
    """The name of the class that wrote the file, or nothing."""
    names = value(values, "architectures", default=[])
    return str(names[0]) if isinstance(names, list) and names else ""


def n_labels(values: Mapping[str, Any]) -> int:
    """How many classes a head has."""
    labels = value(values, "id2label", "num_labels", default=2)
    return labels if isinstance(labels, int) else len(labels)
