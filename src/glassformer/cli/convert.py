"""`glassformer convert`: take a model elsewhere."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional


def convert(
    path: Positional[Path],
    *,
    to: Literal["hf", "safetensors", "gguf", "ct2", "onnx"],
    out: Path,
    verify: bool = False,
    numbers: Literal["f32", "f16", "q8_0"] = "f16",
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a model in another library's format, or somebody else's in ours.

    hf is a folder that HF Transformers loads. safetensors is our own folder. gguf is a file for llama.cpp, of a
    Llama-style decoder. ct2 is CTranslate2's folder, of an encoder-decoder. onnx is a folder of graphs, with the
    caches as inputs and outputs. What a format cannot express is an error that says so.

    Args:
        path: A model folder, ours or HF's; or a GGUF file, or a .bin file of llama2.c's.
        to: The format to write.
        out: The folder, or the file, to write.
        verify: Compare the result with the source, each by its own library where that is installed. Print the
            differences with their tolerances, and exit with 1 if one is exceeded.
        numbers: What matrices become in a GGUF file.
        allow_pickle: Open pytorch_model.bin too, by the reader that only knows tensors.
        overwrite: Replace a model that --out holds. Files that are no part of a model are never replaced.
    """
    from glassformer.tasks import convert as conversion

    model = conversion.convert(path, out, to, numbers=numbers, allow_pickle=allow_pickle, overwrite=overwrite)
    print(f"wrote {out}: {model.kind}, {model.n_parameters():,} parameters")
    if verify:
        from glassformer.tasks.agreement import verify as verify_result

        found = verify_result(path, model, out, to, numbers=numbers, allow_pickle=allow_pickle)
        print("\n".join(found.lines()))
        found.check(out)
