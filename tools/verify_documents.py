"""Run the documents' own code beside ours, with the same weights: `make verify-documents DOCUMENTS=folder`.

The folder holds the five texts, named 000*, 001*, ... Their Python blocks are executed as they stand, but for one
repair: document 003's blocks compute attention before the norm that their text puts first; repaired, they call it
inside the residual.
"""

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import glassformer
from glassformer.documents import load_document_weights

MODERN = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu", "scale_embeddings": True}


def document_code(folder: Path, number: str) -> dict[str, Any]:
    """The names that a document's class definitions define."""
    text = next(folder.glob(f"{number}*")).read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if re.search(r"^(class|def) ", b, re.M)]
    code = "\n".join(blocks)
    code = re.sub(r"^\s*import (seaborn|matplotlib).*$", "", code, flags=re.M)
    code = re.sub(
        r"(\w+), _ = self\.(self|cross)_attention\(([^)]*)\)\n\s*x = self\.(residual\d)\(x, lambda x: \1\)",
        r"x = self.\4(x, lambda x: self.\2_attention(\3)[0])",
        code,
    )
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "math": math, "np": np}
    exec(code, names)
    return names


def compare(title: str, theirs: nn.Module, ours: nn.Module, inputs: list[torch.Tensor]) -> bool:
    """Copy their weights into ours, run both in evaluation mode, print the largest difference."""
    load_document_weights(ours, theirs.state_dict())
    with torch.no_grad():
        expected, actual = theirs.eval()(*inputs), ours.eval()(*inputs)
    # Relative where outputs are large: T5Model's logits, products with a table of unit normals, reach the hundreds.
    difference = ((expected - actual).abs().max() / expected.abs().max().clamp_min(1)).item()
    count = [sum(p.numel() for p in model.parameters()) for model in (theirs, ours)]
    good = difference < 1e-5 and count[0] == count[1]
    verdict = "ok " if good else "BAD"
    print(f"{verdict} {title}: largest difference {difference:.1e}, parameters {count[0]:,} / {count[1]:,}")
    return good


def main() -> int:
    """Compare every complete model of the documents; 0 when all agree."""
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    source, target = torch.randint(0, 100, (2, 11)), torch.randint(0, 100, (2, 9))
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[1, 8:] = False
    keep_target = torch.ones(2, 9, dtype=torch.bool)
    keep_target[0, 7:] = False
    source_mask = keep[:, None, None, :]
    causal = torch.ones(9, 9).tril().expand(2, 1, 9, 9)
    good = True
    for number in ("000", "001"):
        names = document_code(folder, number)
        theirs = names["Transformer"](100, 100, d_model=512, num_heads=8, num_layers=2)
        ours = glassformer.Transformer(100, 100, d_model=512, num_heads=8, num_layers=2)
        good &= compare(f"{number} Transformer", theirs, ours, [source, target, source_mask.float(), causal])
        good &= compare(f"{number} Transformer without masks", theirs, ours, [source, target])
    for name in ("PositionalEncoding", "MultiHeadAttention", "EncoderLayer", "DecoderLayer", "Transformer"):
        names[name] = getattr(glassformer, name)
    print("--- document 001's own test, with our classes in place of its own:")
    names["test_transformer"]()
    print("---")
    names = document_code(folder, "003")
    good &= compare(
        "003 Transformer",
        names["Transformer"](100, 100),
        glassformer.Transformer(100, 100, **MODERN),
        [source, target, source_mask, causal],
    )
    good &= compare("003 BERTModel", names["BERTModel"](30522), glassformer.BERTModel(30522), [source, keep])
    good &= compare("003 GPTModel", names["GPTModel"](50257), glassformer.GPTModel(50257), [source, keep])
    t5 = names["T5Model"](32128), glassformer.T5Model(32128)
    good &= compare("003 T5Model", *t5, [source, target, keep, keep_target])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
