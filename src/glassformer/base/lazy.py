"""Lazy imports: names of a package are imported at their first use."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` (PEP 562) for a package, so that importing the package imports no torch.

    `names` maps each module of the package to the names that the package exports from it. The modules themselves are
    attributes of the package, too. A name must not equal a module's name, because importing the module would replace
    it.
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
