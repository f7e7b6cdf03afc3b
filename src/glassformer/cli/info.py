"""`glassformer info`: what a model is."""

from pathlib import Path

from tyro.conf import Positional


def info(path: Positional[Path], *, allow_pickle: bool = False) -> None:
    """What a model is: its kind, its size, and every setting that is not the default.

    Args:
        path: A model folder, ours or HF's; or a GGUF file, or a .bin file of llama2.c's.
        allow_pickle: Open pytorch_model.bin too, by the reader that only knows tensors.
    """
    from dataclasses import fields

    from glassformer.checkpoint import load_model
    from glassformer.checkpoint.pretrained import is_foreign, read_foreign
    from glassformer.tasks.registry import read_about
    from glassformer.tasks.task import TASK

    model = load_model(path, allow_pickle=allow_pickle)
    print(f"{path}: {model.kind}, {model.n_parameters():,} parameters")
    if (path / TASK).is_file():
        print(f"  trained for {read_about(path)['task']}")
    if is_foreign(path):
        print(f"  of the family {read_foreign(path, allow_pickle=allow_pickle).config['model_type']}")
    for field in fields(model.config):
        value = getattr(model.config, field.name)
        if value != field.default:
            print(f"  {field.name} = {value!r}")
