"""Glassformer: train, use and look inside Transformers.

    import glassformer as gf

    gf.train("translation", source="train.en", target="train.de", out="my-model", minutes=5)
    print(gf.load("my-model").run(["one two three"]))

`dir(glassformer)` lists the names that most programs need. Packages such as `glassformer.nn` and the classes of the
five tutorial documents that this project implements (docs/documents.md) can be imported from here too. Every name is
imported when it is first used, so that `import glassformer.reference` needs no package except NumPy, and the command
line prints `--help` before torch is loaded.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from glassformer.base.version import __version__ as __version__

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig, generate
    from glassformer.documents import *  # noqa: F403
    from glassformer.inspect import draw_attention, explain, patch, record
    from glassformer.models import ModelConfig, build_model, preset
    from glassformer.nn import capture_attention
    from glassformer.pipelines.conversion import convert
    from glassformer.pipelines.load import load
    from glassformer.tasks.train_function import train
    from glassformer.training.callbacks import StopTraining

__all__ = [
    "GenerationConfig",
    "ModelConfig",
    "StopTraining",
    "build_model",
    "capture_attention",
    "convert",
    "draw_attention",
    "explain",
    "generate",
    "load",
    "patch",
    "preset",
    "record",
    "train",
]

_MODULES = {
    "GenerationConfig": "decoding",
    "ModelConfig": "models",
    "StopTraining": "training.callbacks",
    "build_model": "models",
    "capture_attention": "nn",
    "convert": "pipelines.conversion",
    "draw_attention": "inspect",
    "explain": "inspect",
    "generate": "decoding",
    "load": "pipelines.load",
    "patch": "inspect",
    "preset": "models",
    "record": "inspect",
    "train": "tasks.train_function",
}
"""Maps each name in `__all__` to the module that exports it, relative to `glassformer`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"glassformer.{_MODULES[name]}"), name)
    if name.startswith("_"):  # Python and its tools look up such names and only need the error
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    packages = [package.name for package in iter_modules(__path__)]  # noqa: F405
    if name in packages:
        return import_module(f"glassformer.{name}")
    documents = import_module("glassformer.documents")
    if name in documents.__all__:
        return getattr(documents, name)
    from glassformer.base.names import nearest, suggestion

    found = nearest(name, [*__all__, *packages, *documents.__all__])
    hint = f"did you mean {found!r}?" if found else suggestion(name, __all__)
    raise AttributeError(f"module 'glassformer' has no attribute {name!r}: {hint}")


def __dir__() -> list[str]:
    return [*__all__]
