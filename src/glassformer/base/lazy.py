"""Lazy imports: import a package's exported names when they are first used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` (PEP 562) for a package, so that importing it does not import torch yet.

    `names` maps each module of the package to the names that the package exports from it. These modules are
    attributes of the package, too. No exported name may equal a module's name, because importing the module would
    replace the exported object.
    """
    homes = {name: module for module, some in names.items() for name in some}

    def get(name: str) -> Any:
        if name in names:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
