"""Draw the three pictures of the tutorial as SVG, with numbers computed by `glassformer.reference`.

    python tools/draw_docs.py [FOLDER]     # writes docs/drawings/*.svg, or the same files into FOLDER

A test checks that the files in docs/drawings/ are what this program draws.
"""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from glassformer.reference import Config, initial_parameters, parameter_shapes, sinusoids, softmax
from glassformer.reference.attention import allowed_pairs, masked_softmax
from glassformer.reference.models import EncoderModel

Array = np.ndarray
DRAWINGS = Path(__file__).parents[1] / "docs" / "drawings"
INK, LINE, PALE, BLUE, GREEN, SAND, RED = "#1b2733", "#5b6b7b", "#f4f6f8", "#d6e4ff", "#d9f2df", "#fdeecb", "#b42318"
TOKENS = ("she", "loves", "cats")


class Drawing:
    """A picture on a white background, which is built from shapes and written as SVG."""

    def __init__(self, width: int, height: int, title: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def text(self, x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13, color: str = INK) -> None:
        """Draw one line of text. (x, y) is the start, middle or end (`anchor`) of its baseline."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, lines: list[str], fill: str = PALE) -> None:
        """Draw a box with the left upper corner (x, y) and lines of text in its middle, the first one larger."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{LINE}"/>'
        )
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 16 * number, line, size=13 if number == 0 else 11)

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line through these points, with an arrowhead at the last one."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>')

    def matrix(self, x: float, y: float, values: Array, rows: tuple[str, ...] = (), cell: float = 34) -> None:
        """Draw a matrix as cells with their values, blue if positive and red if negative. `rows` are the row labels."""
        limit = float(np.abs(values).max()) or 1.0
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                shade = round(float(255 - 130 * min(abs(value) / limit, 1)))
                color = f"rgb({shade},{shade},255)" if value >= 0 else f"rgb(255,{shade},{shade})"
                left, top = x + column * cell, y + row * cell
                self.parts.append(
                    f'<rect x="{left:g}" y="{top:g}" width="{cell:g}" height="{cell:g}" fill="{color}" '
                    'stroke="#d0d7de"/>'
                )
                self.text(left + cell / 2, top + cell / 2 + 4, f"{value + 0.0:.2f}", size=10)
            if rows:
                self.text(x - 6, y + row * cell + cell / 2 + 4, rows[row], anchor="end", size=11)

    def finish(self) -> str:
        """Return the text of the SVG file."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def architecture() -> str:
    """Return a picture of the encoder-decoder of "Attention Is All You Need", with the sizes of Transformer-base."""
    config = Config(
        vocab_size=37000, n_encoder_layers=6, n_decoder_layers=6, head="language_model", tie="all", output_bias=False
    )
    sizes = {name: int(np.prod(shape)) for name, shape in parameter_shapes(config).items()}

    def millions(prefix: str) -> str:
        return f"{sum(size for name, size in sizes.items() if name.startswith(prefix)) / 1e6:.1f} M parameters"

    drawing = Drawing(760, 640, "Architecture of the encoder-decoder Transformer")
    heads = f"{config.n_heads} heads of {config.d_model // config.n_heads}"
    hidden = f"{config.d_model} -> {config.d_ff} -> {config.d_model}"
    norm = ["add the input, layer norm"]
    left, right, width = 70, 420, 240
    for x, name, y in ((left, "encoder", 250), (right, "decoder", 110)):
        drawing.parts.append(
            f'<rect x="{x - 20}" y="{y}" width="{width + 40}" height="{480 - y}" rx="8" fill="none" stroke="{LINE}" '
            'stroke-dasharray="5 4"/>'
        )
        drawing.text(x + width / 2 - 8, y - 8, f"{name}: {config.n_encoder_layers} layers", anchor="end", size=12)
        drawing.text(x + width / 2 + 8, y - 8, millions(f"{name}."), anchor="start", size=12)
    for x, words in ((left, "source tokens"), (right, "target tokens so far")):
        drawing.text(x + width / 2, 625, words)
        drawing.arrow((x + width / 2, 610), (x + width / 2, 591))
        drawing.box(x, 545, width, 46, ["token embedding", f"{config.vocab_size:,} x {config.d_model}"], SAND)
        drawing.arrow((x + width / 2, 545), (x + width / 2, 531))
        drawing.box(x, 500, width, 31, ["+ positional encoding"], SAND)
        drawing.arrow((x + width / 2, 500), (x + width / 2, 466))
    drawing.box(left, 420, width, 46, ["multi-head self-attention", heads], BLUE)
    drawing.arrow((left + width / 2, 420), (left + width / 2, 401))
    drawing.box(left, 370, width, 31, norm)
    drawing.arrow((left + width / 2, 370), (left + width / 2, 351))
    drawing.box(left, 305, width, 46, ["feed-forward", hidden], GREEN)
    drawing.arrow((left + width / 2, 305), (left + width / 2, 291))
    drawing.box(left, 260, width, 31, norm)
    drawing.box(right, 420, width, 46, ["causal multi-head self-attention", heads], BLUE)
    drawing.arrow((right + width / 2, 420), (right + width / 2, 401))
    drawing.box(right, 370, width, 31, norm)
    drawing.arrow((right + width / 2, 370), (right + width / 2, 331))
    drawing.box(right, 285, width, 46, ["cross-attention", "queries: decoder; keys, values: encoder"], BLUE)
    drawing.arrow((right + width / 2, 285), (right + width / 2, 271))
    drawing.box(right, 240, width, 31, norm)
    drawing.arrow((right + width / 2, 240), (right + width / 2, 211))
    drawing.box(right, 165, width, 46, ["feed-forward", hidden], GREEN)
    drawing.arrow((right + width / 2, 165), (right + width / 2, 151))
    drawing.box(right, 120, width, 31, norm)
    drawing.arrow((left + width / 2, 260), (left + width / 2, 180), (365, 180), (365, 308), (right, 308))
    drawing.arrow((right + width / 2, 120), (right + width / 2, 76))
    drawing.box(right, 40, width, 36, ["output projection, softmax"], SAND)
    drawing.text(right + width / 2, 22, "probability of each next token")
    drawing.arrow((right + width / 2, 40), (right + width / 2, 28))
    return drawing.finish()


def small_encoder() -> tuple[Config, EncoderModel, Array]:
    """Return a one-layer encoder with fixed random weights, its config, and the ids of three tokens."""
    config = Config(vocab_size=8, n_encoder_layers=1, d_model=6, n_heads=2, d_ff=12)
    weights = initial_parameters(config, np.random.default_rng(3))
    return config, EncoderModel(config, weights), np.array([[4, 5, 6]])


def data_flow() -> str:
    """Return a picture of three tokens on their way through one encoder layer, with the values that it computes."""
    config, model, ids = small_encoder()
    hidden = model.forward(ids)[0]
    looked_up = model.params["embeddings.tokens.weight"][ids][0]
    waves = sinusoids(3, config.d_model)
    weights = model.stack.layers[0].self_attn.core.weights[0]
    drawing = Drawing(800, 560, "Data flow of three tokens through one encoder layer")
    steps = (
        (40, "1. tokens and their ids, shape (3,)", None),
        (110, "2. one row of the embedding table for each id, (3, 6)", looked_up),
        (260, "4. sum: the input of the first layer, (3, 6)", looked_up + waves),
        (410, "7. output of the layer, (3, 6)", hidden),
    )
    for y, words, values in steps:
        drawing.text(60, y - 8, words, anchor="start", size=12)
        if values is not None:
            drawing.matrix(60, y, values, TOKENS)
    for number, token in enumerate(TOKENS):
        drawing.box(60 + 90 * number, 40, 80, 32, [f"{token}: {ids[0, number]}"], SAND)
    drawing.text(460, 102, "3. positional encoding, added, (3, 6)", anchor="start", size=12)
    drawing.matrix(460, 110, waves, ("0", "1", "2"))
    for head in range(config.n_heads):
        drawing.text(460 + 170 * head, 252, f"5. weights, head {head}, (3, 3)", anchor="start", size=12)
        drawing.matrix(460 + 170 * head, 260, weights[head], TOKENS if head == 0 else ())
    drawing.box(460, 400, 274, 34, ["attention output + input, layer norm"], BLUE)
    drawing.box(460, 452, 274, 34, ["6. feed-forward + input, layer norm"], GREEN)
    drawing.arrow((440, 161), (360, 161), (360, 285), (270, 285))
    drawing.arrow((162, 215), (162, 238))
    drawing.arrow((270, 335), (415, 335))
    drawing.arrow((597, 366), (597, 398))
    drawing.arrow((597, 434), (597, 450))
    drawing.arrow((460, 469), (272, 469))
    drawing.text(400, 540, "Blue cells are positive, red cells negative. Each row belongs to one token.", size=12)
    return drawing.finish()


def debugging() -> str:
    """Return a picture of the attention weights of a correct causal layer and of three faulty ones.

    Each faulty one has the check that finds the mistake.
    """
    rng = np.random.default_rng(5)
    q, k = rng.normal(size=(2, 4, 16))
    scores = q @ k.T
    allowed = allowed_pairs(np.arange(4)[None], causal=True)[0, 0]
    right = masked_softmax(scores / 4, allowed)
    panels = (
        ("correct", right, "rows sum to 1, no weight on later tokens", True),
        ("mask forgotten", softmax(scores / 4), "weight above the diagonal: the model sees the future", False),
        ("not divided by sqrt(16)", masked_softmax(scores, allowed), "nearly one-hot rows: tiny gradients", False),
        ("softmax over the wrong axis", masked_softmax(scores.T / 4, allowed.T).T, "rows do not sum to 1", False),
    )
    drawing = Drawing(800, 560, "Debugging attention: a correct weight matrix and three mistakes")
    names = ("a", "b", "c", "d")
    for number, (title, weights, check, is_right) in enumerate(panels):
        x, y = 50 + 390 * (number % 2), 60 + 260 * (number // 2)
        drawing.text(x, y - 26, title, anchor="start", size=15)
        for column, name in enumerate(names):
            drawing.text(x + 43 * column + 21.5, y - 6, name, size=11)
        drawing.matrix(x, y, weights, names, cell=43)
        drawing.text(x + 205, y - 6, "row sum", size=11)
        for row, total in enumerate(weights.sum(-1)):
            color = INK if abs(total - 1) < 1e-9 else RED
            drawing.text(x + 205, y + 43 * row + 26, f"{total:.2f}", size=12, color=color)
        drawing.text(x, y + 192, check, anchor="start", size=12, color=INK if is_right else RED)
    return drawing.finish()


PICTURES = {"architecture.svg": architecture, "data_flow.svg": data_flow, "debugging.svg": debugging}


def main() -> None:
    """Write all three pictures to docs/drawings/, or to the folder that is the first argument."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DRAWINGS
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
