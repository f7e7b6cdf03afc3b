"""The numbers inside the layers for one text: norms, added ratios, attention with its queries and keys, rollout."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.inspect.head_kinds import decoder_rollout, head_kind, pooling_factor, rollout
from glassformer.inspect.json_values import numbers, pack
from glassformer.inspect.pipeline_text import AnyModel, ModelText
from glassformer.inspect.recorder import STACKS, RecordedActivations, record_into
from glassformer.models import EncoderDecoderModel
from glassformer.nn import Stack
from glassformer.nn.layers import Layer, Sublayer

LONGEST_MAP = 256
"""Maps of attention have at most this many rows and columns; those of longer texts are reduced by their maximum."""
LONGEST_FULL = 300
"""The longest text whose maps are not reduced."""
MOST_CELLS, REDUCED_CELLS = 6e6, 4e6
"""The most cells of all heads' maps that are not reduced, and of those that are. A cell takes about three bytes."""
SMALLEST_MAP = 64
LONGEST_VECTORS = 64
"""The longest text whose queries, keys and values are a part of the explanation."""


class ScoreTerms(NamedTuple):
    """Terms that change the scores of an attention: a bias, and a mask of the keys that each query may attend to."""

    bias: Tensor | None  # (H or 1, T, S)
    allowed: Tensor | None  # (H or 1, T, S)


class RecordedText(NamedTuple):
    """One forward pass over a text: its output, the activations, and the score terms of each attention module."""

    output: Tensor
    activations: RecordedActivations
    terms: dict[str, ScoreTerms]


class LongTextActivations(RecordedActivations):
    """Recorded activations of a long text: attention weights are reduced as they come, to save memory.

    `recorded[name]` of attention weights is their mean over the heads, (B, 1, T, S).
    """

    def __init__(self, read: ModelText):
        super().__init__()
        self._read = read
        side = int((REDUCED_CELLS / _n_maps(read)) ** 0.5)
        self.factor = pooling_factor(_longest(read), min(LONGEST_MAP, max(SMALLEST_MAP, side)))
        """How many rows and columns become one."""
        self.maps: dict[str, tuple[Tensor, list[dict[str, Any]]]] = {}
        """The reduced map of each head (H, T', S') and the kind of each head, by the name of the attention module."""

    def add(self, name: str, value: Tensor) -> None:
        """Store the value of one forward pass."""
        if not name.endswith(".weights"):
            super().add(name, value)
            return
        weights = value[0].detach().float()
        owner = name.removesuffix(".weights")
        pooled = torch.nn.functional.max_pool2d(weights[None], self.factor, ceil_mode=True)[0]
        self.maps[owner] = (pooled.cpu(), kinds_of_heads(self._read, owner, weights))
        super().add(name, weights.mean(0)[None, None])


def record_text(read: ModelText) -> RecordedText:
    """Run the model on a text once, with everything that the page shows recorded."""
    parts = ["*_attn.weights", "*_attn.out", "*.ffn.out", "*.resid.*", "*embeddings.out", "*coder.out"]
    longest = _longest(read)
    if longest <= LONGEST_VECTORS:
        parts += ["*_attn.q", "*_attn.k", "*_attn.v"]
    is_long = longest > LONGEST_FULL or _n_maps(read) * longest**2 > MOST_CELLS
    recorded = LongTextActivations(read) if is_long else RecordedActivations()
    terms: dict[str, ScoreTerms] = {}
    handles = _watch_terms(read.model, terms)
    try:
        with record_into(recorded, read.model, *parts):
            output = read.model(**read.inputs())
    finally:
        for handle in handles:
            handle.remove()
    read.output = output
    return RecordedText(output, recorded, terms)


def _longest(read: ModelText) -> int:
    return max(len(side.ids) for side in (read.source, read.target) if side is not None)


