"""The documents' formulas, computed from the documents' parameter names."""

import math

import torch
import torch.nn.functional as F


class Paper:
    """Names and formulas of documents 000 and 001."""

    attention, names = ("self_attn", "cross_attn"), ("W_q", "W_k", "W_v", "W_o")
    ffn = ("ffn.linear1", "ffn.linear2")
    act = staticmethod(torch.relu)

    @staticmethod
    def residual(p, layer, number, x, step):
        weight, bias = p[f"{layer}.norm{number}.weight"], p[f"{layer}.norm{number}.bias"]
        return F.layer_norm(x + step(x), x.shape[-1:], weight, bias)


class Modern:
    """Names and formulas of document 003, with the norm where its text puts it."""

    attention, names = ("self_attention", "cross_attention"), ("w_q", "w_k", "w_v", "w_o")
    ffn = ("feed_forward.linear1", "feed_forward.linear2")
    act = staticmethod(F.gelu)

    @staticmethod
    def norm(p, name, x):
        return (
            p[f"{name}.gamma"] * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + p[f"{name}.beta"]
        )

    @classmethod
    def residual(cls, p, layer, number, x, step):
        return x + step(cls.norm(p, f"{layer}.residual{number}.norm", x))


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def attention(p, name, style, heads, query, memory, mask):
    q, k, v = (
        linear(p, f"{name}.{w}", x).unflatten(-1, (heads, -1)).transpose(1, 2)
        for w, x in zip(style.names, (query, memory, memory), strict=False)
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return linear(p, f"{name}.{style.names[3]}", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def document_layer(p, name, style, heads, x, mask, memory=None, memory_mask=None):
    own, cross = style.attention
    x = style.residual(p, name, 1, x, lambda y: attention(p, f"{name}.{own}", style, heads, y, y, mask))
    if memory is not None:
        step = lambda y: attention(p, f"{name}.{cross}", style, heads, y, memory, memory_mask)  # noqa: E731
        x = style.residual(p, name, 2, x, step)
    first, second = (f"{name}.{part}" for part in style.ffn)
    last = 2 if memory is None else 3
    return style.residual(p, name, last, x, lambda y: linear(p, second, style.act(linear(p, first, y))))


def waves(length, width):
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def random_state(shapes):
    centres = {
        name: 1.0 if name.endswith(("gamma",)) or ("norm" in name and "weight" in name) else 0.0 for name in shapes
    }
    return {name: centres[name] + 0.1 * torch.randn(shape) for name, shape in shapes.items()}


def layer_shapes(prefix, style, width, hidden, cross):
    shapes = {}
    for part in style.attention[: 2 if cross else 1]:
        for name in style.names:
            shapes |= {f"{prefix}.{part}.{name}.weight": (width, width), f"{prefix}.{part}.{name}.bias": (width,)}
    shapes |= {f"{prefix}.{style.ffn[0]}.weight": (hidden, width), f"{prefix}.{style.ffn[0]}.bias": (hidden,)}
    shapes |= {f"{prefix}.{style.ffn[1]}.weight": (width, hidden), f"{prefix}.{style.ffn[1]}.bias": (width,)}
    for number in range(1, 4 if cross else 3):
        pair = ("norm{}.weight", "norm{}.bias") if style is Paper else ("residual{}.norm.gamma", "residual{}.norm.beta")
        shapes |= {f"{prefix}.{name.format(number)}": (width,) for name in pair}
    return shapes


WIDTH, HEADS, HIDDEN, V = 16, 4, 20, 30
SOURCE, TARGET = torch.randint(0, V, (2, 6)), torch.randint(0, V, (2, 5))
KEEP = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
CAUSAL = torch.ones(5, 5).tril().expand(2, 1, 5, 5)


def modern_stack(p, name, heads, x, mask, memory=None, memory_mask=None):
    x = x + waves(x.shape[1], WIDTH)
    for index in range(2):
        x = document_layer(p, f"{name}.{index}", Modern, heads, x, mask, memory, memory_mask)
    return x


def modern_shapes(name, cross, norm):
    shapes = {f"{norm}.gamma": (WIDTH,), f"{norm}.beta": (WIDTH,)}
    for index in range(2):
        shapes |= layer_shapes(f"{name}.{index}", Modern, WIDTH, HIDDEN, cross)
    return shapes


def softmax_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v, scores.softmax(-1)


def random_heads(lengths=(5, 7, 7)):
    return [torch.randn(2, 4, length, 4) for length in lengths]


KEYS_MASK = torch.tensor([[1, 1, 1, 0, 1, 1, 0], [1, 0, 1, 1, 1, 1, 1]])[:, None, None]
