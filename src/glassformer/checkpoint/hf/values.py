"""Reading another library's `config.json`: old and new keys, and a clear word about what is not supported."""

import reprlib
import sys
from collections.abc import Mapping
from typing import Any

from glassformer.checkpoint.limits import UnsupportedModelError as UnsupportedModelError

_MISSING = object()

MAX_INT = 2**31 - 1
"""No size of a real model is larger, and torch can count so far."""

FROM_HF_ACTIVATION = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
TO_HF_ACTIVATION = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def read_value(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """The first of these keys that is there; None counts as absent."""
    for key in keys:
        if values.get(key) is not None:
            return values[key]
    if default is _MISSING:
        raise ValueError(f"config.json has no {' or '.join(map(repr, keys))}: expected one")
    return default


def read_int(values: Mapping[str, Any], *keys: str, default: Any = _MISSING) -> Any:
    """The same, for a whole number."""
    found = read_value(values, *keys, default=default)
    if found is not default and (type(found) is not int or abs(found) > MAX_INT):
        raise ValueError(
            f"config.json has {_key(values, keys)}={shown(found)}: expected a whole number, at most {MAX_INT}"
        )
    return found


def read_float(values: Mapping[str, Any], *keys: str, default: float) -> float:
    """The same, for a number that need not be whole."""
    found = read_value(values, *keys, default=default)
    if type(found) not in (int, float) or not abs(found) <= sys.float_info.max:
        raise ValueError(f"config.json has {_key(values, keys)}={shown(found)}: expected a finite number")
    return float(found)


def read_n_heads(values: Mapping[str, Any], *keys: str, width: int, default: Any = _MISSING) -> int:
    """The same, for the number of heads that share this width."""
    found: int = read_int(values, *keys, default=default)
    if not 1 <= found <= width:
        raise ValueError(
            f"config.json has {_key(values, keys)}={found}: expected at least 1, at most {width}, the width"
        )
    return found


def read_bool(values: Mapping[str, Any], *keys: str, default: bool) -> bool:
    """The same, for true or false."""
    found = read_value(values, *keys, default=default)
    if not isinstance(found, bool):
        raise ValueError(f"config.json has {_key(values, keys)}={shown(found)}: expected true or false")
    return found


def read_choice(values: Mapping[str, Any], *keys: str, default: str, known: Mapping[str, Any]) -> Any:
    """What is `known` under the name that stands there."""
    name = read_value(values, *keys, default=default)
    if not isinstance(name, str) or name not in known:
        key = _key(values, keys)
        raise UnsupportedModelError(
            f"config.json has {key}={shown(name)}, which is not supported: expected one of {', '.join(known)}"
        )
    return known[name]


def _key(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The key whose value was taken: the first that is there."""
    return next((key for key in keys if values.get(key) is not None), keys[0])


def shown(found: object) -> str:
    """A value from a file as an error shows it: short, however long or deep it is."""
    return reprlib.repr(found)


def require(values: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Raise unless the key is absent or one of these."""
    if values.get(key) is not None and values[key] not in allowed:
        raise UnsupportedModelError(
            f"config.json has {key}={shown(values[key])}, which is not supported: "
            f"expected {' or '.join(map(repr, allowed))}"
        )


def read_activation(values: Mapping[str, Any], *keys: str, default: str) -> str:
    """Our name of an activation."""
    name: str = read_choice(values, *keys, default=default, known=FROM_HF_ACTIVATION)
    return name


def read_rope_theta(values: Mapping[str, Any], *, default: float = 10000.0) -> float:
    """The base of rotary angles, under `rope_parameters` or the older `rope_theta`; scaled ones are refused."""
    parameters = read_value(values, "rope_parameters", default={})
    scaling = read_value(values, "rope_scaling", default={})
    for name, found in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if not isinstance(found, Mapping):
            raise ValueError(f"config.json has {name}={shown(found)}: expected a table")
        if any(isinstance(item, Mapping) for item in found.values()):
            raise UnsupportedModelError(f"config.json has {name} for each kind of layer, not supported: expected one")
        kind = found.get("rope_type", found.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(
                f"config.json has {name} of type {shown(kind)}, not supported: expected 'default'"
            )
        if found.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"config.json turns a part of each head only ({name}): expected all of it")
    require(values, "partial_rotary_factor", 1.0)
    return read_float({**values, **parameters, **scaling}, "rope_theta", default=default)


def read_architecture(values: Mapping[str, Any]) -> str:
    """The name of the class that wrote the file, or nothing."""
    names = read_value(values, "architectures", default=[])
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def has_lm_head(values: Mapping[str, Any], base: str, *heads: str) -> bool:
    """Whether the class that wrote the file is one of `heads`, which write words, and not `base`, the body alone.

    A file that names no class is taken for one with a head. Every other class is refused: its head is not built here.
    """
    name = read_architecture(values)
    if name and name not in (base, *heads):
        raise UnsupportedModelError(
            f"config.json has architectures=[{name[:80]!r}], whose head is not supported: expected "
            f"{' or '.join((*heads, base))}"
        )
    return name != base


def read_n_labels(values: Mapping[str, Any]) -> int:
    """How many classes a head has."""
    labels = read_value(values, "id2label", default=None)
    if labels is None:
        return int(read_int(values, "num_labels", default=2))
    if not isinstance(labels, Mapping):
        raise ValueError(f"config.json has id2label={shown(labels)}: expected a name for each class")
    return len(labels)
