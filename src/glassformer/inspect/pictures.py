"""Heat maps of position encodings and attention weights, optionally saved as PNG or SVG files."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glassformer.base.write_errors import naming_write_errors
from glassformer.nn import sinusoids

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 48
"""Largest number of labels on an axis. With more tokens, only every second, third, ... token is labeled."""
CELL = 0.22
"""Width and height of one token's cell in inches, before the limits on the size of a map."""


def draw_positions(
    table: Tensor | None = None, *, length: int = 100, width: int = 128, path: Path | str | None = None
) -> "Figure":
    """Draw a table of position vectors (length, width) as a heat map and return the figure.

    Without `table` it draws the sinusoids of Vaswani et al. (2017) for `length` positions of size `width`. With `path`,
    whose name must end in .png or .svg, the figure is also saved.
    """
    values = (sinusoids(length, width) if table is None else table.detach()).float().cpu().numpy()
    if values.ndim != 2:
        raise ValueError(f"table has shape {values.shape}: expected (length, width)")
    figure = _figure(9.0, 5.0)
    axes = figure.subplots()
    limit = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.set(xlabel="dimension", ylabel="position", title="Positional encoding")
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    return _save(figure, path)


def draw_attention(
    weights: "Tensor | np.ndarray[Any, Any]",
    query_tokens: Sequence[object],
    key_tokens: Sequence[object] | None = None,
    *,
    heads: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    title: str = "Attention",
    path: Path | str | None = None,
) -> "Figure":
    """Draw one heat map per head, with queries in rows and keys in columns, and return the figure.

    The darkest color is the largest weight. `weights` is (heads, queries, keys), or (queries, keys) for one head; the
    weights of one sentence from `capture_attention` fit: `captured["decoder.layers.1.cross_attn"][0]`. `key_tokens`
    default to `query_tokens`. `heads` are the indices of the heads to draw, by default all; `names` are the titles of
    their maps, by default "head 0", "head 1", ... With `path`, whose name must end in .png or .svg, the figure is also
    saved.

    >>> import torch
    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-bert-base"))
    >>> with gf.capture_attention(model, layers=[0]) as weights:
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    >>> layer = weights["encoder.layers.0.self_attn"]
    >>> figure = gf.draw_attention(layer[0], ["the", "cat", "sleeps"], path="heads.svg")
    """
    queries = [str(token) for token in query_tokens]
    keys = queries if key_tokens is None else [str(token) for token in key_tokens]
    maps = _as_maps(weights, len(queries), len(keys))
    chosen = list(range(len(maps))) if heads is None else list(heads)
    if not chosen or not all(0 <= head < len(maps) for head in chosen):
        raise IndexError(f"heads={chosen}: expected some of 0 to {len(maps) - 1}")
    names = [f"head {head}" for head in chosen] if names is None else names
    if len(names) != len(chosen):
        raise ValueError(f"names has {len(names)} entries: expected {len(chosen)}, one for each head drawn")
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    size = (min(max(len(keys) * CELL, 2.6), 8.0) + 0.9, min(max(len(queries) * CELL, 2.2), 8.0) + 0.9)
    figure = _figure(columns * size[0] + 0.8, rows * size[1] + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(chosen) :]:
        axes.set_axis_off()
    highest = float(maps[chosen].max()) or 1.0
    for axes, head, name in zip(grid.flat, chosen, names, strict=False):
        image = axes.imshow(maps[head], cmap="Blues", vmin=0.0, vmax=highest, aspect="auto", interpolation="nearest")
        axes.set_title(name, fontsize=9)
        _label(axes, queries, keys)
    figure.colorbar(image, ax=grid, fraction=0.05, pad=0.02, label="weight")
    figure.suptitle("\n".join(wrap(title, int(12 * (columns * size[0] + 0.8)))), fontsize=11)
    return _save(figure, path)


def _as_maps(weights: "Tensor | np.ndarray[Any, Any]", n_queries: int, n_keys: int) -> np.ndarray[Any, Any]:
    maps = torch.as_tensor(weights).detach().to(torch.float32).cpu()
    if maps.dim() == 2:
        maps = maps[None]
    if maps.dim() != 3 or maps.shape[1:] != (n_queries, n_keys):
        hint = "; take one sentence of the batch, weights[0]" if maps.dim() == 4 else ""
        raise ValueError(
            f"weights has shape {tuple(weights.shape)}: expected (heads, {n_queries}, {n_keys}), a row for each query "
            f"token and a column for each key token{hint}"
        )
    return maps.numpy()


def _label(axes: "Axes", query_tokens: Sequence[str], key_tokens: Sequence[str]) -> None:
    for axis, tokens in ((axes.xaxis, key_tokens), (axes.yaxis, query_tokens)):
        places = range(0, len(tokens), -(-len(tokens) // MAX_LABELS))
        # A dollar sign would start math mode in a matplotlib label.
        axis.set_ticks(list(places), [tokens[place].replace("$", r"\$") for place in places], fontsize=8)
    if max(map(len, key_tokens), default=0) > 2:
        axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=0)


def _figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'glassformer[plot]'") from error
    # A plain Figure instead of pyplot: no window, no global state, safe in threads and servers.
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path | str | None) -> "Figure":
    if path is not None:
        path = Path(path)
        if path.suffix.lower() not in (".png", ".svg"):
            raise ValueError(f"path={str(path)!r}: expected a name that ends in .png or .svg")
        with naming_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=144)
    return figure
