"""Build a model from a GGUF file whose weights stay quantized, as they are stored, instead of becoming float32.

Rows are read and packed about a million weights at a time, so that loading needs little memory besides the model's own.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.gguf_blocks import FORMATS, ROUNDED, unpack_blocks
from glassformer.checkpoint.gguf_file import GgufTensors
from glassformer.checkpoint.hf import family_by_type, read_config
from glassformer.checkpoint.hf.name_tables import rules_for_file
from glassformer.checkpoint.layout import check_sizes
from glassformer.checkpoint.model_folder import fill_parameters
from glassformer.kernels.groupwise_matrix import (
    GroupwiseFormat,
    GroupwiseMatrix,
    GroupwiseRows,
    groupwise_matrix_class,
)
from glassformer.models import DecoderModel
from glassformer.models.factory import build_on_meta
from glassformer.nn import FeedForward
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.groupwise_linear import GroupwiseEmbedding, GroupwiseLinear, quantize_rows
from glassformer.nn.layers import Layer

WEIGHTS_AT_ONCE = 1 << 20
"""About how many weights are read and packed at once."""


def has_quantized_tensors(external: ExternalModel) -> bool:
    """Return whether an opened model is a GGUF file with quantized tensors, which `import_quantized` can keep so."""
    tensors = external.tensors
    return isinstance(tensors, GgufTensors) and any(map(tensors.is_quantized, tensors.keys()))


def import_quantized(external: ExternalModel) -> DecoderModel:
    """Build a decoder, in eval mode on the CPU, whose quantized matrices stay as the GGUF file stores them.

    `gguf_blocks.py` lists the number formats. Other tensors become float32. Projections that are stored in the same
    format are fused: Q, K and V, and the two inputs of a gated feed-forward network.
    """
    tensors = external.tensors
    assert isinstance(tensors, GgufTensors)
    family, config = family_by_type(external.config["model_type"]), read_config(external.config, tensors)
    check_sizes(config, [*map(tensors.shape, tensors.keys())], list)
    model = build_on_meta(config)
    assert isinstance(model, DecoderModel)
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    stored = {rule.names[0]: rule.hf_name for rule in rules_for_file(family, config, frozenset(tensors.keys()), shapes)}
    plain = {name: hf_name for name, hf_name in stored.items() if not tensors.is_quantized(hf_name)}
    fill_parameters(model, ((name, tensors[hf_name]) for name, hf_name in plain.items()), torch.float32)
    _QuantizedReader(tensors, {parameters[name]: stored[name] for name in stored.keys() - plain.keys()}).replace(model)
    return model.eval()


class _QuantizedReader:
    """Replaces the modules of a model whose weights are stored quantized.

    `names` maps their parameters, which have no memory, to the names of the stored tensors.
    """

    def __init__(self, tensors: GgufTensors, names: dict[Tensor, str]):
        self._tensors, self._names = tensors, names
        self._make = groupwise_matrix_class()
        self._tied: dict[Tensor, GroupwiseMatrix] = {}

    def replace(self, model: nn.Module) -> None:
        """Replace the linear layers and embeddings of a model, and fuse projections."""
        for module in list(model.modules()):
            if isinstance(module, Layer):
                own = module.self_attn
                if fused := self._fused([own.q_proj, own.k_proj, own.v_proj]):
                    own.qkv_proj = fused
                    del own.q_proj, own.k_proj, own.v_proj
            elif isinstance(module, FeedForward) and module.gate_proj is not None:
                if fused := self._fused([module.gate_proj, module.up_proj]):
                    module.gate_up_proj = fused
                    del module.gate_proj, module.up_proj
            elif isinstance(module, Embeddings) and module.tokens.weight in self._names:
                matrix = self._tied[module.tokens.weight] = self._matrix([module.tokens.weight])
                module.tokens = GroupwiseEmbedding(matrix)  # type: ignore[assignment]
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if type(child) is nn.Linear and child.weight in self._names:
                    tied = self._tied.get(child.weight)
                    setattr(module, name, GroupwiseLinear(tied or self._matrix([child.weight]), child.bias))

    def _fused(self, layers: Sequence[nn.Linear]) -> GroupwiseLinear | None:
        """Return one layer with the outputs of all these, or None if they are not all stored in the same format."""
        weights = [layer.weight for layer in layers]
        if any(weight not in self._names for weight in weights) or len(set(map(self._format, weights))) > 1:
            return None
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        return GroupwiseLinear(self._matrix(weights), torch.cat(biases) if biases else None)

    def _format(self, weight: Tensor) -> GroupwiseFormat:
        kind = self._tensors.stored_as(self._names[weight])
        return FORMATS[kind][0] if kind in FORMATS else ROUNDED

    def _matrix(self, weights: Sequence[Tensor]) -> GroupwiseMatrix:
        """Read these matrices, which have the same format, into one: the rows of the first, then those of the next."""
        n_in = weights[0].shape[1]
        matrix = self._make(sum(map(len, weights)), n_in, self._format(weights[0]))
        begin = 0
        for weight in weights:
            name = self._names[weight]
            unit = self._tensors.row_step(name)
            step = max(1, WEIGHTS_AT_ONCE // (n_in * unit)) * unit
            for first in range(0, len(weight), step):
                matrix.write_rows(begin + first, self._read(name, first, min(first + step, len(weight))))
            begin += len(weight)
        return matrix

    def _read(self, name: str, begin: int, end: int) -> GroupwiseRows:
        """Read some rows of a stored tensor, in HF's order."""
        kind = self._tensors.stored_as(name)
        if kind not in FORMATS:
            return quantize_rows(torch.from_numpy(self._tensors.read_rows(name, begin, end)), ROUNDED)
        # Rows are reordered as bytes: their numbers stay as they are.
        raw = self._tensors.reorder_rows(name, self._tensors.read_raw(name, begin, end))
        return unpack_blocks(np.ascontiguousarray(raw), kind)
