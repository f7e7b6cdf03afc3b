"""Export models to ONNX, for onnxruntime. KV caches are inputs and outputs of the graphs.

The graphs are traced from the model's modules in float32. Masks are True for real tokens. Shapes: batch B, new tokens
T, past tokens P (may be 0) and source tokens S, all dynamic; layers L, KV heads G, head size D, width C, vocabulary V.

- encoder: `model.onnx`, tokens and mask (B, T), and token_types if the model has them -> answer, the head's output.
  A decoder without a language-model head is exported in the same form.
- decoder: `decoder.onnx`, tokens (B, T), mask (B, P+T), past_keys and past_values (L, B, G, P, D) -> logits
  (B, T, V), keys and values (L, B, G, P+T, D), which are the past of the next step.
- encoder-decoder: `encoder.onnx`, source and source_mask (B, S) -> memory (B, S, C), the encoder's output;
  `memory.onnx`, memory -> cross_keys and cross_values (L, B, G, S, D); `decoder.onnx`, like a decoder's, with
  source_mask, cross_keys and cross_values as further inputs.
"""

import copy
import errno
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from glassformer.base.write_errors import WriteError, naming_write_errors
from glassformer.checkpoint.limits import blocking_setting, refuse
from glassformer.checkpoint.output_folder import new_folder
from glassformer.checkpoint.safe_files import write_text
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.nn import KVCache
from glassformer.nn.attention_backends import Attend
from glassformer.nn.layers import Layer

AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
MODEL, ENCODER, MEMORY, DECODER = "model.onnx", "encoder.onnx", "memory.onnx", "decoder.onnx"
MAX_FILE_BYTES = 2**30
"""Larger weights go to a second file next to the graph's, because a protobuf file is limited to 2 GiB."""
PROMPT, GREEDY_STEPS = 6, 16


def export_onnx(
    model: AnyModel, folder: Path, texts: Mapping[str, str] | None = None, *, overwrite: bool = False
) -> None:
    """Write a folder of ONNX graphs. `texts` maps the names of further text files to their contents.

    An existing model folder is replaced only with `overwrite`.
    """
    refuse("ONNX", blocking_onnx(model.config))
    for package in ("onnx", "onnxscript"):
        _needs(package)
    if isinstance(model, EncoderDecoderModel) and type(model).encode is not EncoderDecoderModel.encode:
        raise ValueError(
            f"{type(model).__name__} takes its masks as arguments, which the graphs have no inputs for: expected a "
            "model of build_model. `plain = build_model(model.config)` with "
            "`plain.load_state_dict(model.state_dict())` has the same weights and makes its own masks"
        )
    graphs = _graphs(_plain(model, for_tracing=True))
    with new_folder(folder, overwrite=overwrite) as work:
        for name, graph in graphs.items():
            with naming_write_errors(work / name):
                graph.write(work / name)
        for name, text in (texts or {}).items():
            write_text(work / name, text)


def blocking_onnx(config: ModelConfig) -> list[str]:
    """Return the settings that block an export: an encoder-decoder's head that is not a language-model head."""
    if config.kind == "encoder_decoder" and config.head != "language_model":
        return [blocking_setting("head", config.head, ["language_model"])]
    return []


@torch.inference_mode()
def verify_onnx(folder: Path, model: AnyModel, *, seed: int = 0) -> tuple[float, float]:
    """Compare onnxruntime's outputs with the model's. Return the largest difference and the share of equal argmaxes.

    The input is a batch of three random token sequences of different lengths. A decoder graph reads the prompt in two
    pieces, and then up to 16 tokens are generated. Each step is compared with the model's forward pass without a cache,
    and both continue with the model's greedy token. For `model.onnx` the outputs of one forward pass are compared.
    """
    plain = _plain(model)
    pairs = list((_compare_reading if (folder / MODEL).exists() else _compare_writing)(folder, plain, seed))
    difference = torch.stack([(theirs - ours).abs().max() for theirs, ours, _ in pairs]).max()  # a NaN is kept
    same = [theirs.argmax(-1) == ours.argmax(-1) for theirs, ours, is_choice in pairs if is_choice]
    return float(difference), float(torch.cat([part.flatten() for part in same]).double().mean())


