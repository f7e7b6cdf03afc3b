"""`glassformer convert`: write a model in the format of another library."""

from pathlib import Path
from typing import Literal

from glassformer.cli.flag_parser import UsageError


def convert(
    path: Path,
    *,
    to: Literal["hf", "safetensors", "gguf", "ct2", "onnx"],
    out: Path,
    verify: bool = False,
    numbers: Literal["f32", "f16", "q8_0"] | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> None:
    """Convert a model to the format of another library, or to the format of Glassformer.

    hf is a folder for HF Transformers. safetensors is a folder of Glassformer. gguf is a file for llama.cpp, for
    Llama-style decoders. ct2 is a folder for CTranslate2, for encoder-decoders. onnx is a folder of ONNX graphs that
    take the key-value cache as an input and return it as an output. A model that a format cannot express is refused.

    Args:
        path: The model to read: a folder of Glassformer or of Hugging Face, a GGUF file, or a .bin file of llama2.c.
        to: Format to write.
        out: Folder or file to write.
        verify: Run the result and the source, each with its own library where that is installed, and compare their
            outputs. Exit with 1 if a difference exceeds its tolerance.
        numbers: Number format of the matrices in a GGUF file. (default: f16)
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
        overwrite: Replace a model in --out; other files are never replaced.
    """
    if numbers is not None and to != "gguf":
        raise UsageError(f"--numbers {numbers} has no effect with --to {to}: expected --to gguf, or no --numbers")
    from glassformer.pipelines import conversion

    stored = numbers or "f16"
    model = conversion.convert(path, out, to, numbers=stored, allow_pickle=allow_pickle, overwrite=overwrite)
    print(f"wrote {out}: {model.kind}, {model.n_parameters():,} parameters")
    if verify:
        from glassformer.pipelines.agreement import verify as verify_result

        found = verify_result(path, model, out, to, numbers=stored, allow_pickle=allow_pickle)
        print("\n".join(found.lines()))
        found.check(out)
