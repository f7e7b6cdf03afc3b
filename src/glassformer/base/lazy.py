"""Packages whose names are imported when they are first asked for."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` (PEP 562) for a package, so that importing the package imports no torch.

    `names` lists, for each module of the package, the names that the package takes from it. No name may be that of a
    module of the package: importing the module would hide the name.
    """
    homes = {name: module for module, some in names.items() for name in some}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