class TensorCache(KVCache):
    """A KV cache without in-place writes: it takes past keys and values (L, B, G, P, D) and returns longer ones.

    `real` (B, P+T) is True for real tokens, past and new. `memory` holds the keys and values of the cross-attention.
    """

    def __init__(self, keys: Tensor, values: Tensor, real: Tensor, memory: tuple[Tensor, Tensor] | None = None):
        self.keys, self.values, self.real = list(keys), list(values), real
        if memory is not None:
            self.memory_keys, self.memory_values = (list(part) for part in memory)
        self.memory_is_ready = memory is not None
        self._longer: list[tuple[Tensor, Tensor]] = []

    @override
    def note_real(self, real: Tensor | None, n_new: int) -> Tensor | None:
        return self.real

    @override
    def n_keys(self, n_new: int) -> int:
        return self.real.shape[1]

    @override
    def newest(self, keys: Tensor, n_new: int) -> Tensor:
        return keys[:, self.capacity :]

    @override
    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's past and new keys and values, each (B, G, P+T, D), and keep them for `result`."""
        longer = torch.cat((self.keys[layer], k), 2), torch.cat((self.values[layer], v), 2)
        self._longer.append(longer)
        return longer

    @override
    def advance(self, n_new: int) -> None:
        """Do nothing, because every forward pass gets a new cache."""

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of past and new tokens, each (L, B, G, P+T, D), after the forward pass."""
        return torch.stack([k for k, _ in self._longer]), torch.stack([v for _, v in self._longer])


class DecoderStep(nn.Module):
    """The module behind a decoder's `decoder.onnx`: one forward pass with the KV cache as input and output tensors."""

    def __init__(self, model: DecoderModel):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, past_keys: Tensor, past_values: Tensor) -> tuple[Tensor, ...]:
        """Return the logits, and the keys and values of past and new tokens (see `TensorCache.result`)."""
        new = mask[:, past_keys.shape[3] :]
        cache = TensorCache(past_keys, past_values, mask)
        logits = self.model(tokens, new, cache=cache)
        return logits, *cache.result()