def _n_maps(read: ModelText) -> int:
    """Return the number of attention maps of a model: one for each head of each attention module."""
    config = read.model.config
    n_attentions = config.n_encoder_layers + config.n_decoder_layers
    if config.n_encoder_layers and config.n_decoder_layers:
        n_attentions += config.n_decoder_layers
    return n_attentions * config.n_heads


def _watch_terms(model: AnyModel, terms: dict[str, ScoreTerms]) -> list[Any]:
    """Attach hooks that store the bias and the mask of each attention module in `terms`; return their handles."""
    handles = []
    for kind in STACKS:
        stack = getattr(model, kind, None)
        if not isinstance(stack, Stack):
            continue
        for index, layer in enumerate(stack.layers):
            for part in ("self_attn", "cross_attn"):
                attention = getattr(layer, part)
                if attention is None:
                    continue
                # A layer whose weights are shared is called once for each of its applications.
                names = iter([f"{kind}.layers.{n}.{part}" for n in range(index, stack.depth, len(stack.layers))])

                def store(_: Any, args: Any, kwargs: Any, output: Any, names: Any = names) -> None:
                    (q, k, _v), mask, bias = args, kwargs["mask"], kwargs["bias"]
                    allowed = None if mask is None else mask.dense(q.shape[2], k.shape[2], q.device)
                    terms[next(names)] = ScoreTerms(
                        None if bias is None else bias[0].float(), None if allowed is None else allowed[0]
                    )

                handles.append(attention.attend.register_forward_hook(store, with_kwargs=True))
    return handles


def describe_stacks(read: ModelText, run: RecordedText) -> list[dict[str, Any]]:
    """Return norms, added ratios and attention of every layer of every stack."""
    model, recorded, found = read.model, run.activations, []
    for kind in STACKS:
        stack = getattr(model, kind, None)
        if not isinstance(stack, Stack):
            continue
        side = "target" if kind == "decoder" else "source"
        prefix = f"{side}_embeddings" if isinstance(model, EncoderDecoderModel) else "embeddings"
        layers = []
        for index in range(stack.depth):
            layer = stack.layers[index % len(stack.layers)]
            assert isinstance(layer, Layer)
            layers.append(_describe_layer(read, run, layer, f"{kind}.layers.{index}", side))
        embedded = {"norms": numbers(recorded[f"{prefix}.out"][0].norm(dim=-1))}
        out = numbers(recorded[f"{kind}.out"][0].norm(dim=-1))
        found.append({"name": kind, "tokens": side, "embedding": embedded, "layers": layers, "out": out})
    return found


def _describe_layer(read: ModelText, run: RecordedText, layer: Layer, name: str, side: str) -> dict[str, Any]:
    recorded = run.activations
    has_cross = layer.cross_attn is not None
    # Parallel parts have one input.
    places = {"in": "in", "mid": "mid" if layer.parallel == "none" else "in", "out": "out"}
    residual = {part: recorded[f"{name}.resid.{place}"][0].float() for part, place in places.items()}
    after_cross = recorded[f"{name}.resid.cross"][0].float() if has_cross else None
    before_ffn = residual["mid"] if after_cross is None else after_cross

    def share(part: str, before: Tensor) -> list[Any]:
        sublayer = layer.get_submodule(f"{part}_sublayer")
        assert isinstance(sublayer, Sublayer)
        added = recorded[f"{name}.{part}.out"][0]
        if sublayer.post_norm is not None or sublayer.placement == "output":
            added = (sublayer.post_norm or sublayer.norm)(added)
        added = added.float() * sublayer.multiplier
        return numbers(added.norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-12))

    norms = {part: numbers(value.norm(dim=-1)) for part, value in residual.items()}
    attention = [_describe_attention(read, run, layer.self_attn, f"{name}.self_attn", side)]
    if layer.cross_attn is not None:
        attention.append(_describe_attention(read, run, layer.cross_attn, f"{name}.cross_attn", side))
    return {
        "name": name,
        "residual": {**norms, "cross": None if after_cross is None else numbers(after_cross.norm(dim=-1))},
        "added": {
            "self_attention": share("self_attn", residual["in"]),
            "cross_attention": share("cross_attn", residual["mid"]) if has_cross else None,
            "feedforward": share("ffn", before_ffn),
        },
        "attention": attention,
    }


