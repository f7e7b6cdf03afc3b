"""`glassformer convert`: take a model elsewhere."""

from pathlib import Path
from typing import Literal


def convert(
    path: Path,
    *,
    to: Literal["hf", "safetensors", "gguf", "ct2", "onnx"],
    out: Path,
    verify: bool = False,
    numbers: Literal["f32", "f16", "q8_0"] = "f16",
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a model in another library's format, or read one into ours.

    hf is a folder for HF Transformers. safetensors is our own folder. gguf is a file for llama.cpp, for Llama-style
    decoders. ct2 is a folder for CTranslate2, for encoder-decoders. onnx is a folder of graphs with the caches as
    inputs and outputs. A model that a format cannot express is refused.

    Args:
        path: The model to read: a folder of ours or of Hugging Face, a GGUF file, or a .bin file of llama2.c.
        to: Format to write.
        out: Folder or file to write.
        verify: Compare the result with the source, each by its own library where that is installed; exit with 1 if
            a difference exceeds its tolerance.
        numbers: Number format of the matrices in a GGUF file.
        allow_pickle: Also read pytorch_model.bin, by a reader that only knows tensors.
        overwrite: Replace a model in --out; other files are never replaced.
    """
    from glassformer.tasks import convert as conversion

    model = conversion.convert(path, out, to, numbers=numbers, allow_pickle=allow_pickle, overwrite=overwrite)
    print(f"wrote {out}: {model.kind}, {model.n_parameters():,} parameters")
    if verify:
        from glassformer.tasks.agreement import verify as verify_result

        found = verify_result(path, model, out, to, numbers=numbers, allow_pickle=allow_pickle)
        print("\n".join(found.lines()))
        found.check(out)