class EncoderDecoderStep(nn.Module):
    """Like `DecoderStep`, for an encoder-decoder: cross-attention's keys and values are inputs too."""

    def __init__(self, model: EncoderDecoderModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        source_mask: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the logits, and the keys and values of past and new tokens (see `TensorCache.result`)."""
        new = mask[:, past_keys.shape[3] :]
        cache = TensorCache(past_keys, past_values, mask, (cross_keys, cross_values))
        # `decode` requires a memory but does not read it, because its keys are given. The exporter drops it.
        memory = cross_keys.new_zeros(*source_mask.shape, self.model.config.d_model)
        hidden = self.model.decode(tokens, memory, source_mask, new, cache=cache)
        return self.model.apply_head(hidden, new), *cache.result()


class ReadSegments(nn.Module):
    """A model with token types (BERT's segments) as a positional input, because export passes no keyword arguments."""

    def __init__(self, model: EncoderModel | DecoderModel):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, token_types: Tensor) -> Tensor:
        """Return the output of the model's head."""
        answer: Tensor = self.model(tokens, mask, token_types=token_types)
        return answer


class Encode(nn.Module):
    """The module behind `encoder.onnx`: the encoder of an encoder-decoder."""

    def __init__(self, model: EncoderDecoderModel):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the encoder's output, (B, S, C), for token ids and a mask of (B, S)."""
        return self.model.encode(source, source_mask)


class MemoryKeys(nn.Module):
    """The module behind `memory.onnx`, run once per source: it computes the cross-attention's keys and values."""

    def __init__(self, model: EncoderDecoderModel):
        super().__init__()
        self.decoder = model.decoder

    def forward(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return all decoder layers' keys and values (L, B, G, S, D) of `memory`, the encoder's output (B, S, C)."""
        made = []
        for index in range(self.decoder.depth):
            layer = self.decoder.layers[index % len(self.decoder.layers)]
            assert isinstance(layer, Layer)
            assert layer.cross_attn is not None
            made.append(layer.cross_attn.project(memory))  # also computes queries, which the exporter drops
        return torch.stack([k for _, k, _ in made]), torch.stack([v for _, _, v in made])


@dataclass(frozen=True)
class OnnxGraph:
    """What one ONNX file is traced from: a module, its inputs (name -> example, axis names), and its output names."""

    module: nn.Module
    inputs: dict[str, tuple[Tensor, tuple[str, ...]]]
    outputs: tuple[str, ...]

    def write(self, path: Path) -> None:
        """Trace the module and save it as an ONNX file. Input axes with a lower-case name are dynamic."""
        examples = {name: example for name, (example, _) in self.inputs.items()}
        axes = {
            name: {axis: word for axis, word in enumerate(sizes) if word.islower()}
            for name, (_, sizes) in self.inputs.items()
        }
        with torch.no_grad(), _quiet():
            self.module(
                *examples.values()
            )  # fills lazily built position tables, which tracing would fill with fake tensors
            # Non-strict tracing, because strict tracing specializes on len(tensor).
            traced = torch.export.export(
                self.module,
                tuple(examples.values()),
                dynamic_shapes=tuple(dict.fromkeys(words, torch.export.Dim.DYNAMIC) for words in axes.values()),
                strict=False,
            )
            program = torch.onnx.export(
                traced,
                dynamo=True,
                verbose=False,
                input_names=list(examples),
                output_names=list(self.outputs),
                dynamic_shapes=axes,
            )
        assert program is not None  # always true with dynamo
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # source locations of this machine
        n_bytes = sum(parameter.nbytes for parameter in self.module.parameters())
        program.save(path, external_data=n_bytes > MAX_FILE_BYTES)
        check_weights_beside(path)


def check_weights_beside(path: Path) -> None:
    """Raise WriteError if the separate weights file of the graph at `path` is truncated.

    The exporter writes that file with NumPy's `tofile`, which ignores a full disk.
    """
    onnx = _needs("onnx")
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        about = {entry.key: entry.value for entry in tensor.external_data}
        if not about:
            continue
        file = path.with_name(about["location"])
        if int(about["offset"]) + int(about["length"]) > file.stat().st_size:
            raise WriteError(file, "it is cut off inside the weights", errno.ENOSPC)


def _graphs(model: AnyModel) -> dict[str, OnnxGraph]:
    """Return a model's graphs by file name. Example inputs have distinct sizes above 1, so that axes stay dynamic."""
    config, batch, past, new, source_length = model.config, 2, 3, 4, 5
    tokens = torch.zeros(batch, new, dtype=torch.long), ("batch", "length")
    if isinstance(model, EncoderModel) or (isinstance(model, DecoderModel) and config.head != "language_model"):
        mask = torch.ones(batch, new, dtype=torch.bool), ("batch", "length")
        types = torch.zeros(batch, new, dtype=torch.long), ("batch", "length")
        if config.token_types:
            inputs = {"tokens": tokens, "mask": mask, "token_types": types}
            return {MODEL: OnnxGraph(ReadSegments(model).eval(), {**inputs}, ("answer",))}
        return {MODEL: OnnxGraph(model, {"tokens": tokens, "mask": mask}, ("answer",))}

    def store(length: int, word: str) -> tuple[Tensor, tuple[str, ...]]:
        shape = config.n_decoder_layers, batch, config.kv_heads, length, config.head_size
        return torch.zeros(shape), ("L", "batch", "G", word, "D")

    step = {
        "tokens": tokens,
        "mask": (torch.ones(batch, past + new, dtype=torch.bool), ("batch", "past_and_length")),
        "past_keys": store(past, "past"),
        "past_values": store(past, "past"),
    }
    outputs = "logits", "keys", "values"
    if isinstance(model, DecoderModel):
        return {DECODER: OnnxGraph(DecoderStep(model).eval(), step, outputs)}
    source = torch.zeros(batch, source_length, dtype=torch.long), ("batch", "source_length")
    source_mask = torch.ones(batch, source_length, dtype=torch.bool), ("batch", "source_length")
    memory = torch.zeros(batch, source_length, config.d_model), ("batch", "source_length", "C")
    cross = {name: store(source_length, "source_length") for name in ("cross_keys", "cross_values")}
    return {
        ENCODER: OnnxGraph(Encode(model).eval(), {"source": source, "source_mask": source_mask}, ("memory",)),
        MEMORY: OnnxGraph(MemoryKeys(model).eval(), {"memory": memory}, tuple(cross)),
        DECODER: OnnxGraph(EncoderDecoderStep(model).eval(), {**step, "source_mask": source_mask, **cross}, outputs),
    }


def _plain(model: AnyModel, *, for_tracing: bool = False) -> AnyModel:
    """Return a float32 copy on the CPU in eval mode, `for_tracing` with plain attention. Refuses quantized models."""
    plain = copy.deepcopy(model).cpu().float().eval()
    for name, module in plain.named_modules():
        if name.endswith("q_proj") and not isinstance(module, nn.Linear):
            raise TypeError(f"{name} is a {type(module).__name__}: expected nn.Linear, so export before quantizing")
        if isinstance(module, Attend) and for_tracing:
            # Use the plain formula: every runtime has its operators, and fully masked rows stay zero.
            module.backend = "math"
    return plain


def _needs(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"ONNX needs {package}: pip install 'glassformer[export]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that silences the log messages and warnings of torch's exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


Compared = tuple[Tensor, Tensor, bool]
"""onnxruntime's output, the model's output, and whether `verify_onnx` compares their argmaxes."""
Run = Callable[..., tuple[Tensor, ...]]


def _compare_reading(folder: Path, model: AnyModel, seed: int) -> Iterator[Compared]:
    tokens, mask = _uneven_rows(model.config.vocab_size, PROMPT, seed, left=False)
    more: dict[str, Tensor] = {}
    if model.config.token_types:
        more["token_types"] = tokens % model.config.token_types
    (theirs,) = _open(folder / MODEL)(tokens=tokens, mask=mask, **more)
    ours = model(tokens, mask, **more)
    is_by_token = ours.dim() == 3
    yield (theirs[mask], ours[mask], True) if is_by_token else (theirs, ours, True)


def _compare_writing(folder: Path, model: AnyModel, seed: int) -> Iterator[Compared]:
    config = model.config
    tokens, mask = _uneven_rows(config.vocab_size, PROMPT, seed, left=True)
    step, source, source_mask, cross = _open(folder / DECODER), None, None, {}
    if isinstance(model, EncoderDecoderModel):
        source, source_mask = _uneven_rows(config.source_vocab, PROMPT, seed + 1, left=False)
        (memory,) = _open(folder / ENCODER)(source=source, source_mask=source_mask)
        cross_keys, cross_values = _open(folder / MEMORY)(memory=memory)
        cross = {"source_mask": source_mask, "cross_keys": cross_keys, "cross_values": cross_values}
    keys = values = torch.zeros(config.n_decoder_layers, len(tokens), config.kv_heads, 0, config.head_size)
    past, n_steps = 0, GREEDY_STEPS if config.max_len is None else min(GREEDY_STEPS, config.max_len - PROMPT + 1)
    for end in (PROMPT - 2, *range(PROMPT, PROMPT + n_steps)):
        seen, real = mask[:, :end], mask[:, past:end]
        theirs, keys, values = step(tokens=tokens[:, past:end], mask=seen, past_keys=keys, past_values=values, **cross)
        ours = model(tokens[:, :end], seen) if source is None else model(source, tokens[:, :end], source_mask, seen)
        yield theirs[real], ours[:, past:][real], False
        if end >= PROMPT:
            yield theirs[:, -1], ours[:, -1], True
            tokens = torch.cat((tokens, ours[:, -1:].argmax(-1)), 1)
            mask = torch.cat((mask, torch.ones_like(mask[:, :1])), 1)
        past = end


def _uneven_rows(vocab_size: int, length: int, seed: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Return tokens and mask of three random sequences of `length`, 2/3 and 1/3 of it, padded on the left or right."""
    tokens = torch.randint(vocab_size, (3, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(length) < torch.tensor([[length], [2 * length // 3], [length // 3]])
    return tokens, mask.flip(1) if left else mask


def _open(path: Path) -> Run:
    """Open an ONNX file. Return a function that takes the inputs as keywords and returns the outputs in file order."""
    session = _needs("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(**inputs: Tensor) -> tuple[Tensor, ...]:
        found: list[NDArray[Any]] = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return tuple(torch.from_numpy(array) for array in found)

    return run