def _describe_attention(read: ModelText, run: RecordedText, module: Any, name: str, side: str) -> dict[str, Any]:
    recorded, terms = run.activations, run.terms[name]
    is_cross = name.endswith("cross_attn")
    keys = "source" if is_cross else side
    is_causal = side == "target" and not is_cross
    weights = recorded[f"{name}.weights"][0].float()  # (H, T, S)
    factor = 1
    if isinstance(recorded, LongTextActivations):
        factor = recorded.factor
        weights, kinds = recorded.maps[name]
    else:
        kinds = kinds_of_heads(read, name, weights)
    found = {
        "name": name,
        "kind": "cross" if is_cross else "causal" if is_causal else "self",
        "queries": side,
        "keys": keys,
        "weights": {**pack(weights), **({"pooled": factor} if factor > 1 else {})},
        "head_kinds": kinds,
        "q": None,
        "k": None,
        "v": None,
        "scale": module.attend.scale,
        "groups": module.n_heads // module.n_kv_heads,
        "bias": None,
        "mask": None,
        "softcap": module.attend.softcap,
    }
    if f"{name}.q" in recorded:
        found |= {part: pack(recorded[f"{name}.{part}"][0].float()) for part in ("q", "k", "v")}
        if terms.bias is not None:
            found["bias"] = pack(terms.bias.expand(module.n_heads, *weights.shape[1:]))
        if terms.allowed is not None:
            found["mask"] = pack(terms.allowed[0].expand(weights.shape[1:]).float())
    return found


def kinds_of_heads(read: ModelText, name: str, weights: Tensor) -> list[dict[str, Any]]:
    """Return the kind of each head of an attention module, from its weights (H, T, S)."""
    is_cross, side = name.endswith("cross_attn"), "target" if name.startswith("decoder") else "source"
    ids = {"source": read.source.ids, "target": read.target.ids if read.target is not None else []}
    keys = ids["source" if is_cross else side]
    is_causal = side == "target" and not is_cross
    return [
        head_kind(head, is_causal=is_causal, query_ids=ids[side], key_ids=keys, is_cross=is_cross)
        for head in weights.cpu()
    ]


def roll_out(read: ModelText, run: RecordedText) -> dict[str, Tensor | None]:
    """Return the attention rollout of each stack, and of the source ("cross") for a decoder with cross-attention."""
    recorded = run.activations

    def weights(kind: str, part: str) -> list[Tensor]:
        stack = getattr(read.model, kind, None)
        depth = stack.depth if isinstance(stack, Stack) else 0
        return [recorded[f"{kind}.layers.{index}.{part}.weights"][0] for index in range(depth)]

    encoder_layers, decoder_layers = weights("encoder", "self_attn"), weights("decoder", "self_attn")
    encoder = rollout(encoder_layers) if encoder_layers else None
    decoder = cross = None
    if decoder_layers and encoder is not None:
        pairs = list(zip(decoder_layers, weights("decoder", "cross_attn"), strict=True))
        decoder, cross = decoder_rollout(pairs, encoder)
    elif decoder_layers:
        decoder = rollout(decoder_layers)
    return {"encoder": encoder, "decoder": decoder, "cross": cross}


def pack_map(values: Tensor | None) -> dict[str, Any] | None:
    """Return a map (T, S) as a packed array, reduced by its maximum if it is large."""
    if values is None:
        return None
    if max(values.shape) <= LONGEST_FULL:
        return pack(values)
    factor = pooling_factor(max(values.shape), LONGEST_MAP)
    pooled = torch.nn.functional.max_pool2d(values.float()[None, None], factor, ceil_mode=True)[0, 0]
    return {**pack(pooled), "pooled": factor}
